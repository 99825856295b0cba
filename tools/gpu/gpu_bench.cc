// How fast the attention kernels read K and V on this device, beside what its memory gives in the
// same run: rows of decode attention over all keys and over selected blocks; how fast blocks are
// summarised and scored; how many operations per second a piece of a prompt makes, beside what
// cuBLAS does; how fast blocks travel here while something else computes; and the products of a
// dense layer. Prompts with the portable instructions and, where the device has them, with those
// of Hopper: instructions of kvasir.cuda; with --portable without these. With --small a run of
// small cases, which shows that it works and measures nothing.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/attention_merge.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/attention_prefill.h"
#include "kernels/cuda/matrix_product.h"
#include "kernels/cuda/stream_read.h"
#include "tools/gpu/bench.h"
#include "tools/gpu/layer_bench.h"
#include "tools/gpu/summary_bench.h"
#include "tools/gpu/travel_bench.h"

namespace {
using namespace kvasir::cuda;
using kvasir::bench::kChoices;
using kvasir::bench::Memory;
using kvasir::bench::seconds_in_a_row;

constexpr uint32_t kBlockSize = 128, kHeadDim = 128, kQHeads = 32, kKvHeads = 8;

struct Case {
  const char* name;
  KvType type;
  uint64_t group_bytes;                              // of 32 elements
  uint32_t batch, context, selected_blocks, window;  // selected_blocks 0: everything
  uint32_t n_q = 1;  // per sequence, its last tokens; several are a piece of a prompt
  KvType product = KvType::kF32;
  Instructions instructions = Instructions::kPortable;
  const char* path() const { return instructions == Instructions::kHopper ? "hopper" : "portable"; }
  bool is_prompt() const { return n_q > 1; }
  uint32_t n_blocks() const { return context / kBlockSize; }
};

// Ragged: every kv head of every sequence has a choice of its own, before a common window.
void choose(const Case& c, std::mt19937& random, std::vector<uint32_t>& items) {
  for (uint32_t sequence = 0; sequence < c.batch; ++sequence) {
    for (uint32_t head = 0; head < kKvHeads; ++head) {
      std::vector<uint32_t> chosen(c.n_blocks());
      std::iota(chosen.begin(), chosen.end(), sequence * c.n_blocks());
      if (c.selected_blocks != 0) {
        const auto window = chosen.end() - c.window / kBlockSize;
        std::shuffle(chosen.begin(), window, random);
        std::sort(chosen.begin(), chosen.begin() + c.selected_blocks);
        chosen.erase(chosen.begin() + c.selected_blocks, window);
      }
      items.insert(items.end(), chosen.begin(), chosen.end());
    }
  }
}

// Of one choice's items, of which every list has as many.
std::vector<AttentionRange> ranges_of(const Case& c, uint64_t n_items) {
  const uint64_t n = n_items / c.batch / kKvHeads;
  std::vector<AttentionRange> out;
  for (uint32_t sequence = 0; sequence < c.batch; ++sequence) {
    for (uint32_t head = 0; head < kKvHeads; ++head) {
      const uint64_t begin = n * out.size();
      out.push_back({0, head, sequence * c.n_q, c.n_q, begin, begin + n, 0, 0, c.is_prompt()});
    }
  }
  return out;
}

void print_row(const Case& c, double bytes, double seconds, double bandwidth) {
  std::printf("%-22s %-10s %6u %8u %10.1f %10.3f %10.0f %9.1f %%\n", c.name, c.path(), c.batch,
              c.context, bytes / 1e6, seconds * 1e3, bytes / seconds / 1e9,
              100.0 * bytes / seconds / bandwidth);
}

// Two products of head_dim for each query head and key that it sees; `peak` operations per second.
void print_prompt(const Case& c, double seconds, double peak) {
  const double n_q = c.n_q, keys = n_q * c.context - n_q * (n_q - 1) / 2;
  const double operations = 4.0 * kHeadDim * kQHeads * c.batch * keys;
  std::printf("%-22s %-10s %6u %8u %10u %10.3f %10.1f %9.1f %%\n", c.name, c.path(), c.batch,
              c.context, c.n_q, seconds * 1e3, operations / seconds / 1e12,
              100.0 * operations / seconds / peak);
}

// peak: bytes per second, or of a prompt operations.
void run_case(const Case& c, double peak, uint32_t n_runs) {
  const AttentionShape shape{kQHeads, kKvHeads, kHeadDim, kHeadDim, kBlockSize, 0.088f, 0.0f};
  const uint64_t row = kHeadDim / 32 * c.group_bytes;
  const uint64_t block_bytes = uint64_t{kKvHeads} * kBlockSize * row;  // of K, and of V
  const uint64_t n_blocks = uint64_t{c.n_blocks()} * c.batch;
  const Memory kv(2 * block_bytes * n_blocks);
  fill_words(kv.data, 2 * block_bytes * n_blocks / 4, kHalfPair, kRandomHalfPair, {});
  std::vector<KvBlock> list;
  for (uint64_t i = 0; i < n_blocks; ++i) {
    const uint64_t at = kv.address() + 2 * block_bytes * i;
    const auto first_pos = static_cast<uint32_t>(i % c.n_blocks() * kBlockSize);
    list.push_back({at, at + block_bytes, 0, first_pos, kBlockSize, 0, 0});
  }
  // Other blocks in every call, as in every layer: a cache does not have them from the one before.
  std::mt19937 random(1);
  std::vector<uint32_t> chosen;
  for (uint32_t i = 0; i < kChoices; ++i) choose(c, random, chosen);
  const uint64_t n_chosen = chosen.size() / kChoices;
  AttentionUnits units;
  plan_units(shape, ranges_of(c, n_chosen), {false}, 0, c.batch * c.n_q, units);

  const uint64_t heads = uint64_t{c.batch} * c.n_q * kQHeads;
  const Memory q(std::vector<float>(heads * kHeadDim, 0.1f)), blocks(list), items(chosen);
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < c.batch * c.n_q; ++i) positions.push_back(c.context - c.n_q + i % c.n_q);
  const Memory q_pos(positions);
  AttentionPart part{};
  part.q = q.address();
  part.q_pos = q_pos.address();
  part.q_stride = kQHeads * kHeadDim;
  part.blocks = blocks.address();
  part.weight_width = 1;
  part.dist_max = UINT32_MAX;
  const KvFormat format{c.type, c.type, row, row, kBlockSize * row, kBlockSize * row};
  std::vector<AttentionPart> choices(kChoices, part);
  for (uint32_t i = 0; i < kChoices; ++i) choices[i].items = items.address() + 4 * n_chosen * i;
  const Memory formats(std::vector{format}), parts(choices), ranges(units.ranges),
      spans(units.spans), pairs(units.pairs), tiles(units.tiles);
  const Memory partial(units.n_units * partial_bytes_per_unit(shape));
  const Memory o(heads * kHeadDim * sizeof(float)), lse(heads * sizeof(float));
  AttentionCall call{};
  call.shape = shape;
  call.type = c.type;
  call.formats = formats.address();
  call.ranges = ranges.address();
  call.spans = spans.address();
  call.pairs = pairs.address();
  call.tiles = tiles.address();
  call.prefill_product = c.product;
  call.instructions = c.instructions;
  describe_units(units, call);
  call.partial_o = partial.address();
  call.partial_lse = call.partial_o + units.n_units * (kQHeads / kKvHeads) * kHeadDim * 4;
  call.o = o.address();
  call.lse = lse.address();
  const double seconds = seconds_in_a_row(
      [&](uint32_t choice) {
        call.parts = parts.address() + sizeof(AttentionPart) * choice;
        attention_decode(call, {});
        attention_prefill(call, {});
        attention_merge(call, {});
      },
      n_runs);
  if (c.is_prompt()) return print_prompt(c, seconds, peak);
  print_row(c, static_cast<double>(n_chosen * kBlockSize * 2 * row), seconds, peak);
}

