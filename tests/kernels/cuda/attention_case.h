// A call of attention with random contents in device memory, and what the oracle makes of the same
// bytes: the double-precision attention of kernels/reference, block by block, merged in double.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <deque>
#include <memory>
#include <vector>

#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/attention_mass.h"
#include "kernels/cuda/attention_merge.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/attention_prefill.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/rows.h"

namespace kvasir::test {

// e4m3 by its definition.
inline double fp8_value(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  const double sign = bits & 0x80 ? -1.0 : 1.0;
  if ((bits & 0x7f) == 0x7f) return std::nan("");
  if (exponent == 0) return sign * std::ldexp(fraction, -9);
  return sign * std::ldexp(8 + fraction, exponent - 10);
}

struct CudaResult {
  std::vector<float> o, lse;
};

inline constexpr float kNotWritten = 77.0f;

// Those that the device has; of these those that KVASIR_TEST_INSTRUCTIONS names, where it is set to
// "portable" or "hopper".
std::vector<cuda::Instructions> all_instructions();

class CudaCase {
 public:
  using KvType = cuda::KvType;

  cuda::AttentionShape shape;
  bool is_prefill = false;  // of the ranges that are added from then on
  KvType product = KvType::kF32;
  cuda::Instructions instructions = cuda::Instructions::kPortable;

  CudaCase(uint32_t n_q_heads, uint32_t n_kv_heads, uint32_t head_dim, uint32_t v_dim,
           uint32_t block_size = 16)
      : shape{n_q_heads, n_kv_heads, head_dim, v_dim, block_size, 0.3f, 0.0f} {}
  CudaCase(const CudaCase&) = delete;

  uint32_t group() const { return shape.n_q_heads / shape.n_kv_heads; }

  // Rows lie `gap` elements apart, which are NaN. Returns the format's index.
  uint32_t add_format(KvType k_type, KvType v_type, size_t gap = 0) {
    cuda::KvFormat f{
        k_type, v_type, stride(k_type, shape.head_dim, gap), stride(v_type, shape.v_dim, gap),
        0,      0};
    f.k_head_stride = shape.block_size * f.k_token_stride;
    f.v_head_stride = shape.block_size * f.v_token_stride;
    formats_.push_back(f);
    return static_cast<uint32_t>(formats_.size() - 1);
  }

  // Queries at these positions; items and weights may be given before the call.
  uint32_t add_part(const std::vector<uint32_t>& positions, bool by_token = false) {
    cuda::AttentionPart part{};
    Part& more = parts_more_.emplace_back();
    more.q = random_floats(positions.size() * shape.n_q_heads * shape.head_dim, 1.0f, ++seed_);
    more.q_pos = positions;
    part.q = upload(more.q);
    part.q_pos = upload(positions);
    part.q_stride = uint64_t{shape.n_q_heads} * shape.head_dim;
    part.by_token = by_token;
    part.weight_width = 1;
    part.dist_max = UINT32_MAX;
    parts_.push_back(part);
    n_queries_ = std::max(n_queries_, static_cast<uint32_t>(positions.size()));
    return static_cast<uint32_t>(parts_.size() - 1);
  }
  cuda::AttentionPart& part(uint32_t i) { return parts_[i]; }
  void set_query(uint32_t part, const std::vector<float>& q) {
    parts_more_[part].q = q;
    parts_[part].q = upload(q);
  }
  void set_items(uint32_t part, const std::vector<uint32_t>& items) {
    parts_more_[part].items = items;
    parts_[part].items = upload(items);
  }
  void set_weights(uint32_t part, uint32_t width, const std::vector<float>& weights) {
    parts_more_[part].weights = weights;
    parts_[part].log_weight = upload(weights);
    parts_[part].weight_width = width;
  }

