// Everything a representative on a device does besides saying its name: records in device memory,
// built when a block is full from its keys where they lie, scored there. The twin of
// BlockRepresentative<VectorRecords> on the host. For plugins that link kvasir::cuda.
//
//   class Mine : public sdk::DeviceRepresentative {
//    public:
//     static constexpr kvasir_desc kDesc = sdk::device_representative({.id = …});
//     Mine(const sdk::Host&, const sdk::Options& options)
//         : DeviceRepresentative(kDesc.id, cuda::RecordKind::kMean, options, 1.0f) {}
//     const void* get_extension(const char* id) const { return stream_extension<Mine>(id); }
//   };
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/leased_keys.h>
#include <kvasir/sdk/plugin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/record_scores.h"
#include "plugins/shared/device_buffer.h"
#include "plugins/shared/device_work.h"
#include "plugins/shared/kv_type.h"
#include "plugins/shared/record_options.h"

namespace kvasir::sdk {

inline constexpr const char* kDeviceRecordTypeNames[] = {"f32", "f16"};
inline constexpr kvasir_option_schema kDeviceRecordTypeOption =
    enum_option({.key = "dtype", .help = "element type of the records"}, kDeviceRecordTypeNames, 1);

// What is alike in all descriptions: keys, queries, records and scores lie on the device.
constexpr kvasir_desc device_representative(Description d) {
  d.kind = KVASIR_KIND_REPRESENTATIVE;
  d.version = "0.1.0";
  d.vendor = "Kvasir";
  d.license = "Apache-2.0";
  d.provides = KVASIR_PROVIDE_SCORES | KVASIR_PROVIDE_SUMMED_SCORES;
  d.dtypes = kElementTypes;
  d.mem_kinds_read = d.mem_kinds_write = KVASIR_MEM_BIT(KVASIR_MEM_DEVICE);
  return describe(d);
}

class DeviceRepresentative {
 public:
  DeviceRepresentative(const char* id, cuda::RecordKind kind, const Options& options,
                       float box_scale)
      : id_(id),
        kind_(kind),
        type_(options.choice("dtype") == 0 ? cuda::KvType::kF32 : cuda::KvType::kF16),
        box_scale_(box_scale) {}
  DeviceRepresentative(const DeviceRepresentative&) = delete;

  void validate(const kvasir_geometry& g) const {
    if (g.n_kv_heads == 0 || g.n_q_heads == 0 || g.n_q_heads % g.n_kv_heads != 0)
      fail_invalid(std::to_string(g.n_q_heads) + " query heads cannot be shared out to " +
                   std::to_string(g.n_kv_heads) + " kv heads");
    if (g.head_dim == 0 || g.block_size == 0)
      fail_invalid("head_dim and block_size must be positive");
    if (g.head_dim > cuda::kMaxHeadDim)
      throw Error(KVASIR_ERR_UNSUPPORTED,
                  "heads of " + std::to_string(g.head_dim) + " elements, " + id_ +
                      " summarises at most " + std::to_string(cuda::kMaxHeadDim) +
                      ": take [storage] plugin = \"dram\" and a representative of the host");
    for (const kvasir_kv_format& format : formats_of(g)) {
      const size_t group = kernels::group_elements(element_type(format.dtype_k));
      if (g.head_dim % group != 0)
        fail_invalid("keys in groups of " + std::to_string(group) + " elements, and head_dim = " +
                     std::to_string(g.head_dim) + " is no multiple of that");
    }
    const std::string problem = cuda::device_problem();
    if (!problem.empty()) throw Error(KVASIR_ERR_UNSUPPORTED, problem);
  }

  void bind(const kvasir_geometry& geometry) {
    validate(geometry);
    n_q_heads_ = geometry.n_q_heads;
    n_kv_heads_ = geometry.n_kv_heads;
    head_dim_ = geometry.head_dim;
    const uint64_t n_blocks =
        (uint64_t{geometry.max_context} + geometry.block_size - 1) / geometry.block_size;
    most_list_bytes_ = geometry.max_sequences *
                       (n_blocks * sizeof(uint64_t) +
                        n_kv_heads_ * (sizeof(cuda::ScoreList) + n_blocks * sizeof(uint32_t)));
    keys_ = LeasedKeys(geometry);
    mem_kinds_.clear();
    for (const kvasir_kv_format& format : formats_of(geometry))
      mem_kinds_.push_back(format.mem_kind);
    work_.open();
  }

