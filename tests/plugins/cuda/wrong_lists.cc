// A selector whose lists are wrong, on the device or on the host: of sequences with odd ids, the
// last kv head's.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string_view>
#include <utility>

#include "plugins/shared/block_budget.h"
#include "plugins/shared/device_buffer.h"
#include "plugins/shared/device_lists.h"
#include "plugins/shared/device_work.h"

namespace {
using namespace kvasir;

enum Wrong : uint32_t { kNothing, kOrder, kTwice, kBehind, kFar };
constexpr const char* kWrong[] = {"nothing", "order", "twice", "behind", "far"};
constexpr std::array kOptions = {
    sdk::budget_tokens_option(16), sdk::budget_blocks_option(nullptr),
    sdk::enum_option({.key = "wrong", .help = "what is wrong"}, kWrong, kNothing),
    sdk::bool_option({.key = "there", .help = "lists are left on the device"}, true),
    sdk::bool_option({.key = "streams", .help = "takes a stream"}, true)};

class WrongLists : public sdk::BlockBudget {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe(
      {.kind = KVASIR_KIND_SELECTOR,
       .id = "kvasir.test.wrong_lists",
       .version = "0.1.0",
       .name = "Wrong lists",
       .vendor = "Kvasir",
       .license = "Apache-2.0",
       .summary = "Chooses every n-th block, and says it wrongly.",
       .options = kOptions,
       .needs = KVASIR_NEED_SCORES,
       .mem_kinds_read = KVASIR_MEM_BIT(KVASIR_MEM_HOST) | KVASIR_MEM_BIT(KVASIR_MEM_DEVICE)});

  WrongLists(const sdk::Host&, const sdk::Options& options)
      : BlockBudget(options),
        wrong_(static_cast<Wrong>(options.choice("wrong"))),
        is_there_(options.boolean("there")),
        takes_streams_(options.boolean("streams")) {}

  const void* get_extension(const char* id) const {
    if (std::string_view(id) == KVASIR_EXT_DEVICE_LISTS)
      return is_there_ ? sdk::device_lists_table<WrongLists>() : nullptr;
    return takes_streams_ ? sdk::stream_extension<WrongLists>(id) : nullptr;
  }
  void lend_stream(kvasir_stream_handle) {}  // each call waits for all streams

  void select(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out) const {
    lay_out(step, in, out);
    for (uint32_t i = 0; i < n_lists(step); ++i) {
      const sdk::Candidates from = candidates(step, i);
      const auto list = sdk::list_indices(out, i);
      for (size_t j = 0; j < list.size(); ++j) list[j] = from[j * from.size() / list.size()];
      if (step.seq(i / n_heads()).id % 2 == 1 && i % n_heads() == n_heads() - 1 && list.size() > 1)
        spoil(list, from);
    }
  }

  void select_there(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out,
                    const kvasir_view& index) const {
    std::vector<uint32_t> here(out.capacity);
    out.index = here.data();
    select(step, in, out);
    cuda::copy_to_device(index.data, here.data(), here.size() * sizeof here[0], {});
    cuda::wait({});
  }

 private:
  void spoil(std::span<uint32_t> list, const sdk::Candidates& from) const {
    if (wrong_ == kOrder) std::swap(list[0], list[1]);
    if (wrong_ == kTwice) list[1] = list[0];
    if (wrong_ == kBehind) list.back() = from[from.size() - 1] + 1;  // in the window
    if (wrong_ == kFar) list.back() = UINT32_MAX - 5;
  }

  const Wrong wrong_;
  const bool is_there_, takes_streams_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.wrong_lists", "0.1.0", WrongLists)
