// Weights into panels, and the choice between our kernel (few rows) and oneDNN (many).
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/panel_matrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "core/error.h"
#include "core/model/gguf/float16.h"
#include "core/model/gguf/quant.h"
#include "core/model/layers/onednn.h"
#include "core/model/layers/quantized_panel.h"
#include "core/model/layers/tile_products.h"
#include "kernels/convert.h"
#include "kernels/panel_product.h"
#include "kernels/quantized_product.h"
#include "kernels/row_ops.h"
#include "kernels/simd_target.h"
#include "kernels/tiled_rows.h"

namespace kvasir {
namespace {

// Up to this many rows our kernel is the faster one: it reads at the speed of memory, while oneDNN
// wastes most of a tile. In f32, 12 rows: 4.5 ms against 5.9 (bench weights, two cores of a Xeon);
// both have the same bits. In bf16 they have not: whoever moves that limit moves results. In int8
// our kernel is the only one; there many rows are those that are shared out, too.
constexpr uint32_t kFewRowsF32 = 16, kFewRowsBf16 = 4, kFewRowsInt8 = 8;
static_assert(kPanel == kernels::kPanelOutputs);  // quantised panels hold as many outputs
// Up to this many rows tiles are slower: weights have to be put in order for them (equal at 25 to
// 31 rows in Q8_0, Q4_0, Q4_K and Q6_K, two cores of a Xeon), and oneDNN takes panels of bf16 as
// they are.
constexpr uint32_t kFewRowsTiles = 28, kFewRowsTilesBf16 = 128;
// Rows of a task of a large product: x stays in the L2 cache. Our kernel does not pack x.
constexpr uint32_t kRowBlock = 256, kOwnRowBlock = 64;
// Of quantised weights alone, where this many tasks per worker are left: a panel, which comes from
// memory, serves more rows. 512 rows of the 1B shape on Zen 5: 0.985 of the time.
constexpr uint32_t kQuantizedRowBlock = 512, kTasksPerWorker = 8;

// Rows of a task, about `block`: whole groups, and not a few rows for the last task.
uint32_t even_block(uint32_t n, uint32_t block) {
  constexpr uint32_t kGroup = kernels::kQuantizedGroup;
  const uint32_t n_tasks = std::max(1u, (n + block / 2) / block);
  return ((n + n_tasks - 1) / n_tasks + kGroup - 1) / kGroup * kGroup;
}

// Inputs [begin, begin + n) of 64 rows into a panel.
void store_chunk(const float* rows, size_t stride, size_t begin, size_t n, float* panel) {
  for (size_t k = 0; k < n; ++k) {
    for (size_t j = 0; j < kPanel; ++j) panel[(begin + k) * kPanel + j] = rows[j * stride + k];
  }
}

void store_chunk(const float* rows, size_t stride, size_t begin, size_t n, uint16_t* panel) {
  for (size_t k = 0; k < n; ++k) {
    uint16_t* to = panel + (begin + k) / 2 * 2 * kPanel + (begin + k) % 2;
    for (size_t j = 0; j < kPanel; ++j) to[2 * j] = f32_to_bf16(rows[j * stride + k]);
  }
}

// Elements of 16 bits as they are in the file.
void load_16_bit_panel(const GgufTensor& tensor, const PanelMatrix& m, uint32_t panel) {
  const auto* rows =
      reinterpret_cast<const uint16_t*>(tensor.data) + size_t{panel} * kPanel * m.n_in;
  auto* to = reinterpret_cast<uint16_t*>(m.data + panel * m.panel_bytes());
  const uint32_t cols = m.panel_cols(panel);
  for (size_t k = 0; k < m.n_in; ++k)
    for (size_t j = 0; j < cols; ++j) to[k * kPanel + j] = rows[j * m.n_in + k];
}

void load_panel(const GgufTensor& tensor, const PanelMatrix& m, uint32_t panel) {
  if (m.stored == kernels::PanelType::kF16 || m.stored == kernels::PanelType::kBF16)
    return load_16_bit_panel(tensor, m, panel);
  constexpr size_t kChunk = 256;   // a multiple of every quantisation block
  constexpr size_t kStride = 272;  // not a power of two: 64 rows must not share a cache set
  std::array<float, kPanel * kStride> rows{};
  const size_t block = block_elements(tensor.type);
  const size_t row_bytes = m.n_in / block * block_bytes(tensor.type);
  const std::byte* from = tensor.data + size_t{panel} * kPanel * row_bytes;
  std::byte* to = m.data + panel * m.panel_bytes();
  for (size_t begin = 0; begin < m.n_in; begin += kChunk) {
    const size_t n = std::min(kChunk, m.n_in - begin);
    for (uint32_t j = 0; j < m.panel_cols(panel); ++j) {
      dequantize(tensor.type, from + j * row_bytes + begin / block * block_bytes(tensor.type),
                 rows.data() + j * kStride, n);
    }
    if (m.type == Compute::kBF16) {
      store_chunk(rows.data(), kStride, begin, n, reinterpret_cast<uint16_t*>(to));
    } else {
      store_chunk(rows.data(), kStride, begin, n, reinterpret_cast<float*>(to));
    }
  }
}

void load_panel_range(const GgufTensor& tensor, const PanelMatrix& m, uint64_t begin, uint64_t end,
                      const GgufFile& file) {
  const uint64_t row_bytes = tensor.n_bytes / m.n_out, panel_rows = row_bytes * kPanel;
  for (uint64_t p = begin; p < end; ++p) {
    const auto panel = static_cast<uint32_t>(p);
    if (m.type == Compute::kInt8)
      pack_quantized_panel(m.quantized, tensor.data + p * panel_rows, row_bytes,
                           m.panel_cols(panel), m.n_in, m.data + p * m.panel_bytes());
    else
      load_panel(tensor, m, panel);
    // As we go: the mapped file must not stay resident beside its copy.
    const uint64_t done = (p + 1) * panel_rows, from = begin * panel_rows;
    if (p + 1 == end || (p - begin) % 64 == 63)
      file.release_pages(tensor.data + from, std::min(done, tensor.n_bytes) - from);
  }
}

// y = x w (+ y) by our kernel; x f32, of pairs of bf16 values of bf16.
void own_product(kernels::PanelType type, const PanelShape& s, const float* x, const std::byte* w,
                 float* y) {
  constexpr uint32_t kRows = kernels::kPanelProductRows;
  for (uint32_t r = 0; r < s.n; r += kRows) {
    kernels::panel_product(type, x + size_t{r} * s.n_in, s.n_in, std::min(kRows, s.n - r), w,
                           s.n_in, chain_inputs(s.n_in), s.cols, s.accumulate,
                           y + size_t{r} * s.y_stride, s.y_stride);
  }
}

kernels::PanelType panel_type(Compute type) {
  return type == Compute::kBF16 ? kernels::PanelType::kBF16Pairs : kernels::PanelType::kF32;
}

// Values of both signs and of magnitudes from 2^-9 to 1, in bf16 rounded to it.
float sample(std::minstd_rand& random, Compute type) {
  const auto bits = static_cast<uint32_t>(random());
  const float value = std::ldexp(static_cast<float>(bits % 65536) / 32768.0f - 1.0f,
                                 -static_cast<int>(bits / 65536 % 9));
  return type == Compute::kBF16 ? bf16_to_f32(f32_to_bf16(value)) : value;
}

// Whether oneDNN's product of one panel gives the bits of ours, and those of its own for another
// number of rows. What could differ is the order of a sum: it shows in nearly every output.
struct Comparison {
  bool same_as_own = true, same_for_all_rows = true;
};

Comparison compare_products(Compute type, OneDnnProducts& onednn, uint32_t n_in) {
  constexpr uint32_t kDistinct = 24;  // of the rows, repeated
  constexpr uint32_t kRowCounts[] = {1, 2, 5, 9, 16, 33, 64, kRowBlock};
  std::minstd_rand random(n_in);
  const size_t padded = (size_t{n_in} + kPanelInputs - 1) / kPanelInputs * kPanelInputs;
  std::vector<float> w(padded * kPanel), x(size_t{kRowBlock} * n_in);
  std::vector<uint16_t> w_bf16, x_bf16;
  for (size_t i = 0; i < size_t{n_in} * kPanel; ++i) w[i] = sample(random, type);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = i < size_t{kDistinct} * n_in ? sample(random, type) : x[i - size_t{kDistinct} * n_in];
  const void *weights = w.data(), *rows = x.data();
  if (type == Compute::kBF16) {
    w_bf16.resize(w.size());
    for (size_t i = 0; i < w.size(); ++i) {
      const size_t k = i / kPanel, j = i % kPanel;
      w_bf16[(k / 2 * kPanel + j) * 2 + k % 2] = f32_to_bf16(w[i]);
    }
    for (const float value : x) x_bf16.push_back(f32_to_bf16(value));
    weights = w_bf16.data();
    rows = x_bf16.data();
  }
  std::vector<float> own(kDistinct * kPanel), first(kDistinct * kPanel), got(kRowBlock * kPanel);
  const auto* bytes = static_cast<const std::byte*>(weights);
  own_product(panel_type(type), {kDistinct, n_in, kPanel, kPanel, false}, x.data(), bytes,
              own.data());
  onednn.multiply({kDistinct, n_in, kPanel, kPanel, false}, rows, weights, first.data(), 0);
  Comparison result;
  for (const uint32_t n : kRowCounts) {
    onednn.multiply({n, n_in, kPanel, kPanel, false}, rows, weights, got.data(), 0);
    for (uint32_t r = 0; r < n; ++r) {
      const size_t at = size_t{r % kDistinct} * kPanel, bytes_of_row = kPanel * sizeof(float);
      const float* row = got.data() + size_t{r} * kPanel;
      result.same_as_own &= std::memcmp(row, own.data() + at, bytes_of_row) == 0;
      result.same_for_all_rows &= std::memcmp(row, first.data() + at, bytes_of_row) == 0;
    }
  }
  return result;
}

}  // namespace

PanelMatrix kept_as(GgmlType type, Compute compute) {
  if (compute == Compute::kInt8)
    if (const auto quantized = quantized_type(type))
      return {.type = Compute::kInt8, .quantized = *quantized};
  PanelMatrix m{.type = compute == Compute::kInt8 ? plain_compute() : compute};
  m.stored = panel_type(m.type);
  if (m.type == Compute::kF32 && type == GgmlType::kF16) m.stored = kernels::PanelType::kF16;
  if (m.type == Compute::kF32 && type == GgmlType::kBF16) m.stored = kernels::PanelType::kBF16;
  return m;
}

uint32_t PanelMatrix::padded_inputs() const {
  return (n_in + kPanelInputs - 1) / kPanelInputs * kPanelInputs;
}

uint32_t PanelMatrix::n_panels() const { return (n_out + kPanel - 1) / kPanel; }

uint32_t PanelMatrix::panel_cols(uint32_t panel, uint32_t n) const {
  return std::min(n * kPanel, n_out - panel * kPanel);
}

size_t PanelMatrix::panel_bytes() const {
  if (type == Compute::kInt8) return kernels::quantized_panel_bytes(quantized, n_in);
  return size_t{padded_inputs()} * kPanel * kernels::panel_element_bytes(stored);
}

size_t PanelMatrix::n_bytes() const { return n_panels() * panel_bytes(); }

void load_panels(std::span<const PanelSource> together, ThreadPool& pool, const GgufFile& file) {
  uint64_t n_panels = 0;
  for (const auto& [tensor, matrix] : together) {
    if (matrix->n_in % block_elements(tensor->type) != 0) {
      throw input_error("tensor '" + tensor->name + "': rows of " + std::to_string(matrix->n_in) +
                        " elements cannot be of type " + name(tensor->type));
    }
    n_panels += matrix->n_panels();
  }
  pool.for_own_shares(n_panels, [&](uint64_t begin, uint64_t end, uint32_t) {
    uint64_t first = 0;  // panel of the matrix, counted from that of the first one
    for (const auto& [tensor, matrix] : together) {
      const uint64_t last = first + matrix->n_panels();
      const uint64_t from = std::max(begin, first), to = std::min(end, last);
      if (from < to) load_panel_range(*tensor, *matrix, from - first, to - first, file);
      first = last;
    }
  });
}

// The rows of one call, in the forms that its products read; a task takes n of them from `first`.
struct PanelProducts::Input {
  const float* f32 = nullptr;        // as given, or rounded to bf16
  const uint16_t* bf16 = nullptr;    // set when oneDNN multiplies in bf16, or tiles: in their order
  kernels::QuantizedRows int8 = {};  // set when a matrix is quantised, without tiles
  uint32_t rest = 0;  // int8: the row where what 8 bits leave of each begins; 0: nowhere
  uint32_t first = 0, n = 0, n_in = 0;
  bool many = false;
  bool onednn = false;    // rather than our kernel, where weights are not quantised
  bool tiles = false;     // of what is quantised or in bf16
  uint32_t n_total = 0;   // rows of the call
  uint32_t block = 0;     // rows of a task, where there are many
  uint32_t together = 1;  // panels of a task
};

struct PanelProducts::Panels {
  Panels(const PanelMatrix& w, uint32_t group, uint32_t together)
      : first(group * together), n(std::min(together, w.n_panels() - first)) {}
  static uint32_t n_groups(const PanelMatrix& w, uint32_t together) {
    return (w.n_panels() + together - 1) / together;
  }
  uint32_t first, n;
};

// y = x W (+ y) of a task's panels: of their columns alone, rows y_stride apart.
struct PanelProducts::Part {
  const PanelMatrix& w;
  Panels panels;
  bool accumulate;
  float* y;
  uint32_t y_stride;
};

struct PanelProducts::Kinds {
  bool plain = false;
  bool rows_16_bit = false;
  // Of the quantised matrices, the type whose unpacked panel takes the most memory.
  std::optional<kernels::QuantizedType> quantized{};
  void add(const PanelMatrix& w) {
    if (w.type != Compute::kInt8) {
      plain = true;
      return;
    }
    rows_16_bit = rows_16_bit || w.rows_16_bit;
    const auto bytes = [&](kernels::QuantizedType type) {
      return kernels::quantized_scratch_bytes(type, w.n_in, 0);
    };
    if (!quantized || bytes(w.quantized) > bytes(*quantized)) quantized = w.quantized;
  }
};

namespace {

// Where the rests of n rows begin.
constexpr uint64_t rest_row(uint64_t n) {
  constexpr uint64_t kGroup = kernels::kQuantizedGroup;
  return n > kFewRowsInt8 ? (n + kGroup - 1) / kGroup * kGroup : n;
}

bool uses_tiles(const PanelProducts::Options& options) {
  return (options.quantized || options.plain == Compute::kBF16) && options.tiles &&
         PanelProducts::in_tiles(options.deterministic);
}

struct ScratchBytes {
  uint64_t rounded = 0, quantized = 0, act = 0, rounded_act = 0, quantized_act = 0;
};

uint64_t tiled_bytes(uint64_t n, uint64_t n_in) {
  return kernels::tiled_rows(n, n_in).elements() * sizeof(uint16_t);
}

ScratchBytes scratch_of(const PanelProducts::Options& options) {
  ScratchBytes bytes;
  const uint64_t max_given = *std::max_element(options.n_in.begin(), options.n_in.end());
  const uint64_t max_in = std::max<uint64_t>(max_given, options.d_ff);
  const uint64_t max_rows = options.max_rows;
  if (options.quantized) {
    bytes.quantized = kernels::quantized_rows_bytes(rest_row(max_rows) + max_rows, max_given);
    bytes.quantized_act = kernels::quantized_rows_bytes(max_rows, options.d_ff);
  }
  uint64_t act_rows = options.plain ? max_rows : 0;
  if (uses_tiles(options)) {
    bytes.rounded = tiled_bytes(max_rows, max_in);
    bytes.rounded_act = tiled_bytes(max_rows, options.d_ff);
    // plan(): more are multiplied in tiles, and rounded for them.
    if (options.plain == Compute::kBF16) act_rows = std::min<uint64_t>(act_rows, kFewRowsTilesBf16);
  }
  bytes.act = act_rows * options.d_ff * sizeof(float);
  if (options.plain != Compute::kBF16) return bytes;
  // Our kernel reads bf16 values as f32; alone it may have to take all rows.
  const uint64_t own =
      options.deterministic ? std::max<uint64_t>(max_rows, kFewRowsBf16) : kFewRowsBf16;
  bytes.rounded =
      std::max({bytes.rounded, own * max_in * sizeof(float), max_rows * max_in * sizeof(uint16_t)});
  return bytes;
}

}  // namespace

bool PanelProducts::in_tiles(bool deterministic) {
  return !deterministic && kernels::uses_bf16_tiles();
}

uint64_t PanelProducts::scratch_bytes(const Options& options) {
  const ScratchBytes bytes = scratch_of(options);
  return bytes.rounded + bytes.quantized + bytes.act + bytes.rounded_act + bytes.quantized_act;
}

PanelProducts::PanelProducts(ThreadPool& pool, const Options& options)
    : pool_(pool),
      plain_(options.plain.value_or(Compute::kF32)),
      onednn_(options.plain && OneDnnProducts::supported(plain_)
                  ? std::make_unique<OneDnnProducts>(plain_, pool.n_workers())
                  : nullptr),
      tiles_(uses_tiles(options) ? std::make_unique<TileProducts>(pool.n_workers()) : nullptr),
      forms_(options.forms ? *options.forms : choose_forms(options)) {
  expanded_.resize(pool.n_workers());
  gated_.resize(pool.n_workers());
  unpacked_.resize(pool.n_workers());
  const ScratchBytes bytes = scratch_of(options);
  if (bytes.rounded) rounded_ = Region(bytes.rounded);
  if (bytes.quantized) quantized_ = Region(bytes.quantized);
  if (bytes.act) act_ = Region(bytes.act);
  if (bytes.rounded_act) rounded_act_ = Region(bytes.rounded_act);
  if (bytes.quantized_act) quantized_act_ = Region(bytes.quantized_act);
}

PanelProducts::~PanelProducts() = default;

PanelProducts::Forms PanelProducts::choose_forms(const Options& options) {
  if (!onednn_) return Forms::kOwn;
  if (plain_ == Compute::kBF16 && !options.deterministic) return Forms::kBoth;
  bool same = true, alone = true;
  std::set<uint32_t> widths(options.n_in.begin(), options.n_in.end());
  if (options.d_ff > 0) widths.insert(options.d_ff);
  for (const uint32_t n_in : widths) {
    const Comparison found = compare_products(plain_, *onednn_, n_in);
    same = same && found.same_as_own;
    alone = alone && found.same_for_all_rows;
  }
  if (same) return Forms::kBoth;
  return alone && plain_ == Compute::kBF16 ? Forms::kOneDnn : Forms::kOwn;
}

// fn(begin, end) on rows: on the pool where there are many.
template <class Fn>
void PanelProducts::for_rows(const Input& x, const Fn& fn) {
  if (!x.many) return fn(0, x.n);
  pool_.parallel_for(x.n, 0, [&](uint64_t begin, uint64_t end, uint32_t) { fn(begin, end); });
}

void PanelProducts::round_to_bf16(Input& x) {
  const float* from = x.f32;
  const size_t n_in = x.n_in;
  if (x.tiles) {
    uint16_t* out = rounded_.as<uint16_t>().data();
    const kernels::TiledRows layout = kernels::tiled_rows(x.n, n_in);
    for_rows(x, [&](uint64_t begin, uint64_t end) {
      kernels::tile_rows(from + begin * n_in, n_in, begin, end, 0, n_in, layout, out);
    });
    x.bf16 = out;
  } else if (x.onednn) {
    uint16_t* out = rounded_.as<uint16_t>().data();
    for_rows(x, [&](uint64_t begin, uint64_t end) {
      kernels::convert_from_f32(kernels::ElementType::kBF16, from + begin * n_in,
                                out + begin * n_in, (end - begin) * n_in);
    });
    x.bf16 = out;
  } else {
    float* out = rounded_.as<float>().data();
    for_rows(x, [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin * n_in; i < end * n_in; ++i)
        out[i] = bf16_to_f32(f32_to_bf16(from[i]));
    });
    x.f32 = out;
  }
}

