// kvasir bench weights: products of one row and of many with matrices of each type.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "core/error.h"
#include "core/model/gguf/quant.h"
#include "tools/kvasir/bench/weights_bench.h"
#include "tools/kvasir/cli/options.h"
#include "tools/kvasir/cli/output_format.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"

namespace kvasir::tool {
namespace {

constexpr const char* kWeightsColumns =
    "One line per type and number of rows; repetitions of all types take turns. +/- is the "
    "distance "
    "from the first quartile to the third, of the median:\n"
    "  compute   int8 of quantised weights as they lie, else bf16 where the CPU has it, or f32;\n"
    "            --compute f32 multiplies F16 and BF16 as they lie, and expands what is quantised\n"
    "  outputs   of the matrix that is multiplied: all of it for up to 8 rows, else at most 8192\n"
    "  ms        of a product, median\n"
    "  MB        moved: weights as they lie in memory, rows, what comes out\n"
    "  of read   GB/s divided by what the machine reads in the same run\n"
    "  GMAC/s    multiply-adds\n"
    "  of f32    that divided by what the machine does in f32 from registers in the same run; int8 "
    "and bf16 may do more";

struct WeightsOptions {
  std::string types, rows = "1,32,512", compute = "auto";
  uint32_t n_in = 4096, mebibytes = 128, n_repetitions = 5, threads = 0;
  NodeUse numa = NodeUse::kAll;
  OutputFormat format = OutputFormat::kMarkdown;
};

constexpr GgmlType kAllTypes[] = {GgmlType::kF32,  GgmlType::kBF16, GgmlType::kQ8_0,
                                  GgmlType::kQ6_K, GgmlType::kQ5_K, GgmlType::kQ5_1,
                                  GgmlType::kQ5_0, GgmlType::kQ4_K, GgmlType::kIQ4_NL,
                                  GgmlType::kQ4_1, GgmlType::kQ4_0};

std::vector<GgmlType> types_of(const std::string& list) {
  if (list.empty()) return {std::begin(kAllTypes), std::end(kAllTypes)};
  std::vector<GgmlType> out;
  for (const std::string& word : split(list, ',')) {
    const auto type = ggml_type_by_name(word);
    if (!type || !is_written(*type))
      throw input_error("--type " + word +
                        ": expected f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl, q4_k, "
                        "q5_k or q6_k, separated by commas");
    out.push_back(*type);
  }
  return out;
}

Compute compute_of(const std::string& text) {
  if (text == "auto") return Compute::kInt8;
  const Compute compute = text == "f32" ? Compute::kF32 : Compute::kBF16;
  if (!compute_supported(compute))
    throw input_error("--compute bf16 needs a CPU with AVX-512 BF16 or AMX; use f32");
  return compute;
}

void bench_weights(const WeightsOptions& o) {
  if (o.n_repetitions == 0) throw input_error("-r must be above 0");
  WeightsSettings settings;
  settings.types = types_of(o.types);
  settings.n_rows = parse_counts(o.rows, "--rows");
  settings.compute = compute_of(o.compute);
  settings.n_in = o.n_in;
  settings.bytes = uint64_t{o.mebibytes} << 20;
  settings.n_repetitions = o.n_repetitions;
  ThreadPool pool(Topology::detect(o.numa), o.threads);
  print(measure_weights(pool, settings), o.format);
}

}  // namespace

Json to_json(const WeightsReport& r) {
  Json out = {{"n_in", r.n_in},
              {"repetitions", r.n_repetitions},
              {"limits", to_json(r.limits)},
              {"rows", Json::array()}};
  for (const WeightsRow& row : r.rows)
    out["rows"].push_back(
        {{"type", name(row.type)},
         {"compute", name(row.compute)},
         {"n_rows", row.n_rows},
         {"n_out", row.n_out},
         {"seconds", row.seconds.middle},
         {"spread", row.seconds.spread},
         {"bytes", row.bytes},
         {"bytes_per_second", row.bytes_per_second()},
         {"of_read",
          json_or_null(share_of(row.bytes_per_second(), r.limits.read_bandwidth.middle))},
         {"multiply_adds_per_second", row.multiply_adds_per_second()},
         {"of_multiply_adds", json_or_null(share_of(row.multiply_adds_per_second(),
                                                    r.limits.multiply_add_rate.middle))}});
  return out;
}

std::string to_text(const WeightsReport& r) {
  Table table({"type", "compute", "rows", "outputs", "ms", "+/-", "MB", "GB/s", "of read", "GMAC/s",
               "of f32"},
              {2, 3, 4, 5, 6, 7, 8, 9, 10});
  for (const WeightsRow& row : r.rows)
    table.add({name(row.type), name(row.compute), std::to_string(row.n_rows),
               std::to_string(row.n_out), format("%.3f", 1e3 * row.seconds.middle),
               percent_text(row.seconds.spread),
               format("%.1f", static_cast<double>(row.bytes) / 1e6),
               format("%.2f", row.bytes_per_second() / 1e9),
               share_text(row.bytes_per_second(), r.limits.read_bandwidth.middle),
               format("%.1f", row.multiply_adds_per_second() / 1e9),
               share_text(row.multiply_adds_per_second(), r.limits.multiply_add_rate.middle)});
  return format("Rows of %u inputs, %u repetitions\n", r.n_in, r.n_repetitions) +
         to_text(r.limits) + "\nThe columns: kvasir bench weights --help\n\n" + table.markdown();
}

void add_bench_weights(CLI::App& bench) {
  auto* c = bench.add_subcommand(
      "weights", "Products of one row and of many with matrices of each type of weights");
  auto o = std::make_shared<WeightsOptions>();
  c->footer(kWeightsColumns);
  c->add_option("--type", o->types,
                "Types, separated by commas (default: f32, bf16, quantised ones)");
  c->add_option("--rows", o->rows, "Rows that share a product: 1 of a decoded token (1,32,512)");
  c->add_option("--n-in", o->n_in, "Inputs of the matrices (4096)");
  c->add_option("--mebibytes", o->mebibytes,
                "Of the matrix of each type (128): well above the CPU's caches");
  c->add_option("--compute", o->compute, "Arithmetic of all types but F32 (auto)")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}));
  c->add_option("-r,--repetitions", o->n_repetitions, "Of each product (5)");
  c->add_option("-t,--threads", o->threads, "Worker threads (default: one per physical core)");
  add_numa(*c, o->numa);
  add_output_format(*c, o->format);
  c->callback([=] { bench_weights(*o); });
}

}  // namespace kvasir::tool
