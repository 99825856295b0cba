// See skew_fold.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/skew/skew_fold.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/model/gguf/gguf_writer.h"
#include "core/model/gguf/quant.h"

namespace kvasir {
namespace {

// What a tensor is to folding: "blk.<layer>.attn_q.weight" and its like.
struct Role {
  bool folds = false;
  uint32_t layer = 0;
  bool is_query = false;
};
Role role_of(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  Role role;
  if (!name.starts_with(kPrefix)) return role;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kPrefix.size(), end, role.layer);
  if (error != std::errc()) return role;
  const std::string_view tail(rest, end);
  role.is_query = tail == ".attn_q.weight" || tail == ".attn_q.bias";
  role.folds = role.is_query || tail == ".attn_k.weight" || tail == ".attn_k.bias";
  return role;
}

}  // namespace

void fold_skew(const SkewMatrices& skew, uint32_t layer, uint32_t n_heads,
               std::span<float> weight) {
  const uint64_t dim = skew.head_dim, n_in = weight.size() / (n_heads * dim);
  std::vector<double> folded(dim * n_in);
  for (uint64_t head = 0; head < n_heads; ++head) {
    const uint64_t kv_head = head * skew.n_kv_heads / n_heads;
    const float* a = skew.columns.data() + (size_t{layer} * skew.n_kv_heads + kv_head) * dim * dim;
    float* rows = weight.data() + head * dim * n_in;
    std::fill(folded.begin(), folded.end(), 0.0);
    for (uint64_t column = 0; column < dim; ++column)
      for (uint64_t d = 0; d < dim; ++d)
        for (uint64_t i = 0; i < n_in; ++i)
          folded[column * n_in + i] += double{a[column * dim + d]} * double{rows[d * n_in + i]};
    std::transform(folded.begin(), folded.end(), rows,
                   [](double x) { return static_cast<float>(x); });
  }
}

void check_foldable(const ModelShape& shape) {
  const char* between = shape.rope.n_dims > 0 ? "rotates its queries and keys (RoPE)"
                        : shape.qk_norm       ? "norms its queries and keys"
                                              : nullptr;
  if (between)
    throw input_error("the model " + std::string(between) +
                      ", which comes between its weights and the skew: write a skew file "
                      "instead, and give it to the selector as skew_file");
}

void write_folded_model(const GgufFile& file, const ModelShape& shape, const SkewMatrices& skew,
                        const std::string& path) {
  check_foldable(shape);
  GgufWriter writer;
  for (const std::string& key : file.keys())
    if (!key.starts_with("split.") && key != "general.alignment") writer.set(key, *file.raw(key));
  for (const GgufTensor& tensor : file.tensors())
    writer.add_tensor(tensor.name, role_of(tensor.name).folds ? GgmlType::kF32 : tensor.type,
                      tensor.shape);
  writer.write(path, [&](size_t index, std::span<std::byte> bytes) {
    const GgufTensor& tensor = file.tensors()[index];
    const Role role = role_of(tensor.name);
    if (!role.folds) return void(std::memcpy(bytes.data(), tensor.data, bytes.size()));
    std::vector<float> weight(bytes.size() / sizeof(float));
    dequantize(tensor.type, tensor.data, weight.data(), weight.size());
    fold_skew(skew, role.layer, role.is_query ? shape.n_q_heads : shape.n_kv_heads, weight);
    std::memcpy(bytes.data(), weight.data(), bytes.size());
  });
}

}  // namespace kvasir