PanelProducts::Input PanelProducts::plan(uint32_t n, uint32_t n_in, uint64_t n_panels,
                                         const Kinds& kinds) {
  const uint32_t few = plain_ == Compute::kBF16 ? kFewRowsBf16 : kFewRowsF32;
  const bool bf16 = kinds.plain && plain_ == Compute::kBF16;
  Input input{
      .n = n, .n_in = n_in, .many = n > (kinds.quantized ? kFewRowsInt8 : few), .n_total = n};
  input.onednn = kinds.plain && (forms_ == Forms::kOneDnn || (forms_ == Forms::kBoth && n > few));
  input.tiles =
      tiles_ && ((kinds.quantized && n > kFewRowsTiles) || (bf16 && n > kFewRowsTilesBf16));
  input.block = input.tiles                    ? TileProducts::kTaskRows
                : !kinds.plain || input.onednn ? kRowBlock
                                               : kOwnRowBlock;
  if (input.tiles) {
    // Several panels together, but no worker may go without.
    const uint64_t shares = n_panels / (uint64_t{4} * pool_.n_workers());
    input.together =
        static_cast<uint32_t>(std::clamp<uint64_t>(shares, 1, TileProducts::kTaskPanels));
  }
  if (kinds.quantized && !input.tiles) {
    const bool many_panels = n_panels >= uint64_t{kTasksPerWorker} * pool_.n_workers();
    input.block = even_block(n, many_panels && !kinds.plain ? kQuantizedRowBlock : input.block);
    if (n >= kernels::kRowsToUnpack) {
      const size_t bytes =
          kernels::quantized_scratch_bytes(*kinds.quantized, n_in, std::min(n, input.block));
      for (Region& region : unpacked_)
        if (region.size() < bytes) region = Region(bytes);
    }
  }
  return input;
}

