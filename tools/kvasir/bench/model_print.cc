// How kvasir bench model prints what it measured.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/task/statistics.h"
#include "kernels/simd_target.h"
#include "tools/kvasir/bench/model_bench.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/strategy.h"
#include "tools/kvasir/session/tier_report.h"

namespace kvasir::tool {

const char* const kModelColumns =
    "Tests are named as llama-bench names them. Repetitions of all of them take turns. Columns:\n"
    "  test       pp512: reading a prompt of 512 tokens; tg128: decoding 128 tokens one by one; "
    "@ d4096: behind 4,096 cached ones. Tokens are random\n"
    "  K, V       types of stored K and V\n"
    "  t/s        tokens per second, median of the repetitions\n"
    "  +/-        from their first quartile to the third, of the median\n"
    "  ms/token   1000 / (t/s)\n"
    "  MB/token   weights, K, V and what choosing read, per decoded token, from main memory\n"
    "  GB/s       that, times t/s\n"
    "  of read    GB/s / read bandwidth of the same run\n"
    "  GFLOP/s    of prompts: 2 per multiply-add of the layers' matrices, per second spent in "
    "them\n"
    "  of f32     GFLOP/s / f32 multiply-adds of the same run; above 100 % with bf16 or integer "
    "products\n"
    "  attended   tokens attended, of those cached\n"
    "  fallbacks  times that a plugin failed and a layer was dense instead\n"
    "  GPU MB     MB/token of what lies in a GPU's memory, which the four columns from MB/token on "
    "leave out; only where there is any\n"
    "--breakdown adds ms/token by part: projections (of attention, with norm), selection "
    "(selectors "
    "and scores of representatives), attention (over what was chosen, and the wait for it), FFN, "
    "logits (and embedding), other (K and V written, representatives kept up, eviction). Of layers "
    "on a GPU projections are those of q, k and v, and FFN is all behind attention.\n"
    "A context of a depth is made up: keys and values like those that the model projects of random "
    "tokens, stored and shown to representatives and selectors as a prompt's are. Its attention is "
    "computed only where a plugin asks for attention mass, of the prompt's last 64 queries and of "
    "one per chunk before them. Speed depends on what is chosen, quality says nothing. Of a "
    "storage of "
    "several tiers, what moved stands below the tables.";

namespace {

double deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  double sum = 0;
  for (const double value : values) sum += (value - mean(values)) * (value - mean(values));
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

Json or_null(double value) { return value > 0 ? Json(value) : Json(); }

Json parts_json(const ModelRow& r) {
  const double n = r.test.n_tokens();
  return {{"projections_ms", r.parts.projections / n}, {"selection_ms", r.parts.choose / n},
          {"attention_ms", r.parts.attend / n},        {"ffn_ms", r.parts.ffn / n},
          {"logits_ms", r.parts.logits / n},           {"other_ms", r.parts.other / n}};
}

Json row_json(const ModelRow& r, const MeasuredLimits& limits) {
  const Typical speed = r.speed();
  Json out{{"test", r.test.name()},
           {"n_prompt", r.test.n_prompt},
           {"n_gen", r.test.n_generate},
           {"n_depth", r.test.depth},
           {"strategy", r.strategy},
           {"type_k", r.type_k},
           {"type_v", r.type_v},
           {"avg_ts", mean(r.tokens_per_second)},
           {"stddev_ts", deviation(r.tokens_per_second)},
           {"median_ts", speed.middle},
           {"spread", speed.spread},
           {"samples_ts", r.tokens_per_second},
           {"weight_bytes_per_token", r.weight_bytes},
           {"kv_bytes", r.counted.kv_bytes_read},
           {"bytes_to_choose", r.counted.bytes_read_to_choose()},
           {"bytes_per_token", or_null(r.bytes_per_token())},
           {"bytes_per_second", or_null(r.bytes_per_second())},
           {"device_weight_bytes_per_token", r.device_weight_bytes},
           {"device_bytes_per_token", or_null(r.device_bytes_per_token())},
           {"of_read_bandwidth",
            json_or_null(share_of(r.bytes_per_second(), limits.read_bandwidth.middle))},
           {"flop_per_second", or_null(r.flops())},
           {"of_multiply_add_rate",
            json_or_null(share_of(r.flops(), 2.0 * limits.multiply_add_rate.middle))},
           {"tokens_considered", r.counted.tokens_considered},
           {"tokens_attended", r.counted.tokens_attended},
           {"fallbacks", r.counted.fallbacks},
           {"per_token", parts_json(r)}};
  add_tiers(out, r.counted);
  return out;
}

std::string number(double value, double unit) {
  return value > 0 ? format("%.2f", value / unit) : "-";
}

std::string speed_table(const ModelReport& report) {
  std::vector<std::string> header = {"test",    "strategy", "K",        "V",        "t/s",
                                     "+/-",     "ms/token", "MB/token", "GB/s",     "of read",
                                     "GFLOP/s", "of f32",   "attended", "fallbacks"};
  const bool on_device = std::any_of(report.rows.begin(), report.rows.end(), [](const ModelRow& r) {
    return r.device_bytes_per_token() > 0;
  });
  if (on_device) header.push_back("GPU MB");
  Table table(header, {4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14});
  for (const ModelRow& r : report.rows) {
    const Typical speed = r.speed();
    std::vector<std::string> row = {
        r.test.name(),
        r.strategy,
        r.type_k,
        r.type_v,
        format("%.2f", speed.middle),
        percent_text(speed.spread),
        format("%.3f", 1e3 / speed.middle),
        number(r.bytes_per_token(), 1e6),
        number(r.bytes_per_second(), 1e9),
        share_text(r.bytes_per_second(), report.limits.read_bandwidth.middle),
        number(r.flops(), 1e9),
        share_text(r.flops(), 2.0 * report.limits.multiply_add_rate.middle),
        percent_text(r.attended_share()),
        std::to_string(r.counted.fallbacks)};
    if (on_device) row.push_back(number(r.device_bytes_per_token(), 1e6));
    table.add(std::move(row));
  }
  return table.markdown();
}

std::string parts_table(const ModelReport& report) {
  Table table({"test", "strategy", "K", "V", "ms/token", "projections", "selection", "attention",
               "FFN", "logits", "other"},
              {4, 5, 6, 7, 8, 9, 10});
  for (const ModelRow& r : report.rows) {
    const double n = r.test.n_tokens();
    const ModelParts& p = r.parts;
    table.add({r.test.name(), r.strategy, r.type_k, r.type_v,
               format("%.3f", 1e3 / r.speed().middle), format("%.4f", p.projections / n),
               format("%.4f", p.choose / n), format("%.4f", p.attend / n),
               format("%.4f", p.ffn / n), format("%.4f", p.logits / n),
               format("%.4f", p.other / n)});
  }
  return "\nms per token, by part:\n\n" + table.markdown();
}

std::string tiers_lines(const ModelReport& report) {
  std::string out;
  for (const ModelRow& r : report.rows) {
    const std::string text = tiers_text(r.counted, static_cast<double>(r.counted.steps));
    if (!text.empty()) out += "\n" + r.test.name() + ", " + r.strategy + ":\n" + text;
  }
  return out;
}

}  // namespace

bool ModelReport::has_made_up_context() const {
  return std::any_of(rows.begin(), rows.end(),
                     [](const ModelRow& row) { return row.test.depth > 0; });
}

Json to_json(const ModelReport& r) {
  Json out = to_json(r.setup);
  out["version"] = KVASIR_VERSION;
  out["simd"] = kernels::simd_target_name();
  out["model_name"] = r.model_name;
  out["model_size"] = r.file_bytes;
  out["model_n_params"] = r.n_parameters;
  out["load_ms"] = r.load_ms;
  out["repetitions"] = r.n_repetitions;
  out["seed"] = r.seed;
  out["context_is_made_up"] = r.has_made_up_context();
  out["limits"] = to_json(r.limits);
  out["rows"] = Json::array();
  for (const ModelRow& row : r.rows) out["rows"].push_back(row_json(row, r.limits));
  return out;
}

std::string to_text(const ModelReport& r) {
  return format("%s: %.2f billion weights, %s; %s, %u threads, %s, kvasir %s, %u repetitions\n",
                r.model_name.c_str(), static_cast<double>(r.n_parameters) / 1e9,
                bytes_text(r.file_bytes).c_str(), name(r.setup.compute), r.setup.n_threads,
                kernels::simd_target_name(), KVASIR_VERSION, r.n_repetitions) +
         to_text(r.limits) + "\n" +
         (r.has_made_up_context()
              ? "Contexts of a depth (@ d) are made up from the seed, no prompt was computed.\n"
              : "") +
         "The columns: kvasir bench model --help\n\n" + speed_table(r) +
         (r.breakdown ? parts_table(r) : "") + tiers_lines(r);
}

}  // namespace kvasir::tool
