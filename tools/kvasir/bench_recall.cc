// kvasir bench recall: strategies where the truth is known. Queries, keys and values are made, not
// computed by a model: needles of a given attention mass at given places among keys of heavy-tailed
// weight, rotated as a model would. Every strategy sees the same ones at the same budget.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "core/model/prescribed_model.h"
#include "core/runtime/engine.h"
#include "tools/kvasir/arms.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/plugin_host.h"
#include "tools/kvasir/report.h"
#include "tools/kvasir/text.h"

namespace kvasir::tool {
namespace {

using Json = nlohmann::ordered_json;

struct RecallOptions {
  std::vector<std::string> strategies;
  uint32_t context = 4096, budget = 512, steps = 32, block_size = 16, sink = 16, window = 64;
  uint32_t n_layers = 4, n_q_heads = 8, n_kv_heads = 2, head_dim = 64, needles = 8;
  double needle_mass = 0.5, drift = 0.3;
};

// One layer's vectors after rotation, from which those before it are made.
class World {
 public:
  World(const RecallOptions& o, uint64_t seed) : o_(o), rope_(rope_config(o), o.context + o.steps) {
    std::mt19937_64 random(seed);
    std::uniform_int_distribution<uint32_t> place(o.sink, o.context - o.window - 1);
    while (needles_.size() < o.needles) needles_.insert(place(random));
    const size_t n = o.context + o.steps;
    layers_.resize(o.n_layers);
    for (Layer& layer : layers_) {
      layer.k.resize(n * o.n_kv_heads * o.head_dim);
      layer.v.resize(layer.k.size());
      layer.q.resize(n * o.n_q_heads * o.head_dim);
      fill(layer, random);
    }
  }

  static RopeConfig rope_config(const RecallOptions& o) {
    RopeConfig rope;
    rope.n_dims = o.head_dim;
    rope.base = 500000.0f;
    return rope;
  }

  // Before rotation, as PrescribedModel::Project wants them; token = position.
  void project(uint32_t layer, int32_t token, float* q, float* k, float* v) const {
    const auto at = static_cast<uint32_t>(token);
    const Layer& from = layers_[layer];
    turn_back(from.q, o_.n_q_heads, at, q);
    if (!k) return;
    turn_back(from.k, o_.n_kv_heads, at, k);
    const size_t width = size_t{o_.n_kv_heads} * o_.head_dim;
    std::copy_n(from.v.data() + at * width, width, v);
  }

  // Softmax over tokens [0, pos] of the query at pos, and its output.
  struct Truth {
    std::vector<double> mass, o;
  };
  Truth truth(uint32_t layer, uint32_t pos, uint32_t q_head) const {
    const Layer& from = layers_[layer];
    const uint32_t head = q_head / (o_.n_q_heads / o_.n_kv_heads), dim = o_.head_dim;
    const float* q = from.q.data() + (size_t{pos} * o_.n_q_heads + q_head) * dim;
    Truth out{std::vector<double>(pos + 1), std::vector<double>(dim)};
    for (uint32_t t = 0; t <= pos; ++t) {
      const float* k = from.k.data() + (size_t{t} * o_.n_kv_heads + head) * dim;
      for (uint32_t d = 0; d < dim; ++d) out.mass[t] += double{q[d]} * double{k[d]};
      out.mass[t] /= std::sqrt(static_cast<double>(dim));
    }
    const double high = *std::max_element(out.mass.begin(), out.mass.end());
    double sum = 0;
    for (double& x : out.mass) sum += x = std::exp(x - high);
    for (uint32_t t = 0; t <= pos; ++t) {
      out.mass[t] /= sum;
      const float* v = from.v.data() + (size_t{t} * o_.n_kv_heads + head) * dim;
      for (uint32_t d = 0; d < dim; ++d) out.o[d] += out.mass[t] * double{v[d]};
    }
    return out;
  }
  const std::set<uint32_t>& needles() const { return needles_; }

 private:
  struct Layer {
    std::vector<float> q, k, v;  // [token][head][head_dim]
  };