PanelProducts::Input PanelProducts::prepare(const float* x, uint32_t n, uint32_t n_in,
                                            uint64_t n_panels, const Kinds& kinds) {
  Input input = plan(n, n_in, n_panels, kinds);
  input.f32 = x;
  if (kinds.quantized && !input.tiles) {
    if (kinds.rows_16_bit) input.rest = static_cast<uint32_t>(rest_row(n));
    input.int8 = {quantized_.data(), kernels::quantized_group(input.rest + n)};
    for_rows(input, [&](uint64_t begin, uint64_t end) {
      const float* rows = x + begin * n_in;
      kernels::quantize_rows(rows, n_in, begin, end, 0, n_in, n_in, input.int8);
      if (kinds.rows_16_bit)
        kernels::quantize_rest(rows, n_in, begin, end, n_in, input.int8, input.rest);
    });
  }
  if (input.tiles || (kinds.plain && plain_ == Compute::kBF16)) round_to_bf16(input);
  return input;
}

// The panel as oneDNN takes it.
const void* PanelProducts::expanded(const PanelMatrix& w, const std::byte* panel, uint32_t worker) {
  if (w.stored != kernels::PanelType::kF16 && w.stored != kernels::PanelType::kBF16) return panel;
  std::vector<float>& to = expanded_[worker];
  to.resize(std::max(to.size(), size_t{w.padded_inputs()} * kPanel));
  kernels::convert_to_f32(w.stored == kernels::PanelType::kF16 ? kernels::ElementType::kF16
                                                               : kernels::ElementType::kBF16,
                          panel, to.data(), size_t{w.padded_inputs()} * kPanel);
  return to.data();
}