  void lend_stream(kvasir_stream_handle stream) { work_.lend(stream); }

  void layout(kvasir_layout& out) const {
    out.flags = KVASIR_LAYOUT_CONTENT_ONLY | KVASIR_LAYOUT_SEALED_ONLY;
    out.record_bytes = record_bytes();
    out.format = record_format(n_vectors(), static_cast<uint32_t>(type_));
    out.mem_kind = KVASIR_MEM_DEVICE;
    // Lists of a call, here and on the device.
    out.memory.state_bytes = 2 * most_list_bytes_;
  }

  void update(const Step& step, const UpdateItems& items) {
    std::vector<cuda::RecordBlock> blocks;
    for (const kvasir_update_item& item : items)
      if (item.flags & KVASIR_ITEM_SEALED) add_block(step, item, blocks);
    if (blocks.empty()) return;
    const auto differs = [&](const cuda::RecordBlock& b) { return b.type != blocks[0].type; };
    const bool is_mixed = std::any_of(blocks.begin(), blocks.end(), differs);
    work_.run([&] {
      packer_.clear();
      const uint64_t list = packer_.put(blocks);
      cuda::build_records(
          {send(packer_, sent_, work_.stream()) + list, static_cast<uint32_t>(blocks.size()),
           head_dim_, is_mixed ? cuda::KvType::kMixed : blocks[0].type, kind_, type_},
          work_.stream());
    });
  }

  void score(const Step& step, const kvasir_score_in& in, kvasir_score_out& out) {
    check_slab(step);
    check_query(step, in.q);
    const bool summed = in.flags & KVASIR_SCORE_SUMMED;
    const uint32_t group = n_q_heads_ / n_kv_heads_, n_heads = summed ? 1 : group;
    const uint64_t n_lists = uint64_t{step.n_seqs()} * n_kv_heads_;
    check_scores(out, n_lists * n_heads);
    uint64_t n_units = 0;
    const uint64_t list = pack_lists(step, in.q, out, n_heads, n_units);
    if (n_units == 0) return;
    if (n_units > INT32_MAX) fail_invalid("score: more candidates than a launch has blocks for");
    work_.run([&] {
      cuda::score_records(
          {send(packer_, sent_, work_.stream()) + list, n_units, static_cast<uint32_t>(n_lists),
           group, head_dim_, step.raw().slab->page_blocks, record_bytes(), kind_, type_,
           summed ? 1u : 0u, box_scale_},
          work_.stream());
    });
  }

 private:
  uint32_t n_vectors() const { return kind_ == cuda::RecordKind::kMinMax ? 2 : 1; }
  uint64_t record_bytes() const {
    const uint64_t element = type_ == cuda::KvType::kF32 ? 4 : 2;
    return (uint64_t{n_vectors()} * head_dim_ * element + 3) / 4 * 4;
  }

  void check_slab(const Step& step) const {
    const kvasir_slab* slab = step.raw().slab;
    if (!slab || slab->mem_kind != KVASIR_MEM_DEVICE || slab->record_bytes != record_bytes() ||
        slab->page_blocks == 0)
      fail_invalid("the records are not those that layout() asked for, in device memory");
  }
  void check_query(const Step& step, const kvasir_view& q) const {
    const auto head_bytes = static_cast<int64_t>(head_dim_ * sizeof(float));
    if (q.mem_kind != KVASIR_MEM_DEVICE || q.dtype != KVASIR_DTYPE_F32 || q.rank != 3 ||
        q.shape[0] < step.n_seqs() || q.shape[1] != n_q_heads_ || q.shape[2] != head_dim_ ||
        q.stride[1] != head_bytes || q.stride[0] < head_bytes * n_q_heads_)
      fail_invalid("score: q must be f32 [" + std::to_string(step.n_seqs()) + "][" +
                   std::to_string(n_q_heads_) + "][" + std::to_string(head_dim_) +
                   "], each query contiguous, in device memory");
  }
  void check_scores(const kvasir_score_out& out, uint64_t n_lists) const {
    const kvasir_view& value = out.value;
    if (value.mem_kind != KVASIR_MEM_DEVICE || value.dtype != KVASIR_DTYPE_F32 || value.rank != 1 ||
        value.shape[0] < out.offsets[n_lists] || !value.data)
      fail_invalid("score: the scores must be f32 [" + std::to_string(out.offsets[n_lists]) +
                   "] in device memory");
  }

