// See attention_case.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/cuda/attention_case.h"

#include <cstdlib>
#include <numeric>
#include <string>

namespace kvasir::test {

namespace reference = kernels::reference;

namespace {

std::vector<double> to_doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

}  // namespace

std::vector<cuda::Instructions> all_instructions() {
  const char* named = std::getenv("KVASIR_TEST_INSTRUCTIONS");
  const auto is_wanted = [&](const char* name) { return !named || std::string(named) == name; };
  std::vector<cuda::Instructions> out;
  if (is_wanted("portable")) out.push_back(cuda::Instructions::kPortable);
  if (is_wanted("hopper") && cuda::hopper_problem().empty())
    out.push_back(cuda::Instructions::kHopper);
  return out;
}

CudaCase::Rows CudaCase::rows(KvType type, uint32_t width, uint32_t n_heads, uint64_t row_bytes,
                              float scale) {
  const size_t n = size_t{n_heads} * shape.block_size * width;
  Rows out;
  if (type == KvType::kFp8) {
    // Any code but those of NaN, small enough for logits near 1.
    out.oracle_type = kernels::ElementType::kF32;
    out.oracle_stride = width * sizeof(float);
    out.stored.assign(n / width * row_bytes, 0xff);
    std::vector<float> values(n);
    std::mt19937 random(++seed_);
    for (size_t i = 0; i < n; ++i) {
      const auto code = static_cast<uint8_t>((random() & 0x80u) | random() % 0x48u);
      out.stored[i / width * row_bytes + i % width] = code;
      values[i] = static_cast<float>(fp8_value(code));
    }
    out.oracle.resize(n * sizeof(float));
    std::memcpy(out.oracle.data(), values.data(), out.oracle.size());
    out.stored.resize(out.stored.size() - (row_bytes - width));
    return out;
  }
  out.oracle_type = static_cast<kernels::ElementType>(type);
  out.oracle_stride = row_bytes;
  out.oracle = store_rows(random_floats(n, scale, ++seed_), width, row_bytes, out.oracle_type);
  out.stored = out.oracle;
  out.stored.resize(out.stored.size() - (row_bytes - kernels::row_bytes(out.oracle_type, width)));
  return out;
}

kernels::AttentionShape CudaCase::oracle_shape(const Block& block) const {
  kernels::AttentionShape out;
  out.group_size = group();
  out.head_dim = shape.head_dim;
  out.v_dim = shape.v_dim;
  out.k_type = block.k.oracle_type;
  out.v_type = block.v.oracle_type;
  out.softmax_scale = shape.softmax_scale;
  out.softcap = shape.softcap;
  return out;
}

kernels::KvRows CudaCase::oracle_rows(const Block& block, uint32_t kv_head) const {
  const uint64_t head = block.one_head < 0 ? kv_head : 0;
  kernels::KvRows out;
  out.k = block.k.oracle.data() + head * shape.block_size * block.k.oracle_stride;
  out.v = block.v.oracle.data() + head * shape.block_size * block.v.oracle_stride;
  out.k_token_stride = block.k.oracle_stride;
  out.v_token_stride = block.v.oracle_stride;
  out.end = block.n_tokens;
  out.first_pos = block.first_pos;
  out.pos = block.pos.empty() ? nullptr : block.pos.data();
  return out;
}

template <class Fn>
void CudaCase::for_each_item(const cuda::AttentionRange& range, Fn&& fn) const {
  const Part& part = parts_more_[range.part];
  const cuda::AttentionPart& given = parts_[range.part];
  for (uint64_t item = range.item_begin; item < range.item_end; ++item) {
    const uint32_t index = part.items.empty() ? static_cast<uint32_t>(item) : part.items[item];
    const Block& block = part.blocks[given.by_token ? index / shape.block_size : index];
    kernels::KvRows rows = oracle_rows(block, range.kv_head);
    if (given.by_token) {
      rows.begin = index % shape.block_size;
      rows.end = rows.begin + 1;
    }
    if (!part.weights.empty()) {
      rows.log_weight = part.weights.data() + item * given.weight_width;
      rows.weight_width = given.weight_width;
    }
    fn(rows, oracle_shape(block));
  }
}

CudaResult CudaCase::expected() const {
  const uint32_t heads = shape.n_q_heads, v_dim = shape.v_dim;
  const size_t n = size_t{n_queries_} * heads;
  std::vector<double> o(n * v_dim, 0.0), lse(n, -INFINITY);
  std::vector<bool> is_named(n, false);
  for (const cuda::AttentionRange& range : ranges_) {
    const Part& part = parts_more_[range.part];
    const cuda::AttentionPart& given = parts_[range.part];
    for (uint32_t q = range.q_begin; q < range.q_begin + range.n_q; ++q) {
      const size_t head = size_t{q} * heads + size_t{range.kv_head} * group();
      for (uint32_t g = 0; g < group(); ++g) is_named[head + g] = true;
      for_each_item(range, [&](const kernels::KvRows& rows, const kernels::AttentionShape& s) {
        std::vector<double> more(group() * v_dim), more_lse(group());
        reference::attention(s, &part.q[head * shape.head_dim], q,
                             {part.q_pos.data(), given.dist_min, given.dist_max}, {&rows, 1},
                             more.data(), more_lse.data());
        for (uint32_t g = 0; g < group(); ++g) {
          reference::merge_attention(&o[(head + g) * v_dim], &lse[head + g], &more[g * v_dim],
                                     more_lse[g], v_dim);
        }
      });
    }
  }
  CudaResult out;
  for (size_t i = 0; i < n; ++i) {
    out.lse.push_back(is_named[i] ? static_cast<float>(lse[i]) : kNotWritten);
    for (uint32_t d = 0; d < v_dim; ++d)
      out.o.push_back(is_named[i] ? static_cast<float>(o[i * v_dim + d]) : kNotWritten);
  }
  return out;
}

std::vector<double> CudaCase::expected_mass(const std::vector<float>& lse, uint32_t width) const {
  std::vector<double> out;
  for (const cuda::AttentionRange& range : ranges_) {
    const Part& part = parts_more_[range.part];
    const cuda::AttentionPart& given = parts_[range.part];
    for_each_item(range, [&](const kernels::KvRows& rows, const kernels::AttentionShape& s) {
      const uint32_t n = rows.end - rows.begin;
      const size_t first = out.size();
      out.resize(first + size_t{n} * width, 0.0);
      for (uint32_t q = range.q_begin; q < range.q_begin + range.n_q; ++q) {
        const size_t head = size_t{q} * shape.n_q_heads + size_t{range.kv_head} * group();
        std::vector<double> mass(group() * n), final_lse(group());
        for (uint32_t g = 0; g < group(); ++g) final_lse[g] = lse[head + g];
        reference::attention_mass(s, &part.q[head * shape.head_dim], q,
                                  {part.q_pos.data(), given.dist_min, given.dist_max}, {&rows, 1},
                                  final_lse.data(), mass.data());
        for (uint32_t g = 0; g < group(); ++g)
          for (uint32_t i = 0; i < n; ++i)
            out[first + i * width + (width == 1 ? 0 : g)] += mass[g * n + i];
      }
    });
  }
  return out;
}

std::vector<bool> CudaCase::by_token() const {
  std::vector<bool> out;
  for (const cuda::AttentionPart& part : parts_) out.push_back(part.by_token != 0);
  return out;
}

cuda::KvType CudaCase::common_type() const {
  KvType type = formats_[0].k_type;
  for (const cuda::KvFormat& f : formats_)
    if (f.k_type != type || f.v_type != type) type = KvType::kMixed;
  return type;
}

uint64_t CudaCase::upload_parts() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    std::vector<cuda::KvBlock> blocks;
    for (const Block& block : parts_more_[i].blocks) blocks.push_back(block.on_device);
    parts_[i].blocks = upload(blocks);
  }
  return upload(parts_);
}