// One panel, the rows of the task: y = x W_p (+ y).
void PanelProducts::panel(const Input& x, const PanelMatrix& w, uint32_t panel, bool accumulate,
                          float* y, uint32_t y_stride, uint32_t worker) {
  const std::byte* data = w.data + panel * w.panel_bytes();
  const PanelShape shape{x.n, x.n_in, w.panel_cols(panel), y_stride, accumulate};
  const size_t first = size_t{x.first} * x.n_in;
  if (w.type == Compute::kInt8) {
    quantized_panel(x, w, data, shape, y, worker);
  } else if (x.onednn) {
    const bool bf16 = plain_ == Compute::kBF16;
    const void* rows = bf16 ? static_cast<const void*>(x.bf16 + first) : x.f32 + first;
    onednn_->multiply(shape, rows, expanded(w, data, worker), y, worker);
  } else {
    own_product(w.stored, shape, x.f32 + first, data, y);
  }
}

void PanelProducts::quantized_panel(const Input& x, const PanelMatrix& w, const std::byte* panel,
                                    const PanelShape& shape, float* y, uint32_t worker) {
  const auto product = [&](uint32_t first, uint32_t n, bool to_y, float* to, uint32_t stride) {
    kernels::quantized_product(w.quantized, x.int8, first, first + n, panel, x.n_in, shape.cols,
                               to_y, to, stride, unpacked_[worker].data());
  };
  if (!w.rows_16_bit) return product(x.first, x.n, shape.accumulate, y, shape.y_stride);
  if (x.many) {
    product(x.first, x.n, shape.accumulate, y, shape.y_stride);
    return product(x.rest + x.first, x.n, true, y, shape.y_stride);
  }
  // Few rows and their rests read the panel once.
  std::array<float, size_t{2} * kFewRowsInt8 * kPanel> both;
  product(0, 2 * x.n, false, both.data(), kPanel);
  for (uint32_t r = 0; r < x.n; ++r) {
    const float *sums = &both[size_t{r} * kPanel], *of_rest = sums + size_t{x.n} * kPanel;
    float* to = y + size_t{r} * shape.y_stride;
    for (uint32_t j = 0; j < shape.cols; ++j)
      to[j] = (shape.accumulate ? to[j] + sums[j] : sums[j]) + of_rest[j];
  }
}

