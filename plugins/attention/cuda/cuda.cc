// Attention on an NVIDIA GPU over the blocks where they lie in device memory; of K and V in host
// memory the rows that a call names travel with it.
// Partial results carry (o, lse) and merge exactly; arXiv:2205.14135, arXiv:1805.02867.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/plugin.h>
#include <kvasir/sdk/view.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/attention_mass.h"
#include "kernels/cuda/attention_merge.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/attention_prefill.h"
#include "plugins/attention/cuda/call_lists.h"
#include "plugins/shared/device_buffer.h"
#include "plugins/shared/element_type.h"

namespace {
using namespace kvasir;
using attention::CallLists;
using attention::Geometry;
using sdk::address;
using sdk::DeviceBuffer;
using sdk::on_device;
using sdk::Packer;

// A query of 32 heads of 128 has 16.5 KiB of partial results per 256 keys: a thousand queries over
// 4K tokens fill the default, one query over 1M tokens needs 66 MiB.
constexpr const char* kArithmetic[] = {"auto", "f32"};
constexpr std::array kOptions = {
    sdk::enum_option({.key = "arithmetic",
                      .help = "of a prompt's queries: products in the type of K and V where the "
                              "model computes in bf16 or int8 and both are f16, or both bf16 "
                              "(auto), or f32 always"},
                     kArithmetic, 0),
    sdk::int_option({.key = "partial_mib",
                     .help = "MiB of device memory for partial results: a prompt's queries are "
                             "attended to in groups that fit, at least one at a time"},
                    256, 1, 65536),
};
constexpr uint32_t kMemKinds = KVASIR_MEM_BIT(KVASIR_MEM_HOST) | KVASIR_MEM_BIT(KVASIR_MEM_DEVICE);

bool is_on_device(const kvasir_view& view) { return view.mem_kind == KVASIR_MEM_DEVICE; }

class Cuda {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe(
      {.kind = KVASIR_KIND_ATTENTION,
       .id = "kvasir.cuda",
       .version = "0.1.0",
       .name = "CUDA attention",
       .vendor = "Kvasir",
       .license = "Apache-2.0",
       .summary = "Attention on an NVIDIA GPU over f32, f16, bf16, q8_0, q4_0 and fp8_e4m3 blocks.",
       .options = kOptions,
       .provides = KVASIR_PROVIDE_MASS | KVASIR_PROVIDE_LOG_WEIGHT |
                   KVASIR_PROVIDE_HEAD_LOG_WEIGHT | KVASIR_PROVIDE_TOKEN_ITEMS |
                   KVASIR_PROVIDE_DISTANCE,
       .dtypes = sdk::kElementTypes,
       .mem_kinds_read = kMemKinds,
       .mem_kinds_write = kMemKinds});

  Cuda(const sdk::Host&, const sdk::Options& options)
      : partial_bytes_(uint64_t{options.u32("partial_mib")} << 20),
        follows_model_(options.choice("arithmetic") == 0) {}
  ~Cuda() { cuda::destroy_stream(stream_); }
  Cuda(const Cuda&) = delete;

  void validate(const kvasir_geometry& geometry) {
    if (std::max(geometry.head_dim, geometry.v_dim) > cuda::kMaxHeadDim) {
      throw sdk::Error(KVASIR_ERR_UNSUPPORTED,
                       "heads of " + std::to_string(std::max(geometry.head_dim, geometry.v_dim)) +
                           " elements, kvasir.cuda attends to at most " +
                           std::to_string(cuda::kMaxHeadDim) +
                           ": take [attention] plugin = \"cpu\" for this model");
    }
    const std::string problem = cuda::device_problem();
    if (!problem.empty()) throw sdk::Error(KVASIR_ERR_UNSUPPORTED, problem);
  }

  void bind(const kvasir_geometry& geometry) {
    validate(geometry);
    geometry_.emplace(geometry);
    builder_.emplace(*geometry_);
    const cuda::KvType stored = builder_->common_type();
    const bool is_half = stored == cuda::KvType::kF16 || stored == cuda::KvType::kBF16;
    const bool rounds = follows_model_ && geometry.compute == KVASIR_DTYPE_BF16;
    prefill_product_ = rounds && is_half ? stored : cuda::KvType::kF32;
    on_device([&] { stream_ = cuda::make_stream(); });
  }

