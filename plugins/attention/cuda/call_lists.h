// From a call of the ABI to the lists that the kernels read, and, where K and V lie in host memory,
// the rows that the call names.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/attention_call.h"
#include "plugins/shared/attention_geometry.h"
#include "plugins/shared/packer.h"

namespace kvasir::attention {

using sdk::Packer;

// Reused from call to call.
struct CallLists {
  Packer packer;                    // formats, parts and all they name
  uint64_t formats = 0, parts = 0;  // offsets
  std::vector<cuda::AttentionRange> ranges;
  std::vector<bool> by_token;  // of each part
  cuda::KvType type = cuda::KvType::kMixed;
  uint32_t n_queries = 0;  // of the part with most
};

class CallBuilder {
 public:
  explicit CallBuilder(const Geometry& geometry);

  // Throws sdk::Error for what reaches beyond the views, the leases or the geometry, and for
  // element types that the kernels do not read. with_values: V is attended to.
  void build(const kvasir_attn_in& in, bool with_values, CallLists& out);

  cuda::AttentionShape shape() const;
  // Of K and V of every format that bind() told, or kMixed.
  cuda::KvType common_type() const;

 private:
  struct Part;  // one that is being built
  void add_part(const kvasir_attn_part& part, CallLists& out);
  void add_range(Part& part, const kvasir_attn_range& range, CallLists& out);
  uint64_t number_of(Part& part, uint64_t ordinal);  // of a block among those that travel
  // The block of a lease and kv head, made when first named; the lease was checked.
  void name_block(Part& part, uint64_t place, const kvasir_lease& lease, uint32_t kv_head,
                  CallLists& out);
  // Tokens [begin, end) of head `head` of the lease go to the block at `place`.
  void carry_rows(const kvasir_lease& lease, uint64_t head, uint64_t place, uint32_t begin,
                  uint32_t end, CallLists& out);
  void note_type(uint32_t format, CallLists& out);

  const Geometry& geometry_;
  std::vector<cuda::KvFormat> formats_;  // those of bind(), then as rows of them are carried
  bool with_values_ = true;
  bool has_type_ = false;
  std::vector<cuda::AttentionPart> parts_;
  std::vector<cuda::KvBlock> blocks_;
  std::vector<uint32_t> place_of_;  // of each lease's block
  std::vector<uint32_t> items_;     // as the kernels number blocks
};

}  // namespace kvasir::attention