// The rows of a task; panels in tiles share a pass through them, x.together at most.
void PanelProducts::panels(const Input& x, std::initializer_list<Part> parts, uint32_t worker) {
  std::array<TileProducts::Panel, TileProducts::kTaskPanels> tiled{};
  size_t n_tiled = 0;
  for (const auto& [w, panels, accumulate, y, y_stride] : parts)
    for (uint32_t p = 0; p < panels.n; ++p) {
      const uint32_t index = panels.first + p;
      float* to = y + size_t{p} * kPanel;
      if (x.tiles && w.type != Compute::kF32)
        tiled[n_tiled++] = {&w, index, {to, y_stride, w.panel_cols(index), accumulate}};
      else
        panel(x, w, index, accumulate, to, y_stride, worker);
    }
  if (n_tiled > 0)
    tiles_->multiply({x.bf16, kernels::tiled_rows(x.n_total, x.n_in), x.first, x.n},
                     std::span(tiled).first(n_tiled), worker);
}

// fn(rows, group, worker) for all groups of panels and blocks of rows. A worker has those that lie
// behind each other: with few rows he meets the panels that he has loaded, with many the next panel
// is the one that was asked for.
template <class Fn>
void PanelProducts::for_tasks(const Input& x, uint64_t n_groups, const Fn& fn) {
  const uint32_t block = x.block;
  const uint64_t n_blocks = x.many ? (x.n + block - 1) / block : 1;
  const uint64_t n_tasks = n_blocks * n_groups;
  const auto tasks = [&](uint64_t begin, uint64_t end, uint32_t worker) {
    for (uint64_t task = begin; task < end; ++task) {
      Input rows = x;
      rows.first = static_cast<uint32_t>(task / n_groups * block);
      rows.n = n_blocks == 1 ? x.n : std::min(block, x.n - rows.first);
      fn(rows, static_cast<uint32_t>(task % n_groups), worker);
    }
  };
  pool_.for_balanced_shares(n_tasks, tasks);
}