  // Logits of ordinary keys: normal with a deviation of 2, so that their weights are log-normal;
  // needles stand out by what gives them the wanted share of the sum. Queries of a group lean the
  // same way and drift from token to token, as those of a sentence do.
  void fill(Layer& layer, std::mt19937_64& random) const {
    constexpr double kDeviation = 2.0;
    std::normal_distribution<double> normal;
    const uint32_t dim = o_.head_dim, group = o_.n_q_heads / o_.n_kv_heads;
    const size_t n = o_.context + o_.steps;
    const double share = o_.needle_mass / (1.0 - o_.needle_mass);
    const double needle_logit =
        std::log(share * o_.context / o_.needles) + kDeviation * kDeviation / 2.0;
    for (uint32_t head = 0; head < o_.n_kv_heads; ++head) {
      std::vector<double> lean(dim);  // of length 1
      double length = 0;
      for (double& x : lean) {
        x = normal(random);
        length += x * x;
      }
      for (double& x : lean) x /= std::sqrt(length);
      const double scale = std::sqrt(static_cast<double>(dim));  // |q|: logits are then cos * |k|
      for (size_t t = 0; t < n; ++t) {
        const bool is_needle = needles_.contains(static_cast<uint32_t>(t));
        const double along = is_needle ? needle_logit : kDeviation * normal(random);
        float* k = layer.k.data() + (t * o_.n_kv_heads + head) * dim;
        float* v = layer.v.data() + (t * o_.n_kv_heads + head) * dim;
        for (uint32_t d = 0; d < dim; ++d) {
          k[d] = static_cast<float>(along * lean[d] + 0.5 * normal(random));
          v[d] = static_cast<float>(normal(random));
        }
        for (uint32_t g = 0; g < group; ++g) {
          float* q = layer.q.data() + (t * o_.n_q_heads + size_t{head} * group + g) * dim;
          std::vector<double> direction(dim);
          double norm = 0;
          for (uint32_t d = 0; d < dim; ++d) {
            direction[d] = lean[d] + o_.drift * normal(random) / scale;
            norm += direction[d] * direction[d];
          }
          for (uint32_t d = 0; d < dim; ++d)
            q[d] = static_cast<float>(direction[d] * scale / std::sqrt(norm));
        }
      }
    }
  }

  void turn_back(const std::vector<float>& from, uint32_t heads, uint32_t token, float* to) const {
    const size_t width = size_t{heads} * o_.head_dim;
    std::copy_n(from.data() + token * width, width, to);
    const int32_t back[] = {-static_cast<int32_t>(token)};
    rope_.shift(to, 1, heads, o_.head_dim, back, o_.context);
  }

  const RecallOptions& o_;
  RopeTable rope_;
  std::set<uint32_t> needles_;
  std::vector<Layer> layers_;
};

// Means over decode steps, layers and query heads. `best` and `chance`: what the exact choice, and
// the mean of all choices, of as many tokens and of the same unit captures beside sink and window.
struct Figures {
  double attended = 0, captured = 0, best = 0, chance = 0, needles = 0, recall = 0, error = 0;
  uint64_t n = 0;
};

class Meter {
 public:
  Meter(const RecallOptions& o, const World& world) : o_(o), world_(world) {}

  // Tokens a choice is made of: 1, or those of a block.
  void unit(uint32_t tokens) { unit_ = tokens; }

  void attended(uint32_t layer, uint32_t kv_head, std::span<const uint32_t> tokens) {
    attended_[{layer, kv_head}].assign(tokens.begin(), tokens.end());
  }

  // Output of one decoded token.
  void output(uint32_t layer, uint32_t pos, const float* o) {
    if (pos < o_.context || layer == 0) return;  // the first layer is dense
    const uint32_t group = o_.n_q_heads / o_.n_kv_heads;
    for (uint32_t kv_head = 0; kv_head < o_.n_kv_heads; ++kv_head) {
      const auto& tokens = attended_[{layer, kv_head}];
      const std::set<uint32_t> seen(tokens.begin(), tokens.end());
      std::vector<double> of_group(pos + 1);
      for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const World::Truth truth = world_.truth(layer, pos, head);
        for (uint32_t t = 0; t <= pos; ++t) of_group[t] += truth.mass[t];
        add(truth, seen, o + size_t{head} * o_.head_dim);
      }
      add_bounds(of_group, seen.size());
    }
  }
  const Figures& figures() const { return figures_; }

