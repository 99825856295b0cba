// See format_check.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/blocks/format_check.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/plugin/dtypes.h"

namespace kvasir {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 40;  // of one block

struct Rows {
  const char* name;
  uint32_t dtype, width;
  uint64_t token_stride, head_stride;
};

// What is wrong, or "".
std::string fault_of(const Rows& rows, const kvasir_geometry& g) {
  const std::string name = rows.name;
  if (const uint32_t group = group_elements(rows.dtype); rows.width % group != 0)
    return name + " rows of " + std::to_string(rows.width) + " elements are not whole groups of " +
           std::to_string(group);
  if (rows.token_stride > kMostBytes || rows.head_stride > kMostBytes)
    return name + " strides reach beyond a tebibyte";
  struct Dimension {
    uint64_t stride, n;
  };
  std::array<Dimension, 2> dimensions{
      {{rows.token_stride, g.block_size}, {rows.head_stride, g.n_kv_heads}}};
  std::sort(dimensions.begin(), dimensions.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  const uint64_t row = row_bytes(rows.dtype, rows.width);
  uint64_t bytes = row;  // of what lies inside the dimension
  for (const Dimension& dimension : dimensions) {
    if (dimension.n < 2) continue;
    if (dimension.stride < bytes)
      return name + " rows of " + std::to_string(row) + " bytes overlap: token stride " +
             std::to_string(rows.token_stride) + ", head stride " +
             std::to_string(rows.head_stride);
    bytes = dimension.stride * dimension.n;
  }
  return bytes > kMostBytes ? name + " of one block takes more than a tebibyte" : "";
}

}  // namespace

void check_formats(const Storage& storage, std::span<const kvasir_kv_format> formats,
                   const kvasir_geometry& geometry) {
  const uint64_t declared = storage.desc().dtypes;
  for (size_t i = 0; i < formats.size(); ++i) {
    const kvasir_kv_format& f = formats[i];
    std::string fault =
        fault_of({"K", f.dtype_k, geometry.head_dim, f.k_token_stride, f.k_head_stride}, geometry);
    if (fault.empty())
      fault =
          fault_of({"V", f.dtype_v, geometry.v_dim, f.v_token_stride, f.v_head_stride}, geometry);
    const uint64_t held = KVASIR_DTYPE_BIT(f.dtype_k) | KVASIR_DTYPE_BIT(f.dtype_v);
    if (fault.empty() && declared != 0 && (held & ~declared) != 0)
      fault = "its description does not name " + dtype_list(held & ~declared);
    if (!fault.empty())
      throw PluginError(storage.id(), "formats", KVASIR_ERR_INTERNAL,
                        "format " + std::to_string(i) + ": " + fault + " (a defect of the plugin)");
  }
}

}  // namespace kvasir
