// Weight matrices in memory, and their products on the pool.
//
// One layout serves prefill and decode: panels of 64 outputs, contiguous over all inputs. A worker
// streams whole panels, so decode reads memory in order; and a panel of f32 or pairs of bf16 is a
// matrix in a format that oneDNN's fastest product takes without repacking, with AMX where there is
// AMX. A panel of f16 or bf16 that is multiplied in f32 holds the numbers of the file; it is
// expanded for oneDNN, one panel at a time. A quantised panel holds the numbers of the file, too,
// and our kernel multiplies it, many rows after it has unpacked it; on a CPU with AMX
// many rows take it as bf16, whose tiles need no scale per block (tile_products.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/model/gguf/gguf.h"
#include "core/model/layers/compute.h"
#include "core/model/layers/shape.h"
#include "core/platform/memory.h"
#include "core/platform/thread_pool.h"
#include "kernels/panel_product.h"
#include "kernels/quantized_panel.h"

namespace kvasir {

inline constexpr uint32_t kPanel = kernels::kPanelWidth;  // outputs of a panel

struct PanelMatrix {
  Compute type = Compute::kF32;  // of its products
  uint32_t n_in = 0, n_out = 0;
  // n_panels panels as in kernels/panel_product.h, of this type, n_in padded to 32; padding is
  // zero. kInt8: as in kernels/quantized_panel.h.
  std::byte* data = nullptr;
  kernels::PanelType stored = kernels::PanelType::kF32;
  kernels::QuantizedType quantized = {};  // where type is kInt8
  // Of kInt8: rows are rounded to 16 bits, which are multiplied as two times 8; in tiles to bf16.
  bool rows_16_bit = false;

  uint32_t padded_inputs() const;
  uint32_t n_panels() const;
  uint32_t panel_cols(uint32_t panel, uint32_t n = 1) const;  // of n panels: 64 n, fewer at the end
  size_t panel_bytes() const;
  size_t n_bytes() const;
};

// How a tensor of this type is kept for these products; without sizes and data. In f32, what has 16
// bits in the file keeps them. kInt8: what is not quantised in a type of kernels/quantized_panel.h
// is multiplied in plain_compute().
PanelMatrix kept_as(GgmlType type, Compute compute);

// A matrix to fill, kept_as() the type of its GGUF tensor {n_in, n_out}.
struct PanelSource {
  const GgufTensor* tensor;
  const PanelMatrix* matrix;
};

// Fills the matrices that one call of multiply() takes, each panel by the worker that reads it in
// decode, so that its pages lie on that worker's node.
void load_panels(std::span<const PanelSource> together, ThreadPool& pool, const GgufFile& file);

class OneDnnProducts;
struct PanelShape;
class TileProducts;

// Products of f32 rows with panel matrices. Not thread-safe; parallel inside.
//
// In f32, in int8 without tiles, and in every type with `deterministic`, a row's result does not
// depend on how many rows share the call. In f32 our kernel sums in the order of oneDNN's, which is
// compared when this is made; where they differ, one of them multiplies all numbers of rows.
class PanelProducts {
 public:
  // Which product takes few rows and which takes many.
  enum class Forms { kBoth, kOwn, kOneDnn };  // kBoth: our kernel few, oneDNN many
  struct Options {
    // Of matrices in f32 or bf16; null: there are none.
    std::optional<Compute> plain = Compute::kF32;
    bool quantized = false;  // there are matrices in kInt8
    bool deterministic = false;
    uint32_t max_rows = 0;         // of a call
    std::vector<uint32_t> n_in{};  // all widths that rows may have
    uint32_t d_ff = 0;             // outputs of gated products; 0: there are none
    std::optional<Forms> forms{};  // for tests: these, whatever was compared
    bool tiles = true;             // for tests: false never, whatever in_tiles() says
  };
  PanelProducts(ThreadPool& pool, const Options& options);
  ~PanelProducts();
  static uint64_t scratch_bytes(const Options& options);
  // Whether many rows are multiplied in tiles of bf16, those of quantised matrices, too: this CPU
  // has AMX, and rows may differ with the number that shares a call.
  static bool in_tiles(bool deterministic);
  Forms forms() const { return forms_; }

  struct Product {
    const PanelMatrix* w;
    float* y;                     // [n, w->n_out]
    const float* bias = nullptr;  // [w->n_out], added
    bool accumulate = false;      // y += x W instead of y = x W
  };
  // All products take the same x [n, n_in]: one parallel region.
  void multiply(const float* x, uint32_t n, std::span<const Product> products);
  struct Gated {
    const PanelMatrix &gate, &up;
    Activation activation;
  };
  // `down` of act = activation(x gate) * (x up).
  void multiply_gated(const float* x, uint32_t n, const Gated& gated, const Product& down);

 private:
  struct Input;
  struct Kinds;  // of the matrices of a call
  // How n rows are multiplied with n_panels panels; they have yet to be rounded.
  Input plan(uint32_t n, uint32_t n_in, uint64_t n_panels, const Kinds& kinds);
  Input prepare(const float* x, uint32_t n, uint32_t n_in, uint64_t n_panels, const Kinds& kinds);
  void multiply(const Input& input, std::span<const Product> products);
  template <class Fn>
  void for_rows(const Input& x, const Fn& fn);
  void round_to_bf16(Input& x);
  struct Panels;  // of one matrix, of one task
  struct Part;
  void panels(const Input& x, std::initializer_list<Part> parts, uint32_t worker);
  void panel(const Input& x, const PanelMatrix& w, uint32_t panel, bool accumulate, float* y,
             uint32_t y_stride, uint32_t worker);
  void quantized_panel(const Input& x, const PanelMatrix& w, const std::byte* panel,
                       const PanelShape& shape, float* y, uint32_t worker);
  const void* expanded(const PanelMatrix& w, const std::byte* panel, uint32_t worker);
  template <class Fn>
  void for_tasks(const Input& x, uint64_t n_groups, const Fn& fn);

  Forms choose_forms(const Options& options);

  ThreadPool& pool_;
  Compute plain_;                             // of matrices that are not quantised
  Region rounded_;                            // bf16: the inputs, rounded
  Region quantized_;                          // int8: the inputs, rounded
  Region act_;                                // of gated products, where it is not rounded
  Region rounded_act_;                        // the same, rounded for tiles
  Region quantized_act_;                      // int8: the same, rounded
  std::vector<std::vector<float>> expanded_;  // [n_workers] a panel of f16 or bf16, for oneDNN
  std::vector<std::vector<float>> gated_;     // [n_workers] x gate and x up of a task
  std::vector<Region> unpacked_;              // [n_workers] int8: a panel, for many rows
  std::unique_ptr<OneDnnProducts> onednn_;    // null where it has no fast product
  std::unique_ptr<TileProducts> tiles_;       // null: without tiles
  Forms forms_;
};

}  // namespace kvasir
