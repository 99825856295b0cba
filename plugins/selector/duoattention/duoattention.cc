// Retrieval heads see everything, streaming heads the sink and the window only; which is which was
// found out beforehand. Xiao et al. 2024, "DuoAttention", arXiv:2410.10819.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/plugin.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <numeric>
#include <sstream>
#include <vector>

#include "plugins/shared/layers.h"
#include "plugins/shared/recent.h"
#include "plugins/shared/token_budget.h"

namespace {
using namespace kvasir;

constexpr std::array kOptions = {
    sdk::option(KVASIR_OPTION_PATH,
                {.key = "head_file",
                 .help = "a line per layer, a number per kv head: how much it retrieves",
                 .flags = KVASIR_OPTION_OPTIONAL},
                {KVASIR_OPTION_PATH, 0, 0, 0.0, "", nullptr}),
    sdk::budget_option(0),
    sdk::float_option({.key = "sparsity", .help = "share of the heads that stream"}, 0.5, 0.0, 1.0),
    sdk::evict_option("streaming heads give up what they do not see"), sdk::kPrefillSelectOption};

// Numbers of the file, [n_layers][n_kv_heads].
std::vector<double> read_heads(const std::string& path, uint32_t n_layers, uint32_t n_kv_heads) {
  const auto refuse = [&](const std::string& what) {
    sdk::fail_invalid("head_file " + path + ": " + what);
  };
  std::ifstream file(path);
  if (!file) refuse("it cannot be opened");
  std::vector<double> out;
  std::string line;
  for (uint32_t layer = 0; layer < n_layers; ++layer) {
    if (!std::getline(file, line)) {
      if (file.bad()) refuse("it cannot be read");
      refuse("it has " + std::to_string(layer) + " lines, the model has " +
             std::to_string(n_layers) + " layers");
    }
    std::istringstream numbers(line);
    double value = 0.0;
    const size_t wanted = size_t{layer + 1} * n_kv_heads;
    while (numbers >> value && std::isfinite(value) && out.size() <= wanted) out.push_back(value);
    if (!numbers.eof() || out.size() != wanted) {
      refuse("line " + std::to_string(layer + 1) + " must be " + std::to_string(n_kv_heads) +
             " numbers, one per kv head");
    }
  }
  while (std::getline(file, line))
    if (!line.empty()) refuse("it has more lines than the model has layers");
  if (file.bad()) refuse("it cannot be read");
  return out;
}

class DuoAttention {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_SELECTOR,
                     .id = "kvasir.duoattention",
                     .version = "0.1.0",
                     .name = "DuoAttention",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Retrieval heads see all, streaming heads sink and window.",
                     .options = kOptions,
                     .needs = KVASIR_NEED_TOKEN_ITEMS});

  DuoAttention(const sdk::Host& host, const sdk::Options& options)
      : host_(host),
        head_file_(options.delivered("head_file") ? options.path("head_file") : ""),
        budget_tokens_(options.u32("budget_tokens")),
        sparsity_(options.f64("sparsity")),
        recent_(options) {}

  void validate(const kvasir_geometry& geometry) const { classes(geometry); }

  void bind(const kvasir_geometry& geometry) {
    is_streaming_ = classes(geometry);
    n_kv_heads_ = geometry.n_kv_heads;
    mean_units_ = mean_units(geometry);
    if (head_file_.empty()) {
      host_.log(KVASIR_LOG_WARN,
                "no head_file: the first heads of each layer stream, whatever they do; measure "
                "the model's own for real use");
    }
  }

  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_TOKEN;
    out.scope = KVASIR_SCOPE_KV_HEAD;
    recent_.limits(out);
    const auto streams = [](bool is_streaming) { return is_streaming; };
    if (std::all_of(is_streaming_.begin(), is_streaming_.end(), streams))
      out.max_units = budget_tokens_;
    else
      out.expected_units = mean_units_;
  }

  // Without a budget it holds for what becomes a candidate later, too: asked once per layer and
  // prompt.
  void select(const sdk::Step& step, const kvasir_sel_in&, kvasir_selection& out) const {
    say(step, out);
    if (budget_tokens_ == 0) out.reuse_steps = UINT32_MAX;
  }

  void evict_plan(const sdk::Step& step, kvasir_selection& out) const { say(step, out); }

 private:
  void say(const sdk::Step& step, kvasir_selection& out) const {
    const uint32_t n_lists = step.n_seqs() * n_kv_heads_;
    const auto streams = [&](uint32_t i) {
      return is_streaming_[step.layer() * n_kv_heads_ + i % n_kv_heads_];
    };
    const auto from = [&](uint32_t i) { return step.candidates(i / n_kv_heads_, i % n_kv_heads_); };
    sdk::lay_out_lists(out, KVASIR_SCOPE_KV_HEAD, n_lists, [&](uint32_t i) {
      return streams(i) ? sdk::n_recent(from(i), budget_tokens_) : 0;
    });
    for (uint32_t i = 0; i < n_lists; ++i) {
      if (!streams(i)) {
        out.list_flags[i] = KVASIR_LIST_ALL;
      } else if (budget_tokens_ == 0) {
        out.list_flags[i] = KVASIR_LIST_NONE;
      } else {
        sdk::take_recent(from(i), sdk::list_indices(out, i));
      }
    }
  }

  // Tokens beyond sink and window of a full context, mean over the heads that are asked at all.
  uint64_t mean_units(const kvasir_geometry& g) const {
    const uint64_t forced = uint64_t{g.sink_tokens} + std::max(1u, g.window_tokens);
    const uint64_t all = g.max_context - std::min<uint64_t>(g.max_context, forced);
    uint64_t n = 0, sum = 0;
    for (size_t i = 0; i < is_streaming_.size(); ++i) {
      if (sdk::is_dense_layer(g, static_cast<uint32_t>(i / n_kv_heads_))) continue;
      sum += is_streaming_[i] ? std::min<uint64_t>(all, budget_tokens_) : all;
      ++n;
    }
    return n == 0 ? 0 : sum / n;
  }

  // sparsity * heads, to the nearest head, stream: the smallest numbers; of equal ones, the first.
  std::vector<bool> classes(const kvasir_geometry& geometry) const {
    const size_t n = size_t{geometry.n_layers} * geometry.n_kv_heads;
    std::vector<double> value(n);
    if (head_file_.empty()) {
      for (size_t i = 0; i < n; ++i) value[i] = static_cast<double>(i % geometry.n_kv_heads);
    } else {
      value = read_heads(head_file_, geometry.n_layers, geometry.n_kv_heads);
    }
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return value[a] < value[b]; });
    std::vector<bool> out(n);
    const auto streaming = static_cast<size_t>(std::round(sparsity_ * static_cast<double>(n)));
    for (size_t i = 0; i < streaming; ++i) out[order[i]] = true;
    return out;
  }

  sdk::Host host_;
  std::string head_file_;
  uint32_t budget_tokens_;  // of streaming heads
  double sparsity_;
  sdk::RecentOnly recent_;
  uint32_t n_kv_heads_ = 1;
  uint64_t mean_units_ = 0;
  std::vector<bool> is_streaming_;  // [layer][kv_head]
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.duoattention", "0.1.0", DuoAttention)