 private:
  void add(const World::Truth& truth, const std::set<uint32_t>& seen, const float* o) {
    double captured = 0, on_needles = 0, of_needles = 0;
    for (const uint32_t t : seen) captured += truth.mass[t];
    for (const uint32_t t : world_.needles()) {
      of_needles += truth.mass[t];
      on_needles += seen.contains(t) ? truth.mass[t] : 0.0;
    }
    double error = 0, length = 0;
    for (uint32_t d = 0; d < o_.head_dim; ++d) {
      const double want = truth.o[d], got = double{o[d]};
      error += (want - got) * (want - got);
      length += want * want;
    }
    figures_.attended += static_cast<double>(seen.size());
    figures_.captured += captured;
    figures_.needles += of_needles > 0 ? on_needles / of_needles : 1.0;
    figures_.recall += recall(truth.mass, seen);
    figures_.error += std::sqrt(error / length);
    ++figures_.n;
  }

  // `mass`: summed over the query heads of one kv head, whose set of `n_attended` tokens is common.
  // Units that sink or window touch are forced; the others are ranked, or drawn.
  void add_bounds(const std::vector<double>& mass, size_t n_attended) {
    const size_t n = mass.size();
    double forced = 0, other = 0;
    size_t n_forced = 0;
    std::vector<double> units;
    for (size_t begin = 0; begin < n; begin += unit_) {
      const size_t end = std::min<size_t>(begin + unit_, n);
      const double sum = std::accumulate(mass.begin() + static_cast<ptrdiff_t>(begin),
                                         mass.begin() + static_cast<ptrdiff_t>(end), 0.0);
      if (begin < o_.sink || end + o_.window > n) {
        forced += sum;
        n_forced += end - begin;
      } else {
        units.push_back(sum);
        other += sum;
      }
    }
    const size_t chosen =
        n_attended > n_forced
            ? std::min<size_t>((n_attended - n_forced + unit_ - 1) / unit_, units.size())
            : 0;
    std::partial_sort(units.begin(), units.begin() + static_cast<ptrdiff_t>(chosen), units.end(),
                      std::greater<>());
    figures_.best +=
        std::accumulate(units.begin(), units.begin() + static_cast<ptrdiff_t>(chosen), forced);
    figures_.chance += forced + (units.empty() ? 0.0
                                               : other * static_cast<double>(chosen) /
                                                     static_cast<double>(units.size()));
  }

  // Share of the `budget` heaviest tokens between sink and window that were attended to.
  double recall(const std::vector<double>& mass, const std::set<uint32_t>& seen) const {
    std::vector<uint32_t> order(mass.size() - o_.window - o_.sink);
    std::iota(order.begin(), order.end(), o_.sink);
    const size_t k = std::min<size_t>(o_.budget, order.size());
    if (k == 0) return 1.0;
    std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(k), order.end(),
                      [&](uint32_t a, uint32_t b) { return mass[a] > mass[b]; });
    const auto found = std::count_if(order.begin(), order.begin() + static_cast<ptrdiff_t>(k),
                                     [&](uint32_t t) { return seen.contains(t); });
    return static_cast<double>(found) / static_cast<double>(k);
  }

  const RecallOptions& o_;
  const World& world_;
  uint32_t unit_ = 1;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> attended_;
  Figures figures_;
};

Json run_arm(const RecallOptions& o, uint64_t seed, PluginHost& host, const World& world,
             const Arm& arm) {
  Meter meter(o, world);
  const PrescribedModel model(
      {o.n_layers, o.n_q_heads, o.n_kv_heads, o.head_dim, o.head_dim, o.context + o.steps,
       World::rope_config(o)},
      [&](uint32_t layer, int32_t token, float* q, float* k, float* v) {
        world.project(layer, token, q, k, v);
      },
      [&](uint32_t layer, std::span<const int32_t> tokens, const float* out) {
        meter.output(layer, static_cast<uint32_t>(tokens.back()),
                     out + (tokens.size() - 1) * o.n_q_heads * o.head_dim);
      });
  EngineOptions options;
  options.max_context = o.context + o.steps;
  options.seed = seed;
  options.on_attend = [&](uint32_t layer, uint64_t, uint32_t head,
                          std::span<const uint32_t> tokens) {
    meter.attended(layer, head, tokens);
  };
  Engine engine(model, build_pipeline(arm.strategy, host.registry(), host.services()), host.pool(),
                host.services(), options);
  const bool by_token = engine.pipeline().selectors.back()->limits().unit == KVASIR_UNIT_TOKEN;
  meter.unit(by_token ? 1 : o.block_size);
  const SequenceId seq = engine.open();
  std::vector<TokenId> prompt(o.context);
  std::iota(prompt.begin(), prompt.end(), 0);
  std::vector<float> logits(1);
  engine.prefill(seq, prompt, logits);
  for (uint32_t step = 0; step < o.steps; ++step) {
    const Engine::DecodeItem item{seq, static_cast<TokenId>(o.context + step)};
    engine.decode({&item, 1}, logits);
  }
  const Figures& f = meter.figures();
  const double n = static_cast<double>(f.n);
  return {{"strategy", arm.label},
          {"unit", by_token ? "token" : "block"},
          {"tokens_attended", f.attended / n},
          {"captured_mass", f.captured / n},
          {"best_mass", f.best / n},
          {"random_mass", f.chance / n},
          {"needle_recall", f.needles / n},
          {"top_k_recall", f.recall / n},
          {"output_error", f.error / n},
          {"kv_bytes", engine.kv_bytes(seq)},
          {"fallbacks", engine.decode_engagement().fallbacks}};
}