void CudaCase::launch(cuda::AttentionCall call, const cuda::AttentionUnits& units) {
  call.ranges = upload(units.ranges);
  call.tiles = upload(units.tiles);
  cuda::describe_units(units, call);
  cuda::attention_decode(call, {});
  cuda::attention_prefill(call, {});
}

CudaResult CudaCase::run(uint64_t slots_per_launch) {
  cuda::AttentionUnits units;
  cuda::plan_units(shape, ranges_, by_token(), 0, n_queries_, units);
  const size_t heads = size_t{n_queries_} * shape.n_q_heads;
  const DeviceArray<float> partial_o(units.n_units * group() * shape.v_dim);
  const DeviceArray<float> partial_lse(units.n_units * group());
  const DeviceArray<float> row_state(units.n_units * group() * cuda::kRowState);
  const DeviceArray<float> o(std::vector<float>(heads * shape.v_dim, kNotWritten));
  const DeviceArray<float> lse(std::vector<float>(heads, kNotWritten));
  cuda::AttentionCall call{};
  call.shape = shape;
  call.type = common_type();
  call.formats = upload(formats_);
  call.parts = upload_parts();
  call.spans = upload(units.spans);
  call.pairs = upload(units.pairs);
  call.n_pairs = static_cast<uint32_t>(units.pairs.size());
  call.prefill_product = product;
  call.instructions = instructions;
  call.partial_o = reinterpret_cast<uint64_t>(partial_o.data());
  call.partial_lse = reinterpret_cast<uint64_t>(partial_lse.data());
  call.row_state = reinterpret_cast<uint64_t>(row_state.data());
  call.o = reinterpret_cast<uint64_t>(o.data());
  call.lse = reinterpret_cast<uint64_t>(lse.data());
  if (slots_per_launch == UINT64_MAX) {
    launch(call, units);
  } else {
    std::vector<uint32_t> all(units.ranges.size());
    std::iota(all.begin(), all.end(), 0);
    uint64_t n_slots = 1;
    for (const cuda::AttentionRange& range : units.ranges)
      n_slots = std::max(n_slots, range.slot_end);
    cuda::AttentionUnits cut;
    for (uint64_t slot = 0; slot < n_slots; slot += slots_per_launch) {
      cuda::cut_units(shape, units, all, slot, slot + slots_per_launch, cut);
      launch(call, cut);
    }
  }
  cuda::attention_merge(call, {});
  return {o.values(), lse.values()};
}

