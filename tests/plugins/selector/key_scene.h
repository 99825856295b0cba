// One layer of one sequence as a selector sees it through the ABI: keys in blocks of f32, queries,
// a slab where it asks for one, step calls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"

namespace kvasir::test {

inline std::vector<float> normal_floats(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

class KeyScene {
 public:
  using Selector = PluginInstance<kvasir_selector>;

  // keys [n_tokens][n_kv_heads][head_dim], q [n_q_heads][head_dim] of the one query.
  KeyScene(const kvasir_geometry& geometry, std::vector<float> keys, std::vector<float> q)
      : geometry_(geometry), keys_(std::move(keys)), q_(std::move(q)) {
    format_.struct_size = sizeof format_;
    format_.dtype_k = format_.dtype_v = KVASIR_DTYPE_F32;
    format_.k_head_stride = format_.v_head_stride = geometry.head_dim * sizeof(float);
    format_.k_token_stride = format_.v_token_stride = format_.k_head_stride * geometry.n_kv_heads;
    geometry_.formats = &format_;
    geometry_.n_formats = 1;
    const uint32_t b = geometry.block_size;
    for (uint32_t begin = 0; begin < n_tokens(); begin += b) {
      kvasir_lease lease{};
      lease.k = lease.v = keys_.data() + begin * width();
      lease.n_tokens = std::min(b, n_tokens() - begin);
      lease.kv_head = KVASIR_ALL_HEADS;
      leases_.push_back(lease);
    }
  }
  KeyScene(const KeyScene&) = delete;

  const kvasir_geometry& geometry() const { return geometry_; }
  uint32_t n_tokens() const { return static_cast<uint32_t>(keys_.size() / width()); }
  const float* key(uint32_t token, uint32_t kv_head) const {
    return keys_.data() + token * width() + kv_head * geometry_.head_dim;
  }
  const float* query(uint32_t q_head) const { return q_.data() + q_head * geometry_.head_dim; }
  double dot(uint32_t token, uint32_t q_head) const {
    const float* k = key(token, q_head / (geometry_.n_q_heads / geometry_.n_kv_heads));
    double sum = 0;
    for (uint32_t d = 0; d < geometry_.head_dim; ++d) sum += double{k[d]} * query(q_head)[d];
    return sum;
  }

  uint32_t layer = 0;  // of every call
  // What an earlier selector left of them, in every select(); null: all.
  const kvasir_selection* listed = nullptr;
  // Candidates [begin, end) in every call from here on.
  void candidates(uint32_t begin, uint32_t end) { begin_ = begin, end_ = end; }

  // Records as the selector's layout asks, a page per block; given in every call from here on.
  void provide_slab(const Selector& selector) {
    kvasir_layout layout{};
    REQUIRE(selector->layout(selector.self(), &layout, const_cast<Selector&>(selector).err()) ==
            KVASIR_OK);
    records_.assign(leases_.size(),
                    std::vector<float>(geometry_.n_kv_heads * layout.record_bytes / sizeof(float)));
    pages_.clear();
    for (auto& page : records_) pages_.push_back(page.data());
    slab_ = {sizeof slab_,  1,       layout.record_bytes, 0, seq_pages_,
             pages_.data(), nullptr, KVASIR_MEM_HOST,     0, 0};
    seq_pages_[1] = pages_.size();
  }

  kvasir_status update(const Selector& selector, When when, uint32_t flags, uint32_t first_block,
                       uint32_t last_block) {
    std::vector<kvasir_update_item> items;
    for (uint32_t block = first_block; block < last_block; ++block) {
      const uint32_t n = leases_[block].n_tokens;
      items.push_back(
          {0, block, 0, flags & KVASIR_ITEM_NEW ? n : 0, n, flags, &leases_[block], nullptr});
    }
    const Call call(*this, when);
    return selector->update(selector.self(), &call.step, items.data(),
                            static_cast<uint32_t>(items.size()), sizeof items[0],
                            const_cast<Selector&>(selector).err());
  }
  // The whole prompt at its end.
  kvasir_status prompt_end(const Selector& selector) {
    return update(selector, kPromptEnd, KVASIR_ITEM_PROMPT_END, 0,
                  static_cast<uint32_t>(leases_.size()));
  }
  kvasir_status select(const Selector& selector, kvasir_selection& out) {
    Call call(*this, kDecodeAppended);
    call.step.candidates = listed;
    const uint64_t lease_offsets[] = {0, leases_.size()};
    kvasir_sel_in in{};
    in.struct_size = sizeof in;
    in.q = call.q;
    in.leases = leases_.data();
    in.lease_offsets = lease_offsets;
    return selector->select(selector.self(), &call.step, &in, &out,
                            const_cast<Selector&>(selector).err());
  }
  // What select() chose, ascending: one list per kv head, or one for all by `limits`.
  std::vector<std::vector<uint32_t>> choose(const Selector& selector,
                                            const kvasir_sel_limits& limits) {
    const uint32_t n_lists = limits.scope == KVASIR_SCOPE_SEQUENCE ? 1 : geometry_.n_kv_heads;
    SelectionBuffer out(limits.unit, limits.scope, n_lists, size_t{n_lists} * n_tokens());
    REQUIRE(select(selector, out.selection) == KVASIR_OK);
    REQUIRE(out.selection.n_lists == n_lists);
    CHECK(out.selection.scope == limits.scope);
    std::vector<std::vector<uint32_t>> chosen;
    for (uint32_t i = 0; i < n_lists; ++i) {
      chosen.push_back(out.list(i));
      if (out.list_flags[i] == KVASIR_LIST_LISTED) continue;
      REQUIRE(out.list_flags[i] == KVASIR_LIST_ALL);
      CHECK(chosen.back().empty());
      for (uint32_t unit = begin_; unit < end_ && !listed; ++unit) chosen.back().push_back(unit);
      if (listed)
        chosen.back().assign(listed->index + listed->list_offsets[i],
                             listed->index + listed->list_offsets[i + 1]);
    }
    for (const auto& list : chosen) CHECK(std::is_sorted(list.begin(), list.end()));
    return chosen;
  }

 private:
  uint32_t width() const { return geometry_.n_kv_heads * geometry_.head_dim; }

  struct Call {
    kvasir_step_seq seq{};
    kvasir_step step{};
    kvasir_view q{};
    Call(KeyScene& scene, When when) {
      seq.id = 1;
      seq.n_q = 1;
      seq.kv_len = scene.n_tokens();
      seq.prompt_end = scene.n_tokens();
      seq.unit_begin = scene.begin_;
      seq.unit_end = scene.end_;
      step.struct_size = sizeof step;
      step.moment = when.moment;
      seq.phase = when.phase;
      step.layer = scene.layer;
      step.n_seqs = 1;
      step.seq_size = sizeof seq;
      step.seqs = &seq;
      step.slab = scene.pages_.empty() ? nullptr : &scene.slab_;
      q.struct_size = sizeof q;
      q.dtype = KVASIR_DTYPE_F32;
      q.data = scene.q_.data();
      q.rank = 3;
      q.shape[0] = 1;
      q.shape[1] = scene.geometry_.n_q_heads;
      q.shape[2] = scene.geometry_.head_dim;
      q.stride[2] = sizeof(float);
      q.stride[1] = static_cast<int64_t>(q.shape[2] * sizeof(float));
      q.stride[0] = static_cast<int64_t>(q.shape[1]) * q.stride[1];
    }
  };

  kvasir_geometry geometry_;
  kvasir_kv_format format_{};
  std::vector<float> keys_, q_;
  std::vector<kvasir_lease> leases_;
  std::vector<std::vector<float>> records_;  // [block]
  std::vector<void*> pages_;
  uint64_t seq_pages_[2] = {};
  kvasir_slab slab_{};
  uint32_t begin_ = 0, end_ = 0;
};

// Tokens with these shares of the attention of one query, (1, 0): their keys are the logarithms.
class ShareScene : public KeyScene {
 public:
  explicit ShareScene(const std::vector<double>& share)
      : KeyScene(geometry_of_one_head(), keys_of(share), {1.0f, 0.0f}) {}
  static kvasir_geometry geometry_of_one_head() {
    kvasir_geometry geometry = small_geometry();
    geometry.n_q_heads = geometry.n_kv_heads = 1;
    geometry.head_dim = geometry.v_dim = 2;
    geometry.block_size = 4;
    return geometry;
  }

 private:
  static std::vector<float> keys_of(const std::vector<double>& share) {
    std::vector<float> keys;
    for (const double x : share) {
      keys.push_back(static_cast<float>(std::log(x)));
      keys.push_back(5.0f);  // the query does not look there
    }
    return keys;
  }
};

// A selector that reads keys itself refuses types it cannot read, and keys without their rotation.
inline void check_refuses_unreadable_keys(const std::string& name) {
  const FakeHost host;
  PluginInstance<kvasir_selector> selector(host, name);
  kvasir_kv_format format{};
  format.struct_size = sizeof format;
  format.dtype_k = KVASIR_DTYPE_U32;
  kvasir_geometry unread = small_geometry();
  unread.formats = &format;
  unread.n_formats = 1;
  CHECK(selector->base.validate(selector.self(), &unread, selector.err()) ==
        KVASIR_ERR_UNSUPPORTED);
  CHECK(selector.text().find("f32, f16, bf16, q8_0, q4_0 or fp8_e4m3") != std::string::npos);
  kvasir_geometry unrotated = small_geometry();
  unrotated.k_state = KVASIR_K_UNROTATED;
  CHECK(selector->base.validate(selector.self(), &unrotated, selector.err()) == KVASIR_ERR_INVALID);
  CHECK(selector.text().find("cache.positions") != std::string::npos);
}

}  // namespace kvasir::test
