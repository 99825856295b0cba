// Two backends that decode together or not at all: run() over decoded tokens returns only while
// another instance runs, too. The arithmetic is that of kvasir.reference.
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

#include "tests/plugins/fakes/fake.h"
#include "tests/plugins/fakes/inner_backend.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr const char* kAnswers[] = {"attend", "fail"};
constexpr kvasir_option_schema kOptions[] = {sdk::enum_option(
    {.key = "answer", .help = "to decoded tokens, once both are there"}, kAnswers, 0)};

// Instances of this file that are in run().
struct Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  uint32_t n_there = 0;
  uint64_t n_meetings = 0;

  bool wait_for_other() {
    std::unique_lock lock(mutex);
    if (++n_there == 2) {
      n_there = 0;
      ++n_meetings;
      changed.notify_all();
      return true;
    }
    const uint64_t before = n_meetings;
    if (changed.wait_for(lock, std::chrono::seconds(20), [&] { return n_meetings != before; }))
      return true;
    --n_there;
    return false;
  }
} meeting;

class MeetingAttention : public InnerBackend {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe(
      {.kind = KVASIR_KIND_ATTENTION,
       .id = "kvasir.test.meeting_attention",
       .version = "0.1.0",
       .name = "Meeting attention",
       .vendor = "Kvasir's tests",
       .license = "Apache-2.0",
       .summary = "test material",
       .options = kOptions,
       .dtypes = KVASIR_DTYPE_BIT(KVASIR_DTYPE_F32),
       .mem_kinds_read = KVASIR_MEM_BIT(KVASIR_MEM_HOST) | KVASIR_MEM_BIT(KVASIR_MEM_DEVICE)});

  MeetingAttention(const sdk::Host& host, const sdk::Options& options)
      : InnerBackend(host.raw()), fails_(options.choice("answer") == 1) {}

  void run(const sdk::Step& step, const kvasir_attn_in& in, kvasir_attn_out& out) {
    if (step.phase() == KVASIR_PHASE_DECODE) {
      if (!meeting.wait_for_other()) sdk::fail_invalid("nobody came");
      if (fails_) sdk::fail_invalid("as it was told");
    }
    InnerBackend::run(step, in, out);
  }
  const void* get_extension(const char* id) { return probe_extension<MeetingAttention>(id); }
  double probe(uint32_t) const { return static_cast<double>(meeting.n_meetings); }

 private:
  bool fails_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_ATTENTION, "kvasir.test.meeting_attention", "0.1.0", MeetingAttention)
