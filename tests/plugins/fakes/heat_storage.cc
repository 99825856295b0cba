// A storage in memory that asks for the heat of its blocks: `wants` says for which, a KVASIR_HEAT_*
// or what is none. It keeps what it was told.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/block_heat.h>

#include <array>

#include "tests/plugins/fakes/memory_storage.h"
#include "tests/plugins/fakes/told_heat.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr std::array kOptions = {
    sdk::int_option({.key = "wants", .help = "KVASIR_HEAT_*"}, 0, 0, 9),
    sdk::bool_option({.key = "fails", .help = "heat() says so"}, false)};

class HeatStorage : public MemoryStorage {
 public:
  static constexpr kvasir_desc kDesc =
      fake_desc(KVASIR_KIND_STORAGE, "kvasir.test.heat_storage", kOptions);

  HeatStorage(const sdk::Host&, const sdk::Options& options)
      : MemoryStorage(false), wants_(options.u32("wants")), fails_(options.boolean("fails")) {}
  const void* get_extension(const char* id) {
    if (std::string_view(id) == KVASIR_EXT_BLOCK_HEAT) return sdk::block_heat_table<HeatStorage>();
    return std::string_view(id) == kToldHeatExtension ? &told_ : nullptr;
  }
  uint32_t wants_heat() const { return wants_; }
  void heat(const sdk::BlockKeys& keys, std::span<const float> values) {
    if (fails_) sdk::fail_invalid("too hot");
    auto& call = told_.calls.emplace_back();
    for (uint64_t i = 0; i < keys.size(); ++i)
      call.push_back({keys[i].layer, keys[i].block, values[i]});
  }

 private:
  uint32_t wants_;
  bool fails_;
  ToldHeat told_;
};
}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.test.heat_storage", "0.1.0", HeatStorage)