// Bytes per second that a kernel reads which does nothing else.
double read_bandwidth(uint64_t bytes, uint32_t n_runs) {
  const Memory from(bytes), sums(kReadBlocks * sizeof(uint32_t));
  fill_words(from.data, bytes / 4, 1, 0, {});
  return static_cast<double>(bytes) /
         seconds_in_a_row([&](uint32_t) { read_all(from.data, bytes, sums.data, {}); }, n_runs);
}

// Operations per second of a large product in bf16 by cuBLAS.
double product_peak(uint32_t n, uint32_t n_runs) {
  const uint64_t elements = uint64_t{n} * n;
  const Memory x(2 * elements), w(2 * elements), y(4 * elements);
  for (const Memory* of : {&x, &w})
    fill_words(of->data, elements / 2, kHalfPair, kRandomHalfPair, {});
  const Memory workspace(MatrixProducts::workspace_bytes());
  MatrixProducts products({}, workspace.data);
  const MatrixProduct product{x.address(), w.address(), y.address(), n, n, n, n, false};
  return 2.0 * n * static_cast<double>(elements) /
         seconds_in_a_row([&](uint32_t) { products.multiply(product); }, n_runs);
}

// Each case by the portable instructions, and by those of Hopper where these do something else.
void run_cases(std::initializer_list<Case> cases, bool is_portable, double peak, uint32_t n_runs) {
  const std::string problem = is_portable ? "--portable was given" : hopper_problem();
  for (Case c : cases) {
    run_case(c, peak, n_runs);
    const bool is_half = c.type == KvType::kF16 || c.type == KvType::kBF16;
    if (!problem.empty() || !c.is_prompt() || !is_half || c.product == KvType::kF32) continue;
    c.instructions = Instructions::kHopper;
    run_case(c, peak, n_runs);
  }
  if (!problem.empty()) std::printf("no rows of hopper: %s\n", problem.c_str());
}

