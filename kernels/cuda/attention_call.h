// What a call of attention is told: lists in device memory, made by the host. Plain data, the same
// bytes for the host's compiler, nvcc and the emulation; addresses are those of the device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvasir::cuda {

// Element types of K and V. The numbers are those of the C ABI (KVASIR_DTYPE_*), which checks them
// where it meets this.
enum class KvType : uint32_t {
  kMixed = 0,  // of a call: more than one type, each row says which
  kF32 = 1,
  kF16 = 2,
  kBF16 = 3,
  kQ8_0 = 4,  // groups of 32 along the row: binary16 scale, 32 int8
  kQ4_0 = 5,  // groups of 32: binary16 scale, 16 bytes with elements i and 16 + i
  kFp8 = 6,   // e4m3, without infinities
};

// What a call's kernels are made of. kHopper only where hopper_problem() of runtime.h is empty.
enum class Instructions : uint32_t {
  kPortable = 0,  // of every device since 8.0
  kHopper = 1,    // products of 128 threads for prompts, where a call's shapes allow them
};

inline constexpr uint32_t kMaxHeadDim = 256;  // of K and of V: 8 elements per lane of a warp
// Slots of keys that one block of threads attends to. 256 keys of 128 in f16 are 128 KiB of K and
// V, to which the partial result adds 1/64; 128K tokens of 8 kv heads make 4,096 blocks of threads,
// 16K selected ones 512: enough for the 132 multiprocessors of an H100.
inline constexpr uint32_t kSplitSlots = 256;

struct AttentionShape {
  uint32_t n_q_heads, n_kv_heads, head_dim, v_dim;
  uint32_t block_size;  // tokens
  float softmax_scale;  // logit = softcap(softmax_scale * q.k) + log_weight
  float softcap;        // 0: none; else softcap * tanh(x / softcap)
};

struct KvFormat {
  KvType k_type, v_type;
  uint64_t k_token_stride, v_token_stride, k_head_stride, v_head_stride;  // bytes
};

// K and V of one block of tokens.
struct KvBlock {
  uint64_t k, v;  // of token 0, of kv head 0 or of the one head
  uint64_t pos;   // u32 [n_tokens]; 0: first_pos + token
  uint32_t first_pos, n_tokens;
  uint32_t format;       // into formats
  uint32_t is_one_head;  // 1: covers one kv head, no head stride is added
};

// Queries and keys with one rotation, distances and weights. Query i of head h:
// q + 4 * (i * q_stride + h * head_dim). A query sees a key at or before it whose distance is at
// least dist_min and below dist_max; UINT32_MAX: no limit.
struct AttentionPart {
  uint64_t q, q_pos;      // f32, u32 [queries]
  uint64_t q_stride;      // floats
  uint64_t blocks;        // KvBlock [block]
  uint64_t items;         // u32; 0: item i is block i
  uint64_t log_weight;    // f32 [item][weight_width]; 0: none
  uint32_t weight_width;  // 1 or the group size
  uint32_t by_token;      // 1: an item is block * block_size + token; 0: an item is a block
  uint32_t dist_min, dist_max;
};

// Items [item_begin, item_end) of a part for some queries of one kv head. A slot is a key: of block
// items there are block_size slots per item, those behind its tokens empty. For decoded tokens a
// range is cut into splits of kSplitSlots slots from its first item on; for queries of a prompt it
// is one split. A launch may take some of its slots, and later ones the others, in order: where one
// ends and the next begins is at a multiple of kSplitSlots, and changes no bit of a result.
struct AttentionRange {
  uint32_t part, kv_head, q_begin, n_q;
  uint64_t item_begin, item_end;
  uint64_t first_unit;      // of its units; a unit is (query, split), the split fastest
  uint64_t n_splits;        // of all its slots
  uint32_t is_prefill = 0;  // 1: attention_prefill, 0: attention_decode
  uint32_t reserved = 0;
  uint64_t slot_begin = 0, slot_end = 0;  // that this launch takes
  uint64_t first_block = 0;               // of threads in the launch of its kind
};

// Queries of a prompt's range that one block of threads attends to, from `first_query` of the
// range on: prefill_queries(shape) of them, or those that are left.
struct PrefillTile {
  uint32_t range, first_query;
};
inline constexpr uint32_t kPrefillRows = 64;  // (query, query head of the group) of a tile
inline constexpr uint32_t kRowState = 5;  // largest logit of a row so far, and sums of four lanes

// Where the partial results of a pair (query, kv head) lie: units [first, first + n) each.
struct UnitSpan {
  uint64_t first, n;
};
struct AttentionPair {
  uint32_t query, kv_head;
  uint64_t span_begin, span_end;  // into spans, in the order of merging
};

struct AttentionCall {
  AttentionShape shape;
  KvType type;  // of K and V of all formats that occur, or kMixed
  // What the products of prompts multiply: kF16 or kBF16 where K and V of all formats are of that
  // type, else kF32.
  KvType prefill_product = KvType::kF32;
  uint64_t formats, parts, ranges, spans, pairs, tiles;
  uint32_t n_ranges;  // for decoded tokens; those of prompts lie behind them
  uint32_t n_prefill_ranges;
  uint32_t n_pairs, n_tiles;
  uint64_t n_blocks;                // units of decoded tokens that the launch computes
  uint64_t n_prefill_blocks;        // and queries of prompts' ranges
  uint64_t partial_o, partial_lse;  // f32 [units][group_size][v_dim], [units][group_size]
  // f32 [units][group_size][kRowState] of prompts whose ranges take several launches; else 0
  uint64_t row_state = 0;
  uint64_t o, lse;  // f32 [queries][n_q_heads][v_dim], [queries][n_q_heads]
  Instructions instructions = Instructions::kPortable;
};

// Query heads of the group that a tile's rows hold, and queries; tiles of a launch hold different
// heads where the group has more.
inline uint32_t prefill_heads(const AttentionShape& shape) {
  const uint32_t group = shape.n_q_heads / shape.n_kv_heads;
  return group < kPrefillRows ? group : kPrefillRows;
}
inline uint32_t prefill_queries(const AttentionShape& shape) {
  return kPrefillRows / prefill_heads(shape);
}

// ---- mass ----

struct MassRange {
  uint64_t first_unit;  // of its units, splits of the slots that the launch takes
  uint64_t first_key;   // of its keys, in `value`
  uint64_t item_keys;   // u64 [items of the range]: keys before each; 0: an item is a key
};

struct MassCall {
  AttentionCall attention;  // shape, type, formats, parts, ranges
  uint64_t ranges;          // MassRange, of the same ranges
  uint64_t n_units;
  uint32_t width;  // 1: summed over the group; else group_size
  uint64_t lse;    // f32 [queries][n_q_heads], after the merge
  uint64_t value;  // f32 [keys][width]
};

}  // namespace kvasir::cuda