std::vector<float> CudaCase::mass(const std::vector<float>& lse, uint32_t width) {
  std::vector<cuda::MassRange> ranges;
  uint64_t n_units = 0, n_keys = 0;
  for (const cuda::AttentionRange& range : ranges_) {
    const bool by_token = parts_[range.part].by_token != 0;
    std::vector<uint64_t> item_keys;
    uint64_t keys = 0;
    for_each_item(range, [&](const kernels::KvRows& rows, const kernels::AttentionShape&) {
      item_keys.push_back(keys);
      keys += rows.end - rows.begin;
    });
    ranges.push_back({n_units, n_keys, by_token ? 0 : upload(item_keys)});
    n_units += cuda::n_splits_of(shape, range, by_token);
    n_keys += keys;
  }
  const DeviceArray<float> value(n_keys * width);
  cuda::MassCall call{};
  call.attention.shape = shape;
  call.attention.type = common_type();
  call.attention.formats = upload(formats_);
  call.attention.parts = upload_parts();
  call.attention.ranges = upload(ranges_);
  call.attention.n_ranges = static_cast<uint32_t>(ranges_.size());
  call.ranges = upload(ranges);
  call.n_units = n_units;
  call.width = width;
  call.lse = upload(lse);
  call.value = reinterpret_cast<uint64_t>(value.data());
  cuda::attention_mass(call, {});
  return value.values();
}

void CudaCase::check_run(const CudaResult& wanted, double tolerance) {
  const CudaResult actual = run();
  check_close(actual.o, to_doubles(wanted.o), tolerance);
  check_close(actual.lse, to_doubles(wanted.lse), tolerance);
}

// All ranges as those of prompts, in the type of K and V.
void CudaCase::check_prompts(const CudaResult& wanted, double tolerance) {
  const std::vector<cuda::AttentionRange> ranges = ranges_;
  for (cuda::AttentionRange& range : ranges_) range.is_prefill = 1;
  if (instructions == cuda::Instructions::kPortable) check_run(wanted, tolerance);
  product = common_type();
  // Roundings of Q and P, 2^-11 and 2^-8, and logits of a few times 1.
  if (product == KvType::kF16) check_run(wanted, std::max(tolerance, 4e-3));
  if (product == KvType::kBF16) check_run(wanted, std::max(tolerance, 3e-2));
  product = KvType::kF32;
  ranges_ = ranges;
}

void CudaCase::check(double tolerance) {
  const CudaResult wanted = expected();
  const bool is_half = common_type() == KvType::kF16 || common_type() == KvType::kBF16;
  for (const cuda::Instructions those : all_instructions()) {
    if (those == cuda::Instructions::kHopper && !is_half) continue;  // the same kernels run
    CAPTURE(static_cast<int>(those));
    instructions = those;
    check_run(wanted, tolerance);
    check_prompts(wanted, tolerance);
  }
  instructions = cuda::Instructions::kPortable;
  for (const uint32_t width : {1u, group()})
    check_close(mass(wanted.lse, width), expected_mass(wanted.lse, width), tolerance);
}

}  // namespace kvasir::test