int run(bool is_small, bool is_portable) {
  const std::string problem = device_problem();
  if (!problem.empty()) {
    std::fprintf(stderr, "gpu_bench: %s\n", problem.c_str());
    return 2;
  }
  const uint32_t context = is_small ? 512 : 131072, n_runs = is_small ? 1 : 50;
  const uint32_t chosen = is_small ? 1 : 96, window = is_small ? 128 : 4096;
  const uint32_t batch = is_small ? 2 : 16;
  const double bandwidth = read_bandwidth(is_small ? 1 << 16 : uint64_t{2} << 30, n_runs);
  std::printf("reads of the whole memory: %.0f GB/s\n\n", bandwidth / 1e9);
  std::printf("%-22s %-10s %6s %8s %10s %10s %10s %11s\n", "decode attention, 32/8", "with",
              "batch", "tokens", "MB", "ms", "GB/s", "of reads");
  run_cases({Case{"dense f16", KvType::kF16, 64, 1, context, 0, 0},
             Case{"dense bf16", KvType::kBF16, 64, 1, context, 0, 0},
             Case{"dense q8_0", KvType::kQ8_0, 34, 1, context, 0, 0},
             Case{"dense f16", KvType::kF16, 64, batch, context, 0, 0},
             Case{"blocks f16", KvType::kF16, 64, 1, context, chosen, window},
             Case{"blocks f16", KvType::kF16, 64, batch, context, chosen, window}},
            is_portable, bandwidth, n_runs);
  for (const uint32_t n : {1u, batch})
    kvasir::bench::print_summaries({n, context, chosen}, bandwidth, n_runs);
  const uint32_t n_q = is_small ? 10 : 2048, prompt = is_small ? 128 : 32768;
  const double peak = product_peak(is_small ? 64 : 8192, is_small ? 1 : 20);
  std::printf("\nproducts in bf16 by cuBLAS: %.1f TFLOP/s\n\n", peak / 1e12);
  std::printf("%-22s %-10s %6s %8s %10s %10s %10s %11s\n", "piece of a prompt, 32/8", "with",
              "batch", "tokens", "queries", "ms", "TFLOP/s", "of cuBLAS");
  run_cases({Case{"prompt f16", KvType::kF16, 64, 1, prompt, 0, 0, n_q, KvType::kF16},
             Case{"prompt bf16", KvType::kBF16, 64, 1, prompt, 0, 0, n_q, KvType::kBF16},
             Case{"prompt f16, in f32", KvType::kF16, 64, 1, prompt, 0, 0, n_q, KvType::kF32},
             Case{"prompt q8_0, in f32", KvType::kQ8_0, 34, 1, prompt, 0, 0, n_q, KvType::kF32}},
            is_portable, peak, is_small ? 1 : 5);
  if (is_small) {
    kvasir::bench::print_travel({3, 32, 1 << 16}, 1);
    kvasir::bench::print_layers({256, 512, 256, 9}, bandwidth, 1);
  } else {
    kvasir::bench::print_travel({256, 128, uint64_t{1} << 30}, 10);
    kvasir::bench::print_layers({4096, 14336, 1024, 512}, bandwidth, 20);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> options(argv + 1, argv + argc);
    const auto has = [&](const char* option) {
      return std::find(options.begin(), options.end(), option) != options.end();
    };
    return run(has("--small"), has("--portable"));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu_bench: %s\n", e.what());
    return 1;
  }
}