void PanelProducts::multiply(const float* x, uint32_t n, std::span<const Product> products) {
  if (n == 0 || products.empty()) return;
  Kinds kinds;
  uint64_t n_panels = 0;
  for (const Product& product : products) {
    kinds.add(*product.w);
    n_panels += product.w->n_panels();
  }
  multiply(prepare(x, n, products.front().w->n_in, n_panels, kinds), products);
}

void PanelProducts::multiply(const Input& input, std::span<const Product> products) {
  uint64_t n_groups = 0;
  const uint32_t together = input.together;
  const auto groups = [&](const Product& product) {
    return Panels::n_groups(*product.w, together);
  };
  for (const Product& product : products) n_groups += groups(product);
  for_tasks(input, n_groups, [&](const Input& rows, uint32_t group, uint32_t worker) {
    size_t i = 0;
    for (; group >= groups(products[i]); ++i) group -= groups(products[i]);
    const auto& [w, out, bias, accumulate] = products[i];
    const Panels some(*w, group, together);
    const size_t first = size_t{some.first} * kPanel;
    float* y = out + size_t{rows.first} * w->n_out + first;
    panels(rows, {{*w, some, accumulate, y, w->n_out}}, worker);
    if (!bias) return;
    for (uint32_t r = 0; r < rows.n; ++r)
      kernels::add_to(bias + first, w->panel_cols(some.first, some.n), y + size_t{r} * w->n_out);
  });
}

