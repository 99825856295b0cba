// How a storage lays out a block of K and V, and in which element types. For plugins that link
// kvasir::kernels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/instance.h>
#include <kvasir/sdk/error.h>
#include <kvasir/sdk/options.h>

#include <cstdint>
#include <string>

#include "kernels/element_type.h"
#include "plugins/shared/element_type.h"

namespace kvasir::sdk {

// Options type_k and type_v of every storage in host memory.
struct KvTypes {
  uint32_t k = KVASIR_DTYPE_F16, v = KVASIR_DTYPE_F16;

  static constexpr const char* kNames[] = {"f32", "f16", "bf16", "q8_0", "q4_0", "fp8_e4m3"};
  static constexpr uint32_t kTypes[] = {KVASIR_DTYPE_F32,  KVASIR_DTYPE_F16,
                                        KVASIR_DTYPE_BF16, KVASIR_DTYPE_Q8_0,
                                        KVASIR_DTYPE_Q4_0, KVASIR_DTYPE_FP8_E4M3};

  static constexpr kvasir_option_schema option_k() {
    return enum_option({.key = "type_k", .help = "element type of stored keys"}, kNames, 1);
  }
  static constexpr kvasir_option_schema option_v() {
    return enum_option({.key = "type_v", .help = "element type of stored values"}, kNames, 1);
  }
  static const char* name(uint32_t dtype) { return kNames[dtype - KVASIR_DTYPE_F32]; }
  KvTypes() = default;
  explicit KvTypes(const Options& options)
      : k(kTypes[options.choice("type_k")]), v(kTypes[options.choice("type_v")]) {}
};

// Bytes of K or V of one token and kv head. Throws when groups do not divide it.
inline uint64_t kv_token_bytes(const char* key, uint32_t dtype, uint32_t dim) {
  const kernels::ElementType type = element_type(dtype);
  const auto group = static_cast<uint32_t>(kernels::group_elements(type));
  if (dim % group == 0) return kernels::row_bytes(type, dim);
  throw Error(KVASIR_ERR_UNSUPPORTED, std::string(key) + " = \"" + KvTypes::name(dtype) +
                                          "\" stores groups of " + std::to_string(group) +
                                          " elements, and a head of this model has " +
                                          std::to_string(dim) + ": use f16 or bf16");
}

// [kv_head][token][head_dim] of K, then [kv_head][token][v_dim] of V, each a multiple of 64 bytes:
// of all heads in one part, or of each head in a part of its own, part behind part.
struct KvLayout {
  kvasir_kv_format format{};
  uint64_t n_parts = 1;
  uint64_t k_bytes = 0;  // of a part
  uint64_t v_bytes = 0;
  uint64_t part_bytes() const { return k_bytes + v_bytes; }
  uint64_t block_bytes() const { return n_parts * part_bytes(); }
};

// Of n_heads heads in n_parts parts: one, or n_heads.
inline KvLayout kv_layout(const kvasir_geometry& geometry, const KvTypes& types, uint32_t n_heads,
                          uint32_t n_parts = 1) {
  const auto round_up_64 = [](uint64_t n) { return (n + 63) / 64 * 64; };
  KvLayout out;
  out.n_parts = n_parts;
  kvasir_kv_format& format = out.format;
  format.struct_size = sizeof format;
  format.dtype_k = types.k;
  format.dtype_v = types.v;
  format.k_token_stride = kv_token_bytes("type_k", types.k, geometry.head_dim);
  format.v_token_stride = kv_token_bytes("type_v", types.v, geometry.v_dim);
  format.k_head_stride = geometry.block_size * format.k_token_stride;
  format.v_head_stride = geometry.block_size * format.v_token_stride;
  out.k_bytes = round_up_64(n_heads / n_parts * format.k_head_stride);
  out.v_bytes = round_up_64(n_heads / n_parts * format.v_head_stride);
  if (n_parts > 1) format.k_head_stride = format.v_head_stride = out.part_bytes();
  return out;
}

// Blocks a sequence of full length has in one layer.
inline uint64_t blocks_per_sequence(const kvasir_geometry& geometry) {
  return (uint64_t{geometry.max_context} + geometry.block_size - 1) / geometry.block_size;
}

}  // namespace kvasir::sdk
