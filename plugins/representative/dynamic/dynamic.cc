// A block is its n most attended keys, per query head. Attention counts either from the last
// queries of the prompt ("Dynamic" in KTransformers' long-context mode) or from every query while
// the token is in the window (InfLLM, arXiv:2402.04617).
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/sequences.h>
#include <kvasir/sdk/state.h>

#include <algorithm>
#include <map>
#include <utility>

#include "plugins/representative/dynamic/attended_keys.h"
#include "plugins/shared/layers.h"

namespace {
using namespace kvasir;

// Mass that a prompt's earlier chunks brought, until the last one ends it. Only where the last
// queries do not fit into one chunk.
struct Pending {
  struct Layer {
    uint32_t prompt_begin = 0, prompt_end = 0;
    std::map<uint32_t, std::vector<float>> blocks;  // [block][n_q_heads][block_size]
  };
  std::map<uint32_t, Layer> layers;
  void truncate(uint32_t) { layers.clear(); }
};

class Dynamic : public sdk::BlockRepresentative<dynamic::AttendedKeys>,
                public sdk::Sequences<Pending> {
  using Base = sdk::BlockRepresentative<dynamic::AttendedKeys>;

 public:
  Dynamic(const sdk::Host& host, const sdk::Options& options)
      : Base(host, options),
        last_queries_(options.u32("last_queries")),
        of_window_(options.choice("mass") == 1) {
    if (of_window_ && options.set_by_user("last_queries"))
      sdk::fail_invalid("last_queries has no meaning with mass = \"window\": drop one of them");
  }

  void validate(const kvasir_geometry& geometry) const {
    Base::validate(geometry);
    if (of_window_ && geometry.window_tokens == 0)
      sdk::fail_invalid("mass = \"window\" needs window_tokens above 0: nothing is attended in it");
  }

  void bind(const kvasir_geometry& geometry) {
    Base::bind(geometry);
    block_size_ = geometry.block_size;
    n_layers_ = geometry.n_layers;
    max_blocks_ = geometry.max_context / block_size_ + 1;
    n_sparse_layers_ = sdk::n_sparse_layers(geometry);
  }

  void layout(kvasir_layout& out) const {
    Base::layout(out);
    out.flags = KVASIR_LAYOUT_SEALED_ONLY | (of_window_ ? KVASIR_LAYOUT_WANT_FINAL : 0u);
    out.open_bytes = of_window_ ? sums_per_head() * sizeof(float) : 0;
    out.mass.at = KVASIR_MASS_AT_PREFILL | (of_window_ ? KVASIR_MASS_AT_DECODE : 0);
    out.mass.level = KVASIR_MASS_TOKEN;
    out.mass.part = of_window_ ? KVASIR_PART_WINDOW : KVASIR_PART_ALL;
    out.mass.last_queries = of_window_ ? KVASIR_ALL_QUERIES : last_queries_;
    if (!of_window_)
      out.memory.state_peak_bytes =
          n_kv_heads() * sums_per_head() * sizeof(float) * max_blocks_ * n_sparse_layers_;
  }

  void update(const sdk::Step& step, const sdk::UpdateItems& items) {
    Base::update(step, items);
    if (of_window_)
      update_window(step, items);
    else
      update_prompt(step, items);
  }

  const void* get_extension(const char* id) const { return sdk::state_if_asked<Dynamic>(id); }
  void save(uint64_t seq, sdk::StateWriter& out) {
    const auto& layers = state_of(seq).layers;
    out.put(static_cast<uint32_t>(layers.size()));
    for (const auto& [layer, pending] : layers) {
      out.put(layer);
      out.put(pending.prompt_begin);
      out.put(pending.prompt_end);
      out.put(static_cast<uint32_t>(pending.blocks.size()));
      for (const auto& [block, sums] : pending.blocks) {
        out.put(block);
        out.put_list(sums);
      }
    }
  }
  void load(uint64_t seq, sdk::StateReader& in) {
    Pending state;
    const auto n = in.take<uint32_t>();
    for (uint32_t i = 0; i < n; ++i) {
      Pending::Layer& pending = state.layers[in.take_key(state.layers, n_layers_, "layers")];
      pending.prompt_begin = in.take<uint32_t>();
      pending.prompt_end = in.take<uint32_t>();
      const auto n_blocks = in.take<uint32_t>();
      for (uint32_t b = 0; b < n_blocks; ++b) {
        const uint32_t block = in.take_key(pending.blocks, max_blocks_, "blocks");
        pending.blocks[block] =
            in.take_numbers<float>(n_kv_heads() * sums_per_head(), true, "sums of mass");
      }
    }
    state_of(seq) = std::move(state);
  }

 private:
  static const float* mass_of(const kvasir_update_item& item) {
    return sdk::floats(*item.mass, "attention mass of a block");
  }
  uint64_t sums_per_head() const { return uint64_t{group_size()} * block_size_; }

  void update_prompt(const sdk::Step& step, const sdk::UpdateItems& items) {
    std::vector<std::pair<const kvasir_update_item*, const float*>> ready;
    for (const kvasir_update_item& item : items) {
      if (!item.mass) continue;
      const kvasir_step_seq& seq = step.seq(item.seq);
      Pending::Layer& pending = pending_of(seq, step.layer());
      const bool last = seq.kv_len == seq.prompt_end;
      const float* mass = mass_of(item);
      if (!last || pending.blocks.count(item.block)) mass = add(pending, item).data();
      if (last && item.n_tokens == block_size_) ready.emplace_back(&item, mass);
    }
    build(step, ready);
    for (const auto& [item, mass] : ready)
      state_of(step.seq(item->seq).id).layers.erase(step.layer());
  }

  Pending::Layer& pending_of(const kvasir_step_seq& seq, uint32_t layer) {
    Pending::Layer& pending = state_of(seq.id).layers[layer];
    if (pending.prompt_begin != seq.prompt_begin || pending.prompt_end != seq.prompt_end)
      pending = {seq.prompt_begin, seq.prompt_end, {}};
    return pending;
  }

  const std::vector<float>& add(Pending::Layer& pending, const kvasir_update_item& item) const {
    std::vector<float>& sums = pending.blocks[item.block];
    sums.resize(uint64_t{n_q_heads()} * block_size_);
    const float* mass = mass_of(item);
    for (uint32_t head = 0; head < n_q_heads(); ++head)
      for (uint32_t t = 0; t < item.n_tokens; ++t)
        sums[uint64_t{head} * block_size_ + t] += mass[uint64_t{head} * item.n_tokens + t];
    return sums;
  }

  void build(const sdk::Step& step,
             const std::vector<std::pair<const kvasir_update_item*, const float*>>& ready) {
    for_each(ready.size(), [&](uint64_t i, uint32_t kv_head, void* scratch) {
      const kvasir_update_item& item = *ready[i].first;
      build_one(step, item, kv_head, ready[i].second + kv_head * sums_per_head(), scratch);
    });
  }

  void update_window(const sdk::Step& step, const sdk::UpdateItems& items) {
    for_each(items.size(), [&](uint64_t i, uint32_t kv_head, void* scratch) {
      const kvasir_update_item& item = items[i];
      auto* sums = reinterpret_cast<float*>(step.open_record(item.seq, kv_head, item.block));
      if (!sums) return;
      if (item.mass) {
        const float* mass = mass_of(item) + uint64_t{kv_head} * group_size() * item.n_tokens;
        for (uint32_t g = 0; g < group_size(); ++g)
          for (uint32_t t = 0; t < item.n_tokens; ++t)
            sums[g * block_size_ + t] += mass[g * item.n_tokens + t];
      }
      if (item.flags & KVASIR_ITEM_FINAL) build_one(step, item, kv_head, sums, scratch);
    });
  }

  // mass: [group_size][block_size] of one kv head. A block that nobody attended to keeps its mean.
  void build_one(const sdk::Step& step, const kvasir_update_item& item, uint32_t kv_head,
                 const float* mass, void* scratch) {
    if (std::all_of(mass, mass + sums_per_head(), [](float m) { return m == 0.0f; })) return;
    method().build(keys(item, kv_head), mass, step.record_to_write(item.seq, kv_head, item.block),
                   scratch);
  }

  template <class Fn>
  void for_each(uint64_t n, const Fn& fn) {
    host().parallel_for(n * n_kv_heads(), 0, [&](uint64_t begin, uint64_t end, uint32_t worker) {
      const sdk::Scratch<std::byte> scratch(host(), worker, method().build_scratch_bytes());
      for (uint64_t i = begin; i < end; ++i)
        fn(i / n_kv_heads(), static_cast<uint32_t>(i % n_kv_heads()), scratch.data());
    });
  }

  uint32_t last_queries_;
  bool of_window_;
  uint32_t block_size_ = 0, n_layers_ = 0, n_sparse_layers_ = 0, max_blocks_ = 0;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_REPRESENTATIVE, "kvasir.dynamic", "0.1.0", Dynamic)