void PanelProducts::multiply_gated(const float* x, uint32_t n, const Gated& gated,
                                   const Product& down) {
  if (n == 0) return;
  const auto& [gate, up, activation] = gated;
  Kinds kinds, of_down;
  kinds.add(gate);
  kinds.add(up);
  of_down.add(*down.w);
  Input input = prepare(x, n, gate.n_in, gate.n_panels(), kinds);
  if (input.tiles) input.together = std::max(1u, input.together / 2);  // of each of both
  Input act_input = plan(n, gate.n_out, down.w->n_panels(), of_down);
  // Rounded while it is in the cache: in f32 it would go through memory.
  const bool quantized_act = of_down.quantized.has_value() && !act_input.tiles;
  const bool rounded = quantized_act || act_input.tiles;
  float* act = act_.as<float>().data();
  auto* const tiled_act = rounded_act_.as<uint16_t>().data();
  const kernels::TiledRows layout = kernels::tiled_rows(n, gate.n_out);
  if (act_input.tiles) act_input.bf16 = tiled_act;
  if (quantized_act) act_input.int8 = {quantized_act_.data(), kernels::quantized_group(n)};
  const auto unit = activation == Activation::kGelu ? &kernels::geglu : &kernels::swiglu;
  const uint32_t together = input.together;
  const uint32_t n_groups = Panels::n_groups(gate, together);
  for_tasks(input, n_groups, [&](const Input& rows, uint32_t group, uint32_t worker) {
    const Panels both(gate, group, together);
    const uint32_t cols = gate.panel_cols(both.first, both.n), first = both.first * kPanel;
    const size_t n_sums = size_t{rows.n} * cols;
    std::vector<float>& sums = gated_[worker];
    sums.resize(std::max(sums.size(), (rounded ? 2 : 1) * n_sums));
    float* of_up = sums.data();
    float* y = rounded ? of_up + n_sums : act + size_t{rows.first} * gate.n_out + first;
    const uint32_t y_stride = rounded ? cols : gate.n_out;
    panels(rows, {{gate, both, false, y, y_stride}, {up, both, false, of_up, cols}}, worker);
    for (uint32_t r = 0; r < rows.n; ++r)
      unit(y + size_t{r} * y_stride, of_up + size_t{r} * cols, cols);
    if (quantized_act)
      kernels::quantize_rows(y, y_stride, rows.first, rows.first + rows.n, first, cols, gate.n_out,
                             act_input.int8);
    else if (act_input.tiles)
      kernels::tile_rows(y, y_stride, rows.first, rows.first + rows.n, first, cols, layout,
                         tiled_act);
  });
  if (rounded) return multiply(act_input, {&down, 1});
  multiply(act, n, {&down, 1});
}

}  // namespace kvasir