  // One block of `n_tokens`; of one kv head when it is named. Each is an allocation of its own.
  void add_block(uint32_t part, uint32_t format, uint32_t first_pos, uint32_t n_tokens,
                 const std::vector<uint32_t>& pos = {}, float scale = 1.0f, int one_head = -1) {
    const cuda::KvFormat& f = formats_[format];
    Block& block = parts_more_[part].blocks.emplace_back();
    block.one_head = one_head;
    block.pos = pos;
    block.first_pos = first_pos;
    block.n_tokens = n_tokens;
    const uint32_t n_heads = one_head < 0 ? shape.n_kv_heads : 1;
    block.k = rows(f.k_type, shape.head_dim, n_heads, f.k_token_stride, scale);
    block.v = rows(f.v_type, shape.v_dim, n_heads, f.v_token_stride, 1.0f);
    block.on_device = {upload(block.k.stored),
                       upload(block.v.stored),
                       pos.empty() ? 0 : upload(pos),
                       first_pos,
                       n_tokens,
                       format,
                       one_head < 0 ? 0u : 1u};
  }
  void add_blocks(uint32_t part, uint32_t format, uint32_t first_pos, uint32_t n_tokens,
                  float scale = 1.0f) {
    for (uint32_t t = 0; t < n_tokens; t += shape.block_size)
      add_block(part, format, first_pos + t, std::min(shape.block_size, n_tokens - t), {}, scale);
  }
  // Every 16 bits of K or V of the block on the device, not in what the oracle reads.
  void fill_block(uint32_t part, uint32_t block, bool is_value, uint16_t bits) {
    Block& filled = parts_more_[part].blocks[block];
    const size_t n = (is_value ? filled.v : filled.k).stored.size() / sizeof bits;
    (is_value ? filled.on_device.v : filled.on_device.k) = upload(std::vector<uint16_t>(n, bits));
  }
  // V of the block is 0, for the oracle, too.
  void clear_values(uint32_t part, uint32_t block) {
    Block& cleared = parts_more_[part].blocks[block];
    for (std::vector<uint8_t>* bytes : {&cleared.v.stored, &cleared.v.oracle})
      std::fill(bytes->begin(), bytes->end(), uint8_t{0});
    cleared.on_device.v = upload(cleared.v.stored);
  }
  // K and V of the block lie in no allocation from now on: reading them is a fault.
  void lose_block(uint32_t part, uint32_t block) {
    cuda::KvBlock& lost = parts_more_[part].blocks[block].on_device;
    lost.k = lost.v = 4096;
  }
  uint32_t n_blocks(uint32_t part) const {
    return static_cast<uint32_t>(parts_more_[part].blocks.size());
  }

  void add_range(uint32_t part, uint32_t kv_head, uint32_t q_begin, uint32_t n_q,
                 uint64_t item_begin, uint64_t item_end) {
    ranges_.push_back({part, kv_head, q_begin, n_q, item_begin, item_end, 0, 0, is_prefill});
  }
  // All queries and kv heads of a part over all of its blocks.
  void add_ranges(uint32_t part) {
    const auto n_q = static_cast<uint32_t>(parts_more_[part].q_pos.size());
    for (uint32_t head = 0; head < shape.n_kv_heads; ++head)
      add_range(part, head, 0, n_q, 0, n_blocks(part));
  }

  // In launches that take so many slots of every range each.
  CudaResult run(uint64_t slots_per_launch = UINT64_MAX);
  CudaResult expected() const;  // kNotWritten where no range names the pair
  std::vector<float> mass(const std::vector<float>& lse, uint32_t width);
  std::vector<double> expected_mass(const std::vector<float>& lse, uint32_t width) const;
  // run() and mass() equal the oracle to `tolerance` of the largest value; run() also when all
  // ranges are of prompts, in f32 and in the type of K and V, and with the instructions of Hopper
  // where there are any.
  void check(double tolerance = 1e-5);
  // Of decoded tokens alone.
  void check_decode(double tolerance = 1e-5) { check_run(expected(), tolerance); }

 private:
  void check_run(const CudaResult& wanted, double tolerance);
  void check_prompts(const CudaResult& wanted, double tolerance);
  struct Rows {
    std::vector<uint8_t> stored;  // [head][token], without what lies behind the last row
    std::vector<uint8_t> oracle;  // the same rows in a type that the oracle reads
    kernels::ElementType oracle_type;
    uint64_t oracle_stride;
  };
  struct Block {
    Rows k, v;
    std::vector<uint32_t> pos;
    uint32_t first_pos, n_tokens;
    int one_head;
    cuda::KvBlock on_device;
  };
  struct Part {
    std::vector<float> q, weights;
    std::vector<uint32_t> q_pos, items;
    std::deque<Block> blocks;
  };

  static uint64_t stride(KvType type, uint32_t width, size_t gap) {
    if (type == KvType::kFp8) return width + gap;
    return row_stride(static_cast<kernels::ElementType>(type), width, gap);
  }
  Rows rows(KvType type, uint32_t width, uint32_t n_heads, uint64_t row_bytes, float scale);
  template <class T>
  uint64_t upload(const std::vector<T>& values) {
    auto array = std::make_shared<DeviceArray<T>>(values);
    kept_.push_back(array);
    return reinterpret_cast<uint64_t>(array->data());
  }
  // The rows of one item of a range as the oracle takes them; its weight row is set by the caller.
  kernels::KvRows oracle_rows(const Block& block, uint32_t kv_head) const;
  template <class Fn>  // fn(KvRows, AttentionShape) for each item of a range
  void for_each_item(const cuda::AttentionRange& range, Fn&& fn) const;
  kernels::AttentionShape oracle_shape(const Block& block) const;
  void launch(cuda::AttentionCall call, const cuda::AttentionUnits& units);
  KvType common_type() const;
  std::vector<bool> by_token() const;
  uint64_t upload_parts();

  uint32_t seed_ = 0, n_queries_ = 0;
  std::vector<cuda::KvFormat> formats_;
  std::vector<cuda::AttentionPart> parts_;
  std::deque<Part> parts_more_;
  std::vector<cuda::AttentionRange> ranges_;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace kvasir::test
