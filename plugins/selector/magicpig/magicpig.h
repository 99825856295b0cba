// MagicPIG as a selector: its slots by subject, in magicpig.cc (what it asks of the host, and the
// static tokens), index.cc (hashing what leaves the window) and draw.cc (drawing and weights).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/plugin.h>
#include <kvasir/sdk/queries.h>
#include <kvasir/sdk/sequences.h>

#include <span>
#include <utility>
#include <vector>

#include "plugins/selector/magicpig/hash.h"
#include "plugins/selector/magicpig/options.h"
#include "plugins/selector/magicpig/state.h"
#include "plugins/shared/key_values.h"

namespace kvasir::magicpig {

constexpr uint32_t kPlanesLayers = 16;  // that share their planes, where heads do not

struct Drawn {
  uint32_t token;
  float log_weight;
};

class MagicPig : public sdk::Sequences<State> {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe(
      {.kind = KVASIR_KIND_SELECTOR,
       .id = "kvasir.magicpig",
       .version = "0.1.0",
       .name = "MagicPIG",
       .vendor = "Kvasir",
       .license = "Apache-2.0",
       .summary = "Draws tokens by hashing, with weights that make attention unbiased.",
       .options = kOptions,
       .caps = KVASIR_CAP_OPAQUE_STATE | KVASIR_CAP_HISTORY_STATE,
       .needs = KVASIR_NEED_KEYS | KVASIR_NEED_HEAD_LOG_WEIGHT | KVASIR_NEED_TOKEN_ITEMS |
                KVASIR_NEED_MASS,
       .dtypes = sdk::kElementTypes});

  MagicPig(const sdk::Host& host, const sdk::Options& options) : host_(host), o_(options) {}

  void validate(const kvasir_geometry& geometry) const;
  void bind(const kvasir_geometry& geometry);
  void limits(kvasir_sel_limits& out) const;
  void layout(kvasir_layout& out) const;
  kvasir_status seq_truncate(std::span<const uint64_t> seqs, std::span<const uint32_t> kv_len);
  void observe(const sdk::Step& step, const kvasir_mass& mass);
  void update(const sdk::Step& step, const sdk::UpdateItems& items);
  void select(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out);

  const void* get_extension(const char* id) const { return sdk::state_if_asked<MagicPig>(id); }
  void save(uint64_t seq, sdk::StateWriter& out) { save_state(state_of(seq), out); }
  void load(uint64_t seq, sdk::StateReader& in) {
    state_of(seq) = load_state({geometry_.n_layers, geometry_.n_kv_heads, geometry_.head_dim,
                                geometry_.max_context, o_.n_bits, o_.n_tables, o_.layout},
                               in);
  }

 private:
  // Tokens to hash, each with the lease of its block.
  using LeasedTokens = std::vector<std::pair<uint32_t, const kvasir_lease*>>;

  uint32_t group_size() const { return geometry_.n_q_heads / geometry_.n_kv_heads; }
  Layer& layer_of(uint64_t seq, uint32_t layer) {
    State& state = state_of(seq);
    if (state.layers.empty()) state.layers.resize(geometry_.n_layers);
    Layer& of = state.layers.at(layer);
    if (of.heads.empty()) of.heads.resize(geometry_.n_kv_heads);
    return of;
  }
  // Of the block that the token lies in, up to the token.
  sdk::HeadKeys keys_to(const kvasir_lease& lease, uint32_t kv_head, uint32_t token) const {
    return keys_.keys(&lease, kv_head, token / geometry_.block_size,
                      token % geometry_.block_size + 1);
  }
  void read_key(const kvasir_lease& lease, uint32_t kv_head, uint32_t token, float* out) const {
    sdk::read_keys(keys_to(lease, kv_head, token), token % geometry_.block_size, 1,
                   geometry_.head_dim, out);
  }

  const Planes& planes_of(uint32_t layer, uint32_t kv_head) const {
    return planes_[planes_.size() == 1
                       ? 0
                       : layer / kPlanesLayers * uint64_t{geometry_.n_kv_heads} + kv_head];
  }

  kvasir_memory memory() const;
  void extend(const sdk::Step& step, const kvasir_step_seq& seq, const LeasedTokens& leased);
  void hash(uint32_t index, Layer& layer, const LeasedTokens& leased);
  void add_segments(Head& head, const LeasedTokens& leased, std::span<const uint16_t> code,
                    std::span<const float> norm) const;
  std::vector<float> mean_of(const LeasedTokens& leased, uint32_t kv_head) const;
  void choose_static(Layer& layer, const kvasir_step_seq& seq) const;
  void draw(const sdk::Step& step, const kvasir_sel_in& in, const sdk::Queries& queries,
            uint32_t list);
  // Each returns the bytes of ids, or of norms and keys, that it read.
  uint64_t draw_head(const Head& head, const sdk::Candidates& from, uint32_t end,
                     const uint16_t* code, std::vector<Drawn>& out) const;
  uint64_t weigh(const Head& head, const kvasir_lease* leases, uint32_t kv_head, const float* q,
                 std::vector<Drawn>& drawn, const sdk::Scratch<float>& work) const;
  size_t weigh_floats() const;  // of its scratch
  void thin(uint32_t layer, uint32_t kv_head, uint32_t kv_len, size_t n_kept,
            std::span<std::vector<Drawn>> lists) const;
  uint64_t fingerprint(const sdk::Step& step, const sdk::Queries& queries) const;

  sdk::Host host_;
  OptionValues o_;
  uint64_t seed_ = 0;
  kvasir_geometry geometry_{};
  sdk::LeasedKeys keys_;
  std::vector<Planes> planes_;             // one set, or [layer / kPlanesLayers][kv_head]
  std::vector<std::vector<Drawn>> drawn_;  // of the latest select(): [sequence][q_head]
  std::vector<uint64_t> read_;             // by it, in bytes: [sequence][kv_head]
  uint64_t drawn_for_ = 0;                 // its fingerprint while the host fetches a larger buffer
};

}  // namespace kvasir::magicpig