  void add_block(const Step& step, const kvasir_update_item& item,
                 std::vector<cuda::RecordBlock>& out) const {
    check_slab(step);
    for (uint32_t head = 0; head < n_kv_heads_; ++head) {
      const HeadKeys keys = keys_.keys(item.lease, head, item.block, item.n_tokens);
      if (mem_kinds_[item.lease->format] != KVASIR_MEM_DEVICE)
        fail_invalid("block " + std::to_string(item.block) + " lies in host memory; " + id_ +
                     " reads K in device memory: take [storage] plugin = \"gpu\"");
      out.push_back({address(keys.k), keys.token_stride,
                     address(step.record_to_write(item.seq, head, item.block)), keys.n_tokens,
                     kv_type(keys.dtype)});
    }
  }

  // Where the list of ScoreList lies among what is packed.
  uint64_t pack_lists(const Step& step, const kvasir_view& q, const kvasir_score_out& out,
                      uint32_t n_heads, uint64_t& n_units) {
    const kvasir_slab& slab = *step.raw().slab;
    packer_.clear();
    packer_.reserve(Packer::kAlignment);  // offset 0 says: none
    const uint64_t pages =
        packer_.put(slab.pages, slab.seq_pages[step.n_seqs()] * sizeof(uint64_t));
    const bool is_shared =
        step.raw().candidates && step.raw().candidates->scope == KVASIR_SCOPE_SEQUENCE;
    lists_.clear();
    for (uint32_t seq = 0; seq < step.n_seqs(); ++seq) {
      for (uint32_t head = 0; head < n_kv_heads_; ++head) {
        const Candidates from = step.candidates(seq, head);
        const uint64_t* offsets = out.offsets + (uint64_t{seq} * n_kv_heads_ + head) * n_heads;
        for (uint32_t g = 0; g < n_heads; ++g)
          if (offsets[g + 1] < offsets[g] || offsets[g + 1] - offsets[g] != from.size())
            fail_invalid("score: offsets do not fit the candidates");
        const uint32_t group = n_q_heads_ / n_kv_heads_;
        cuda::ScoreList list{};
        list.first_unit = n_units;
        list.pages = pages + slab.seq_pages[seq] * sizeof(uint64_t);
        list.candidates = is_shared && head > 0 ? lists_.back().candidates : pack_candidates(from);
        list.q = address(q.data) + seq * static_cast<uint64_t>(q.stride[0]) +
                 uint64_t{head} * group * static_cast<uint64_t>(q.stride[1]);
        list.score = address(out.value.data) + offsets[0] * sizeof(float);
        list.n = static_cast<uint32_t>(from.size());
        list.first_block = from.size() == 0 ? 0 : from[0];
        list.n_pages = static_cast<uint32_t>(slab.seq_pages[seq + 1] - slab.seq_pages[seq]);
        list.kv_head = head;
        n_units += cuda::score_units(list.n);
        lists_.push_back(list);
      }
    }
    const uint64_t at = packer_.put(lists_);
    for (size_t i = 0; i < lists_.size(); ++i) {
      const uint64_t list = at + i * sizeof(cuda::ScoreList);
      packer_.is_address(list + offsetof(cuda::ScoreList, pages));
      if (lists_[i].candidates) packer_.is_address(list + offsetof(cuda::ScoreList, candidates));
    }
    return at;
  }

  // 0 where they follow each other: the first says it all.
  uint64_t pack_candidates(const Candidates& from) {
    const uint64_t n = from.size();
    if (n == 0 || from.run_from(0, n) == n) return 0;
    named_.resize(n);
    for (uint64_t i = 0; i < n; ++i) named_[i] = from[i];
    return packer_.put(named_);
  }

  const std::string id_;
  const cuda::RecordKind kind_;
  const cuda::KvType type_;
  const float box_scale_;
  uint32_t n_q_heads_ = 0, n_kv_heads_ = 0, head_dim_ = 0;
  uint64_t most_list_bytes_ = 0;
  LeasedKeys keys_;
  std::vector<uint32_t> mem_kinds_;  // of the formats
  DeviceWork work_;
  Packer packer_;
  DeviceBuffer sent_;
  std::vector<cuda::ScoreList> lists_;
  std::vector<uint32_t> named_;
};

}  // namespace kvasir::sdk