bool names(const kvasir_option_schema& option, const std::string& key) {
  if (key == option.key) return true;
  for (const char* const* alias = option.aliases; alias && *alias; ++alias)
    if (key == *alias) return true;
  return false;
}

// budget_tokens instead of whatever a preset says in the paper's own terms: those are optional.
void set_budget(PluginSection& section, uint32_t budget, PluginHost& host) {
  const kvasir_desc& desc = *host.registry().open(section.kind, section.plugin.value).desc;
  bool has_budget = false;
  for (uint32_t i = 0; i < desc.n_options; ++i) {
    const kvasir_option_schema& option = desc.options[i];
    const bool is_native =
        option.flags & KVASIR_OPTION_OPTIONAL && option.type != KVASIR_OPTION_PATH;
    const bool is_budget = std::string(option.key) == "budget_tokens";
    has_budget = has_budget || is_budget;
    if (is_native || is_budget)
      std::erase_if(section.options,
                    [&](const OptionSetting& set) { return names(option, set.key); });
  }
  if (has_budget) section.options.push_back({"budget_tokens", int64_t{budget}, {}});
}

// Dense attention has nothing to spend a budget on.
bool chooses(const Selector& selector) {
  return selector.has_select() || selector.has_evict_plan();
}

// The same forced parts, blocks and budget for all that choose.
std::vector<Arm> arms_of(const Options& options, const RecallOptions& o, PluginHost& host) {
  std::vector<Arm> arms;
  for (const std::string& name : o.strategies) {
    Options with = options;
    with.strategy = name.substr(0, name.find("/token"));
    if (with.strategy != name) with.set.emplace_back("selector.unit=token");
    for (const auto& [key, value] : {std::pair<const char*, uint32_t>{"block_size", o.block_size},
                                     {"sink_tokens", o.sink},
                                     {"window_tokens", o.window}})
      with.set.push_back(std::string("cache.") + key + "=" + std::to_string(value));
    with.set.emplace_back("cache.dense_layers=[0]");
    with.set.emplace_back("storage.type_k=f32");
    with.set.emplace_back("storage.type_v=f32");
    arms.push_back({"", resolve_strategy(with)});
    Arm& arm = arms.back();
    arm.label = arm.strategy.name + (with.strategy != name ? "/token" : "");
    if (chooses(*build_pipeline(arm.strategy, host.registry(), host.services()).selectors.front()))
      set_budget(arm.strategy.selectors.front(), o.budget, host);
    build_pipeline(arm.strategy, host.registry(), host.services());
  }
  return arms;
}

void check(const RecallOptions& o) {
  if (o.n_kv_heads == 0 || o.n_q_heads % o.n_kv_heads != 0)
    throw input_error("--kv-heads must divide --heads");
  if (o.head_dim == 0 || o.head_dim % 2 != 0) throw input_error("--head-dim must be even");
  if (uint64_t{o.sink} + o.window + o.needles >= o.context || o.context > 1u << 20)
    throw input_error("-c must be above --sink, --window and --needles together, at most 1M");
  if (!(o.needle_mass > 0.0 && o.needle_mass < 1.0))
    throw input_error("--needle-mass must be between 0 and 1");
  if (o.steps == 0 || o.needles == 0 || o.n_layers == 0)
    throw input_error("--steps, --needles and --layers must be above 0");
}

