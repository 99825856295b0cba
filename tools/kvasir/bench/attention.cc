// kvasir bench attention: the attention backend alone, without a model.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <algorithm>

#include "core/error.h"
#include "tools/kvasir/bench/attention_bench.h"
#include "tools/kvasir/cli/output_format.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"

namespace kvasir::tool {
namespace {

constexpr const char* kAttentionColumns =
    "One layer, keys and values from a seed; repetitions of all rows take turns. Rows:\n"
    "  dense      a decoded token over all keys\n"
    "  blocks     a decoded token over --blocks blocks per kv head, drawn at random, and a window\n"
    "  pp512      512 queries of a prompt behind that many keys\n"
    "Columns:\n"
    "  ms         in the backend, median\n"
    "  +/-        from the first quartile to the third, of the median\n"
    "  with core  ms with the core's work around it: parts, leases, checks of what comes back\n"
    "  MB         K and V that are attended, each once\n"
    "  GB/s       that per ms; prompts have none, their queries share what is read\n"
    "  of read    GB/s / read bandwidth of the same run\n"
    "  GFLOP/s    2 per multiply-add of q K and p V, masked keys left out\n"
    "  of f32     GFLOP/s / f32 multiply-adds of the same run";

struct AttentionOptions {
  AttentionShape shape;
  std::string compute = "auto";
  std::string depths = "131072", prompt_depths = "8192";
  std::string types_k, types_v;
  uint32_t n_repetitions = 20;
  OutputFormat format = OutputFormat::kMarkdown;
};

void check(const AttentionOptions& o) {
  const AttentionShape& s = o.shape;
  if (s.n_kv_heads == 0 || s.n_q_heads == 0 || s.n_q_heads % s.n_kv_heads != 0)
    throw input_error("--kv-heads must divide --heads");
  if (s.head_dim == 0 || s.head_dim % 16 != 0 || s.head_dim > 1024)
    throw input_error("--head-dim must be a multiple of 16, up to 1024");
  if (s.block_size == 0 || o.n_repetitions == 0)
    throw input_error("--block-size and -r must be above 0");
}

void bench_attention(const Options& options, AttentionOptions o) {
  check(o);
  o.shape.rounds = o.compute != "f32";
  o.shape.depths = parse_counts(o.depths, "-d", 1);
  o.shape.prompt_depths = parse_counts(o.prompt_depths, "--prompt-depth", 0);
  for (const std::string& k : split(o.types_k, ','))
    for (const std::string& v : split(o.types_v, ',')) o.shape.types.emplace_back(k, v);
  print(measure_attention(options, o.shape, o.n_repetitions), o.format);
}

const char* kind_name(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kDense:
      return "dense";
    case AttentionKind::kBlocks:
      return "blocks";
    case AttentionKind::kPrompt:
      return "prompt";
  }
  return "";
}

Json or_null(double value) { return value > 0 ? Json(value) : Json(); }

Json row_json(const AttentionRow& r, const MeasuredLimits& limits) {
  return {{"test", r.name()},
          {"kind", kind_name(r.kind)},
          {"n_depth", r.depth},
          {"n_queries", r.n_queries},
          {"type_k", r.type_k},
          {"type_v", r.type_v},
          {"ms", r.ms.middle},
          {"spread", r.ms.spread},
          {"attend_ms", r.attend_ms},
          {"kv_bytes", r.kv_bytes},
          {"tokens_attended", r.tokens_attended},
          {"bytes_per_second", or_null(r.bytes_per_second())},
          {"of_read_bandwidth",
           json_or_null(share_of(r.bytes_per_second(), limits.read_bandwidth.middle))},
          {"flop", r.flop},
          {"flop_per_second", r.flop_per_second()},
          {"of_multiply_add_rate",
           json_or_null(share_of(r.flop_per_second(), 2.0 * limits.multiply_add_rate.middle))}};
}

}  // namespace

std::string AttentionRow::name() const {
  const std::string what =
      kind == AttentionKind::kPrompt ? format("pp%u", n_queries) : kind_name(kind);
  return what + format(" @ d%u", depth);
}

double AttentionRow::bytes_per_second() const {
  if (kind == AttentionKind::kPrompt || ms.middle <= 0) return 0;
  return 1e3 * static_cast<double>(kv_bytes) / ms.middle;
}

