// A thread that carries blocks between a tier and the one below it, some at a time, and reports
// what it was asked for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/completion.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "plugins/storage/tiered/job_queues.h"
#include "plugins/storage/tiered/token_set.h"

namespace kvasir::tiered {

// Tokens of a block that are to come up.
struct Request {
  uint64_t handle = 0;  // 0: no such block
  TokenSet tokens;
  // Once it was carried:
  kvasir_status status = KVASIR_OK;
  std::string why{};     // of one that failed
  uint32_t tier = 0;     // below this one, in which the tokens were: 0 is the next
  uint64_t n_bytes = 0;  // that came
};

struct CarrierJob : QueuedJob<std::vector<Request>> {
  std::vector<Request> requests{};
  size_t n_done = 0;
};

// One report per ticket, whatever happens.
class Carrier : public JobQueues<CarrierJob> {
 public:
  // What the thread calls, with no lock held.
  class Work {
   public:
    // Carries the first of `some` together, one at least, and returns how many. is_asked: a step
    // waits for them, else they are foreseen.
    virtual size_t load(std::span<Request> some, bool is_asked) noexcept = 0;
    // Likewise, downwards; blocks that are gone, or are not full any more, are left alone.
    virtual size_t save(std::span<const uint64_t> handles) noexcept = 0;

   protected:
    ~Work() = default;
  };

  Carrier(Work& work, const kvasir_completion* completion) : JobQueues(completion), work_(work) {}
  ~Carrier();  // what is left of requests is reported as cancelled, other blocks stay where they
               // are

  void start();  // the thread; once, before anything is asked for
  // Urgent ones go first, also before the rest of those that are not.
  void load(uint64_t ticket, std::vector<Request> requests, bool is_urgent);
  // The same, urgent, and without a ticket: waits, and returns what came of them; nothing after
  // 30 s, and then what is left is cancelled.
  std::vector<Request> load_now(std::vector<Request> requests);

 private:
  void serve();
  void go_on(Jobs& queue, std::unique_lock<std::mutex>& lock);
  void go_on_saving(std::unique_lock<std::mutex>& lock);

  Work& work_;
};

}  // namespace kvasir::tiered