void print_text(const Json& report) {
  std::printf(
      "%u tokens, %u needles with %.0f %% of the attention mass, %u queries decoded; "
      "%u layers, %u query heads on %u, head_dim %u\n\n",
      report["context"].get<uint32_t>(), report["needles"].get<uint32_t>(),
      100.0 * report["needle_mass"].get<double>(), report["steps"].get<uint32_t>(),
      report["layers"].get<uint32_t>(), report["q_heads"].get<uint32_t>(),
      report["kv_heads"].get<uint32_t>(), report["head_dim"].get<uint32_t>());
  Table table({"strategy", "unit", "attended", "captured mass", "best", "random", "needle recall",
               "top-k recall", "output error", "K+V held", "fallbacks"},
              {2, 3, 4, 5, 6, 7, 8, 9, 10});
  for (const Json& r : report["strategies"]) {
    const auto percent = [&](const char* key) {
      return format("%.1f %%", 100.0 * r[key].get<double>());
    };
    table.add({r["strategy"], r["unit"], format("%.0f", r["tokens_attended"].get<double>()),
               percent("captured_mass"), percent("best_mass"), percent("random_mass"),
               percent("needle_recall"), percent("top_k_recall"),
               format("%.4f", r["output_error"].get<double>()),
               bytes_text(r["kv_bytes"].get<uint64_t>()), r["fallbacks"].dump()});
  }
  std::fputs(table.text().c_str(), stdout);
  std::printf(
      "\nbest and random: the captured mass of an exact and of a random choice of as many tokens,\n"
      "of the same unit, beside the same sink and window.\n");
}

void bench_recall(const Options& options, RecallOptions o) {
  check(o);
  if (o.strategies.empty())
    o.strategies = {"dense",    "oracle",       "random",        "oracle/token", "random/token",
                    "quest",    "block_topk",   "ktransformers", "infllm",       "snapkv",
                    "h2o",      "tova",         "pyramidkv",     "infinigen",    "magicpig",
                    "twilight", "duoattention", "streaming"};
  PluginHost host(options);
  const std::vector<Arm> arms = arms_of(options, o, host);
  const World world(o, options.seed);
  Json report{
      {"context", o.context},       {"budget_tokens", o.budget},    {"steps", o.steps},
      {"needles", o.needles},       {"needle_mass", o.needle_mass}, {"layers", o.n_layers},
      {"q_heads", o.n_q_heads},     {"kv_heads", o.n_kv_heads},     {"head_dim", o.head_dim},
      {"block_size", o.block_size}, {"sink_tokens", o.sink},        {"window_tokens", o.window},
      {"seed", options.seed},       {"strategies", Json::array()}};
  ProgressBar bar("recall", !options.json);
  for (size_t i = 0; i < arms.size(); ++i) {
    report["strategies"].push_back(run_arm(o, options.seed, host, world, arms[i]));
    bar.update(i + 1, arms.size());
  }
  if (options.json) return print_json(report);
  print_text(report);
}

}  // namespace

void add_bench(CLI::App& app) {
  auto* bench = app.add_subcommand("bench", "Measure strategies and the machine");
  bench->require_subcommand(1);
  auto* c = bench->add_subcommand(
      "recall", "Needles of known attention mass: what each strategy captures at one budget");
  auto options = std::make_shared<Options>();
  auto o = std::make_shared<RecallOptions>();
  add_arm_flags(*c, *options, o->strategies);
  c->add_option("-c,--ctx-size", o->context, "Tokens of the prompt");
  c->add_option("-b,--budget", o->budget, "Tokens selected beside sink and window");
  c->add_option("-n,--steps", o->steps, "Queries decoded");
  c->add_option("--block-size", o->block_size, "Tokens per block");
  c->add_option("--sink", o->sink, "First tokens, always attended");
  c->add_option("--window", o->window, "Last tokens, always attended");
  c->add_option("--layers", o->n_layers, "Layers; the first is dense");
  c->add_option("--heads", o->n_q_heads, "Query heads");
  c->add_option("--kv-heads", o->n_kv_heads, "kv heads");
  c->add_option("--head-dim", o->head_dim, "Elements of a key");
  c->add_option("--needles", o->needles, "Tokens that carry the mass");
  c->add_option("--needle-mass", o->needle_mass, "Their share of the attention");
  c->add_option("--drift", o->drift, "How far queries stray from one another");
  c->add_option("--seed", options->seed, "Of the data and of plugins that draw");
  c->add_option("-t,--threads", options->threads, "Worker threads");
  c->add_flag("--json", options->json, "One JSON document on stdout, nothing else there");
  c->callback([=] { bench_recall(*options, *o); });
}

}  // namespace kvasir::tool