Json to_json(const AttentionReport& r) {
  Json out = {{"backend", r.backend},
              {"n_q_heads", r.shape.n_q_heads},
              {"n_kv_heads", r.shape.n_kv_heads},
              {"head_dim", r.shape.head_dim},
              {"block_size", r.shape.block_size},
              {"blocks", r.shape.n_blocks},
              {"window_tokens", r.shape.window_tokens},
              {"compute", r.shape.rounds ? "auto" : "f32"},
              {"repetitions", r.n_repetitions},
              {"limits", to_json(r.limits)},
              {"rows", Json::array()}};
  for (const AttentionRow& row : r.rows) out["rows"].push_back(row_json(row, r.limits));
  return out;
}

std::string to_text(const AttentionReport& r) {
  Table table(
      {"test", "K", "V", "ms", "+/-", "with core", "MB", "GB/s", "of read", "GFLOP/s", "of f32"},
      {3, 4, 5, 6, 7, 8, 9, 10});
  for (const AttentionRow& row : r.rows) {
    const double rate = row.bytes_per_second();
    table.add({row.name(), row.type_k, row.type_v, format("%.3f", row.ms.middle),
               percent_text(row.ms.spread), format("%.3f", row.attend_ms),
               format("%.2f", static_cast<double>(row.kv_bytes) / 1e6),
               rate > 0 ? format("%.2f", rate / 1e9) : "-",
               share_text(rate, r.limits.read_bandwidth.middle),
               format("%.1f", row.flop_per_second() / 1e9),
               share_text(row.flop_per_second(), 2.0 * r.limits.multiply_add_rate.middle)});
  }
  return format(
             "%s: one layer, %u query heads and %u kv heads x %u, blocks of %u tokens; blocks: %u "
             "per kv head and a window of %u tokens; %s\n",
             r.backend.c_str(), r.shape.n_q_heads, r.shape.n_kv_heads, r.shape.head_dim,
             r.shape.block_size, r.shape.n_blocks, r.shape.window_tokens,
             r.shape.rounds ? "what a backend may round is rounded" : "all arithmetic in f32") +
         to_text(r.limits) + "\nThe columns: kvasir bench attention --help\n\n" + table.markdown();
}

void add_bench_attention(CLI::App& bench) {
  auto* c = bench.add_subcommand(
      "attention",
      "The attention backend alone, over blocks of a storage: a decoded token over all keys and "
      "over chosen blocks, and a piece of a prompt. No model");
  auto options = std::make_shared<Options>();
  auto o = std::make_shared<AttentionOptions>();
  AttentionShape& s = o->shape;
  c->footer(kAttentionColumns);
  c->add_option("--heads", s.n_q_heads, "Query heads (32)");
  c->add_option("--kv-heads", s.n_kv_heads, "kv heads (8)");
  c->add_option("--head-dim", s.head_dim, "Elements of a key and of a value (128)");
  c->add_option("-d,--n-depth", o->depths, "Keys of decoded tokens, also 4K or 1M (131072)");
  c->add_option("--block-size", s.block_size, "Tokens per block (128)");
  c->add_option("--blocks", s.n_blocks, "Blocks chosen per kv head, 0 for no such rows (96)");
  c->add_option("--window", s.window_tokens, "Last tokens, attended besides (4096)");
  c->add_option("-p,--n-prompt", s.n_prompt, "Queries of a prompt, 0 for no such rows (512)");
  c->add_option("--prompt-depth", o->prompt_depths, "Keys before them (8192)");
  c->add_option(
      "--ctk,--cache-type-k", o->types_k,
      "Types of stored K, separated by commas: f32, f16, bf16, q8_0, q4_0, fp8_e4m3 (f16)");
  c->add_option("--ctv,--cache-type-v", o->types_v,
                "Types of stored V; each type of K is measured with each type of V");
  c->add_option(
       "--compute", o->compute,
       "What a model computes in: f32, or auto, where backends may round what they multiply "
       "(auto)")
      ->check(CLI::IsMember({"auto", "f32"}));
  c->add_option("-r,--repetitions", o->n_repetitions, "Repetitions of each row (20)");
  c->add_option("-t,--threads", options->threads, "Worker threads (default: one per physical core)")
      ->envname("KVASIR_ARG_THREADS");
  add_numa(*c, options->numa);
  c->add_option("--seed", options->seed, "Seed of keys, values and chosen blocks");
  c->add_option("--set", options->set, "Override a key of the strategy, as attention.plugin=NAME")
      ->allow_extra_args(false);
  c->add_option("--plugin-dir", options->plugin_dirs, "Folder to search for plugins first")
      ->allow_extra_args(false);
  add_output_format(*c, o->format);
  c->callback([=] { bench_attention(*options, *o); });
}

}  // namespace kvasir::tool
