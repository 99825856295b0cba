// Selector "strided": attends to every n-th candidate block. A whole plugin, to copy and change:
// g++ -std=c++20 -O2 -shared -fPIC -fvisibility=hidden $(pkg-config --cflags kvasir)
//   -Wl,--version-script=$(pkg-config --variable=pluginmap kvasir) strided.cc -o strided.so
// SPDX-License-Identifier: Apache-2.0 OR MIT
#include <kvasir/sdk/plugin.h>

#include <array>

namespace {
namespace sdk = kvasir::sdk;

constexpr std::array kOptions = {sdk::int_option(
    {.key = "stride", .help = "from one attended block to the next", .unit = "blocks"}, 4, 1,
    1 << 20)};

class Strided {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                                                      .id = "org.example.strided",
                                                      .version = "1.0.0",
                                                      .summary = "every n-th candidate block",
                                                      .options = kOptions});

  Strided(const sdk::Host&, const sdk::Options& options) : stride_(options.u32("stride")) {}

  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_BLOCK;
    out.scope = KVASIR_SCOPE_SEQUENCE;  // one list per sequence, for all heads
  }

  void select(const sdk::Step& step, const kvasir_sel_in&, kvasir_selection& out) const {
    const auto n_chosen = [&](uint32_t seq) {
      return (step.candidates(seq, 0).size() + stride_ - 1) / stride_;
    };
    sdk::lay_out_lists(out, KVASIR_SCOPE_SEQUENCE, step.n_seqs(), n_chosen);
    for (uint32_t seq = 0; seq < step.n_seqs(); ++seq) {
      const sdk::Candidates candidates = step.candidates(seq, 0);
      uint64_t next = 0;
      for (uint32_t& block : sdk::list_indices(out, seq)) {
        block = candidates[next];
        next += stride_;
      }
    }
  }

 private:
  uint32_t stride_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "org.example.strided", "1.0.0", Strided)