  void plan(const kvasir_attn_shape& shape, kvasir_attn_plan& out) {
    const uint64_t units = uint64_t{geometry_->n_kv_heads} *
                           (shape.max_keys + cuda::kSplitSlots - 1) / cuda::kSplitSlots;
    const uint64_t per_query = units * cuda::partial_bytes_per_unit(builder_->shape());
    const uint64_t partial =
        std::min(per_query * shape.max_queries, std::max(partial_bytes_, per_query));
    const uint64_t floats = uint64_t{geometry_->head_dim} + geometry_->v_dim + 1;
    out.scratch_bytes =
        partial + uint64_t{shape.max_queries} * geometry_->n_q_heads * floats * sizeof(float);
  }

  void run(const sdk::Step&, const kvasir_attn_in& in, kvasir_attn_out& views) {
    on_device([&] {
      try {
        run_on_device(in, views);
      } catch (...) {
        cuda::wait(stream_);  // nothing may still use the buffers
        throw;
      }
    });
  }

  void mass(const sdk::Step&, const kvasir_attn_in& in, const kvasir_attn_mass& views) {
    on_device([&] { mass_on_device(in, views); });
  }

 private:
  size_t n_heads(uint64_t n_queries) const { return n_queries * geometry_->n_q_heads; }

  // Queries [begin, end) whose partial results fit together, at least one; units of each query.
  uint32_t end_of_wave(const std::vector<uint64_t>& units, uint32_t begin,
                       uint64_t unit_bytes) const {
    uint64_t n_units = 0;
    uint32_t end = begin;
    while (end < units.size()) {
      n_units += units[end];
      // A launch has less than 2^31 blocks.
      if (end > begin && (n_units * unit_bytes > partial_bytes_ || n_units > INT32_MAX)) break;
      ++end;
    }
    return end;
  }

  std::vector<uint64_t> units_of_queries() const {
    std::vector<uint64_t> units(lists_.n_queries, 0);
    for (const cuda::AttentionRange& range : lists_.ranges) {
      const uint64_t n = cuda::n_units_of(builder_->shape(), range, lists_.by_token[range.part]);
      for (uint32_t q = range.q_begin; q < range.q_begin + range.n_q; ++q) units[q] += n;
    }
    return units;
  }

  cuda::AttentionCall call_at(uint64_t base) const {
    cuda::AttentionCall call{};
    call.shape = builder_->shape();
    call.type = lists_.type;
    call.prefill_product = prefill_product_;
    call.formats = base + lists_.formats;
    call.parts = base + lists_.parts;
    return call;
  }

  void run_on_device(const kvasir_attn_in& in, const kvasir_attn_out& views) {
    builder_->build(in, true, lists_);
    cuda::AttentionCall call = call_at(sdk::send(lists_.packer, sent_, stream_));
    const bool to_host = !is_on_device(views.o);
    if (to_host != !is_on_device(views.lse))
      sdk::fail_invalid("o and lse must lie in the same kind of memory");
    const size_t heads = n_heads(lists_.n_queries), o_floats = heads * geometry_->v_dim;
    call.o = to_host ? results_.ensure((o_floats + heads) * sizeof(float)) : address(views.o.data);
    call.lse = to_host ? call.o + o_floats * sizeof(float) : address(views.lse.data);
    if (to_host) host_results_.resize(o_floats + heads);

    const std::vector<uint64_t> units = units_of_queries();
    const uint64_t unit_bytes = cuda::partial_bytes_per_unit(call.shape);
    named_.clear();
    for (uint32_t begin = 0; begin < lists_.n_queries;) {
      const uint32_t end = end_of_wave(units, begin, unit_bytes);
      run_wave(call, begin, end);
      begin = end;
    }
    if (to_host) {
      cuda::copy_to_host(host_results_.data(), results_.data(),
                         host_results_.size() * sizeof(float), stream_);
    }
    cuda::wait(stream_);
    if (to_host) store(host_results_.data(), host_results_.data() + o_floats, views);
  }

  void run_wave(cuda::AttentionCall call, uint32_t begin, uint32_t end) {
    cuda::plan_units(call.shape, lists_.ranges, lists_.by_token, begin, end, units_);
    const uint64_t heads = units_.n_all_units() * geometry_->group_size();
    cuda::wait(stream_);  // the wave before has the buffers
    wave_.clear();
    const uint64_t ranges = wave_.put(units_.ranges), spans = wave_.put(units_.spans),
                   pairs = wave_.put(units_.pairs), tiles = wave_.put(units_.tiles);
    const uint64_t base = sdk::send(wave_, sent_wave_, stream_);
    call.ranges = base + ranges;
    call.spans = base + spans;
    call.pairs = base + pairs;
    call.tiles = base + tiles;
    cuda::describe_units(units_, call);
    call.partial_o = partial_.ensure(heads * (uint64_t{geometry_->v_dim} + 1) * sizeof(float));
    call.partial_lse = call.partial_o + heads * geometry_->v_dim * sizeof(float);
    cuda::attention_decode(call, stream_);
    cuda::attention_prefill(call, stream_);
    cuda::attention_merge(call, stream_);
    named_.insert(named_.end(), units_.pairs.begin(), units_.pairs.end());
  }

