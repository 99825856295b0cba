// From a call of the ABI to the lists that the kernels read. Where K and V lie in host memory their
// blocks are listed wave by wave (carried_rows.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/attention_call.h"
#include "plugins/attention/cuda/block_tables.h"
#include "plugins/shared/attention_geometry.h"
#include "plugins/shared/packer.h"

namespace kvasir::attention {

using sdk::Packer;

// Reused from call to call.
struct CallLists {
  Packer packer;                    // formats, parts and all they name
  uint64_t formats = 0, parts = 0;  // offsets
  std::vector<cuda::AttentionRange> ranges;
  std::vector<bool> by_token, is_carried;  // of each part; is_carried: K and V in host memory
  cuda::KvType type = cuda::KvType::kMixed;
  uint32_t n_queries = 0;  // of the part with most
  uint64_t chosen = 0;     // offset of ChosenList [n_chosen], lists that are on the device
  uint32_t n_chosen = 0;
};

// What stays on the device: the tables of the parts that have lists there, others have none, and
// these lists. Refers to them.
struct DeviceLists {
  const kvasir_attn_lists& given;
  const std::vector<PartTable>& tables;  // [parts]
};

class CallBuilder {
 public:
  explicit CallBuilder(const Geometry& geometry);

  // Throws sdk::Error for what reaches beyond the views, the leases or the geometry, and for
  // element types that the kernels do not read. there: null, or what comes from the device.
  void build(const kvasir_attn_in& in, const DeviceLists* there, CallLists& out);

  cuda::AttentionShape shape() const;
  const std::vector<cuda::KvFormat>& formats() const { return formats_; }
  // Of K and V of every format that bind() told, or kMixed.
  cuda::KvType common_type() const;

 private:
  struct Part;  // one that is being built
  // before: the part before it, or null. table: null, or its blocks are there.
  void add_part(const kvasir_attn_part& part, const kvasir_attn_part* before,
                const PartTable* table, CallLists& out);
  void add_items(Part& part, const kvasir_attn_range& range, const PartTable& table);
  void add_chosen(const kvasir_attn_in& in, const DeviceLists& there, CallLists& out);
  void add_range(Part& part, const kvasir_attn_range& range, CallLists& out);
  uint64_t number_of(Part& part, uint64_t ordinal);  // of a block among those of the part
  // The block of a lease, made when first named; the lease was checked.
  void name_block(uint64_t number, const kvasir_lease& lease, CallLists& out);
  void note_type(uint32_t format, CallLists& out);

  const Geometry& geometry_;
  std::vector<cuda::KvFormat> formats_;  // those of bind(), then as rows of them are carried
  bool has_type_ = false;
  std::vector<cuda::AttentionPart> parts_;
  std::vector<cuda::KvBlock> blocks_;
  std::vector<uint32_t> number_of_;  // of each lease's block
  std::vector<uint32_t> items_;      // as the kernels number blocks
  std::vector<cuda::ChosenList> chosen_;
};

}  // namespace kvasir::attention