  // The pairs that ranges name; others stay untouched.
  void store(const float* o, const float* lse, const kvasir_attn_out& views) const {
    float* const to_o = sdk::floats(views.o, "o");
    float* const to_lse = sdk::floats(views.lse, "lse");
    const size_t group = geometry_->group_size(), v_dim = geometry_->v_dim;
    for (const cuda::AttentionPair& pair : named_) {
      const size_t head = n_heads(pair.query) + pair.kv_head * group;
      std::copy_n(o + head * v_dim, group * v_dim, to_o + head * v_dim);
      std::copy_n(lse + head, group, to_lse + head);
    }
  }

  void mass_on_device(const kvasir_attn_in& in, const kvasir_attn_mass& views) {
    builder_->build(in, false, lists_);
    cuda::MassCall call{};
    call.width = views.width;
    const uint64_t n_keys = plan_mass(in, views, call);
    call.attention = call_at(0);  // until the place of the lists is known
    Packer& packer = lists_.packer;
    call.attention.ranges = packer.put(lists_.ranges);
    call.attention.n_ranges = static_cast<uint32_t>(lists_.ranges.size());
    call.ranges = packer.put(mass_ranges_);
    for (size_t i = 0; i < mass_ranges_.size(); ++i) {
      if (mass_ranges_[i].item_keys != 0)
        packer.is_address(call.ranges + i * sizeof(cuda::MassRange) +
                          offsetof(cuda::MassRange, item_keys));
    }
    const uint64_t lse =
        is_on_device(views.lse)
            ? 0
            : packer.put(sdk::floats(views.lse, "lse"), n_heads(lists_.n_queries) * sizeof(float));
    const uint64_t base = sdk::send(packer, sent_, stream_);
    for (uint64_t* field :
         {&call.attention.formats, &call.attention.parts, &call.attention.ranges, &call.ranges})
      *field += base;
    call.lse = is_on_device(views.lse) ? address(views.lse.data) : base + lse;
    const bool to_host = !is_on_device(views.value);
    const uint64_t bytes = n_keys * views.width * sizeof(float);
    call.value = to_host ? results_.ensure(bytes) : address(views.value.data);
    cuda::attention_mass(call, stream_);
    if (to_host)
      cuda::copy_to_host(sdk::floats(views.value, "mass"), results_.data(), bytes, stream_);
    cuda::wait(stream_);
  }

  // Units and keys of every range; returns the number of keys.
  uint64_t plan_mass(const kvasir_attn_in& in, const kvasir_attn_mass& views,
                     cuda::MassCall& call) {
    mass_ranges_.clear();
    uint64_t n_keys = 0;
    size_t index = 0;
    for (const kvasir_attn_part& part : attention::parts_of(in)) {
      for (const kvasir_attn_range& range : attention::ranges_of(part)) {
        cuda::MassRange to{call.n_units, n_keys, 0};
        item_keys_.clear();
        uint64_t keys = 0;
        for (uint64_t i = range.item_begin; i < range.item_end; ++i) {
          item_keys_.push_back(keys);
          keys += attention::keys_of_item(*geometry_, part, i);
        }
        if (part.unit == KVASIR_UNIT_BLOCK) to.item_keys = lists_.packer.put(item_keys_);
        mass_ranges_.push_back(to);
        call.n_units += cuda::n_splits_of(builder_->shape(), lists_.ranges[index],
                                          lists_.by_token[lists_.ranges[index].part]);
        n_keys += keys;
        if (n_keys != views.range_offsets[++index]) {
          sdk::fail_invalid("mass: range " + std::to_string(index - 1) + " has " +
                            std::to_string(keys) + " keys, its offsets say another number");
        }
      }
    }
    return n_keys;
  }

  const uint64_t partial_bytes_;
  const bool follows_model_;
  cuda::KvType prefill_product_ = cuda::KvType::kF32;
  std::optional<Geometry> geometry_;
  std::optional<attention::CallBuilder> builder_;
  cuda::Stream stream_;
  CallLists lists_;
  cuda::AttentionUnits units_;
  Packer wave_;
  DeviceBuffer sent_, sent_wave_, partial_, results_;
  std::vector<float> host_results_;
  std::vector<cuda::AttentionPair> named_;
  std::vector<cuda::MassRange> mass_ranges_;
  std::vector<uint64_t> item_keys_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_ATTENTION, "kvasir.cuda", "0.1.0", Cuda)
