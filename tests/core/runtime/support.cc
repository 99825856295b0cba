// See support.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/runtime/support.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "core/model/synthetic/random_model.h"
#include "tests/plugins/fakes/probe.h"
#include "tests/support/temp_dir.h"

doctest::String doctest::StringMaker<std::vector<uint32_t>>::convert(
    const std::vector<uint32_t>& list) {
  std::string text;
  for (const uint32_t x : list) text.append(std::to_string(x)).append(" ");
  return text.c_str();
}

namespace kvasir::test {

ThreadPool& test_pool() {
  // Two, so that work is divided; on a machine with other things to do they wait for each other.
  const char* set = std::getenv("KVASIR_TEST_THREADS");
  static ThreadPool instance(Topology::synthetic("numa:1 core:2 pu:1"),
                             set ? static_cast<uint32_t>(std::strtoul(set, nullptr, 10)) : 2,
                             false);
  return instance;
}

namespace {

struct LoadedModel {
  LoadedModel(const std::string& path, ThreadPool& workers)
      : file(GgufFile::open(path)), model(Model::load(file, workers, {Compute::kF32, 2048})) {}
  GgufFile file;
  std::unique_ptr<Model> model;
};

// The host's own table is reached through a member that only derived classes may name.
struct TableOf : Instance {
  static const kvasir_instance* of(const Instance& instance) {
    return instance.*(&TableOf::instance_);
  }
};

}  // namespace

TinyModel tiny_model(uint32_t n_q_heads, uint32_t n_kv_heads, uint32_t head_dim) {
  static TempDir dir;
  static std::map<std::array<uint32_t, 3>, std::unique_ptr<LoadedModel>> models;
  auto& slot = models[{n_q_heads, n_kv_heads, head_dim}];
  if (!slot) {
    RandomModelSpec spec;
    spec.name = "tiny" + std::to_string(n_q_heads) + "x" + std::to_string(n_kv_heads) + "x" +
                std::to_string(head_dim);
    spec.n_layers = 3;
    spec.d_model = 64;
    spec.d_ff = 96;
    spec.n_q_heads = n_q_heads;
    spec.n_kv_heads = n_kv_heads;
    spec.head_dim = head_dim;
    spec.vocab_size = 300;
    spec.context_length = 4096;
    spec.type = GgmlType::kF32;
    spec.norm_spread = 0.3f;
    write_random_model(spec, dir.path(spec.name));
    slot = std::make_unique<LoadedModel>(dir.path(spec.name), test_pool());
  }
  return {&slot->file, slot->model.get()};
}

std::vector<TokenId> some_tokens(size_t n, uint32_t seed) {
  std::vector<TokenId> ids(n);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (TokenId& id : ids) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    id = static_cast<TokenId>((state >> 33) % 300);
  }
  return ids;
}

TokenId token_at(uint32_t i, uint32_t path) {
  return static_cast<TokenId>((i * 7 + path * 31 + 5) % 300);
}

const std::string kRecording = "[attention]\nplugin = 'kvasir.test.recording_attention'\n";

Bench::Bench(uint32_t n_q_heads, uint32_t n_kv_heads, uint32_t head_dim)
    : tiny(tiny_model(n_q_heads, n_kv_heads, head_dim)) {}

namespace {
// Services and registry of the process: instances are counted per engine, files are opened once.
struct Plugins {
  std::vector<std::string>* log = nullptr;
  HostServices services{test_pool(),
                        [this](uint32_t, const std::string& plugin, const std::string& text) {
                          if (log) log->push_back(plugin + ": " + text);
                        }};
  PluginRegistry registry{search(), services};

  static PluginSearch search() {
    const std::string root = KVASIR_BINARY_DIR;
    PluginSearch result;
    result.levels.push_back({"tests",
                             {root + "/plugins", root + "/test-plugins/fake",
                              root + "/test-plugins/device", root + "/test-plugins/task"}});
    return result;
  }
};

Plugins& plugins() {
  static Plugins instance;
  return instance;
}
Plugins& plugins(std::vector<std::string>* log) {
  plugins().log = log;
  return plugins();
}

std::unique_ptr<Engine> make_engine(const Model& model, const StrategyConfig& strategy,
                                    EngineOptions options, std::vector<std::string>* log) {
  Plugins& shared = plugins(log);
  if (options.max_context == EngineOptions{}.max_context) options.max_context = 2048;
  Pipeline pipeline = build_pipeline(strategy, shared.registry, shared.services);
  return std::make_unique<Engine>(model, std::move(pipeline), test_pool(), shared.services,
                                  options);
}
}  // namespace

Bench::~Bench() {
  Plugins& shared = plugins();
  if (shared.log == &log) shared.log = nullptr;
}

std::unique_ptr<Engine> Bench::engine(const std::string& toml, EngineOptions options) {
  return engine(*tiny.model, toml, options);
}

std::unique_ptr<Engine> Bench::engine(const Model& model, const std::string& toml,
                                      EngineOptions options) {
  return engine(model, strategy(toml), options);
}

StrategyConfig Bench::strategy(const std::string& toml) {
  StrategyConfig defaults;
  defaults.storage.kind = Kind::kStorage;
  defaults.storage.plugin.value = "kvasir.dram";
  defaults.storage.options = {{"type_k", std::string("f32"), {}},
                              {"type_v", std::string("f32"), {}}};
  defaults.attention.kind = Kind::kAttention;
  defaults.attention.plugin.value = "kvasir.cpu";
  return parse_strategy(toml, "test.toml", {}, defaults);
}

Pipeline Bench::pipeline(const StrategyConfig& strategy) {
  Plugins& shared = plugins(&log);
  return build_pipeline(strategy, shared.registry, shared.services);
}

std::unique_ptr<Engine> Bench::engine(const StrategyConfig& strategy, EngineOptions options) {
  return engine(*tiny.model, strategy, options);
}

std::unique_ptr<Engine> Bench::engine(const Model& model, const StrategyConfig& strategy,
                                      EngineOptions options) {
  return make_engine(model, strategy, options, &log);
}

namespace {
template <class T>
T& extension_of(const Instance& instance, const char* id) {
  const void* table = instance.extension(id);
  REQUIRE(table != nullptr);
  return *static_cast<T*>(const_cast<void*>(table));  // NOLINT: the fake gives it out to be written
}
}  // namespace

Recording& recording_of(Engine& engine) {
  return extension_of<Recording>(*engine.pipeline().attention, kRecordingExtension);
}
Calls& calls_of(Engine& engine) {
  return extension_of<Calls>(*engine.pipeline().selectors.back(), kCallsExtension);
}
double probe(const Instance& instance, uint32_t item) {
  const auto* table = static_cast<const Probe*>(instance.extension(kProbeExtension));
  REQUIRE(table != nullptr);
  return table->read(TableOf::of(instance)->self, item);
}

std::vector<float> prefill(Engine& engine, SequenceId seq, std::span<const TokenId> tokens) {
  std::vector<float> logits(300);
  const uint32_t done = engine.prefill(seq, tokens, logits);
  REQUIRE(done == tokens.size());
  return logits;
}
std::vector<float> decode(Engine& engine, SequenceId seq, TokenId token) {
  std::vector<float> logits(300);
  const Engine::DecodeItem items[] = {{seq, token}};
  engine.decode(items, logits);
  return logits;
}
double max_difference(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i)
    most = larger_or_nan(most, std::abs(double{a[i]} - double{b[i]}));
  return most;
}
double max_difference(const Logits& a, const Logits& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = larger_or_nan(most, max_difference(a[i], b[i]));
  return most;
}
double relative_difference(const Logits& got, const Logits& want) {
  REQUIRE(got.size() == want.size());
  double most = 0;
  for (size_t i = 0; i < got.size(); ++i)
    most = larger_or_nan(most, max_difference(got[i], want[i]) / largest(want[i]));
  return most;
}
double largest(std::span<const float> a) {
  double most = 0;
  for (const float x : a) most = std::max(most, std::abs(double{x}));
  return most;
}
TokenId best(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<uint32_t> attended(const RecordedRun& run, uint64_t seq, uint32_t kv_head) {
  std::vector<uint32_t> tokens;
  for (const RecordedRange& range : run.ranges)
    if (range.seq == seq && range.kv_head == kv_head)
      tokens.insert(tokens.end(), range.token.begin(), range.token.end());
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}
std::vector<uint32_t> between(uint32_t begin, uint32_t end) {
  std::vector<uint32_t> out(end > begin ? end - begin : 0);
  std::iota(out.begin(), out.end(), begin);
  return out;
}
std::vector<uint32_t> up_to(uint32_t n) { return between(0, n); }

std::vector<TokenForward::Key> everything(uint32_t pos) {
  std::vector<TokenForward::Key> keys;
  for (uint32_t token = 0; token <= pos; ++token) keys.push_back({token});
  return keys;
}

TokenForward::TokenForward(const TinyModel& tiny, uint32_t pos_const)
    : model_(*tiny.model), shape_(tiny.model->shape()), pos_const_(pos_const) {
  k_.assign(shape_.n_layers, std::vector<std::vector<std::vector<double>>>(shape_.n_kv_heads));
  k_raw_ = v_ = k_;
  mass_.assign(shape_.n_layers, std::vector<Mass>(shape_.n_q_heads));
}

std::vector<double> TokenForward::turned(const float* x, double pos) const {
  std::vector<double> y(shape_.head_dim);
  for (uint32_t i = 0; i < shape_.head_dim; i += 2) {
    const double angle =
        pos * std::pow(double{shape_.rope.base}, -double(i) / double(shape_.head_dim));
    y[i] = x[i] * std::cos(angle) - x[i + 1] * std::sin(angle);
    y[i + 1] = x[i] * std::sin(angle) + x[i + 1] * std::cos(angle);
  }
  return y;
}

std::vector<std::vector<double>> TokenForward::speculated_query(uint32_t layer) const {
  std::vector<float> q(size_t{shape_.n_q_heads} * shape_.head_dim);
  model_.project_qkv(layer, previous_x_.data(), 1, q.data(), nullptr, nullptr);
  std::vector<std::vector<double>> out;
  for (uint32_t h = 0; h < shape_.n_q_heads; ++h)
    out.push_back(turned(q.data() + size_t{h} * shape_.head_dim, n_tokens_));
  return out;
}

void TokenForward::attend(uint32_t layer, const Choose& choose, std::vector<float>& o) {
  const uint32_t dim = shape_.head_dim, group = shape_.group_size();
  for (uint32_t h = 0; h < shape_.n_q_heads; ++h) {
    const auto keys = choose(layer, n_tokens_, h);
    std::vector<double> logits;
    for (const Key& key : keys) {
      const auto& q = key.constant ? q_constant_[h] : q_[h];
      const auto& k = (key.constant ? k_raw_ : k_)[layer][h / group].at(key.token);
      double dot = 0;
      for (uint32_t d = 0; d < dim; ++d) dot += q[d] * k[d];
      logits.push_back(dot / std::sqrt(double(dim)) + key.log_weight);
    }
    double high = -INFINITY, total = 0;
    for (const double logit : logits) high = std::max(high, logit);
    for (const double logit : logits) total += std::exp(logit - high);
    std::vector<double> sum(dim);
    Mass& mass = mass_[layer][h];
    mass.clear();
    for (size_t i = 0; i < keys.size(); ++i) {
      const double p = std::exp(logits[i] - high) / total;
      mass.emplace_back(keys[i].token, p);
      for (uint32_t d = 0; d < dim; ++d) sum[d] += p * v_[layer][h / group][keys[i].token][d];
    }
    for (uint32_t d = 0; d < dim; ++d) o[size_t{h} * dim + d] = static_cast<float>(sum[d]);
  }
}

std::vector<float> TokenForward::step(TokenId token, const Choose& choose) {
  const uint32_t dim = shape_.head_dim;
  std::vector<float> h(shape_.d_model), q(size_t{shape_.n_q_heads} * dim);
  std::vector<float> k(size_t{shape_.n_kv_heads} * dim), v(k.size()), o(q.size());
  x_.assign(shape_.d_model, 0.0f);
  model_.embed({&token, 1}, h.data());
  for (uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    previous_x_ = x_;
    model_.attn_norm(layer, h.data(), 1, x_.data());
    model_.project_qkv(layer, x_.data(), 1, q.data(), k.data(), v.data());
    q_.clear();
    q_constant_.clear();
    for (uint32_t head = 0; head < shape_.n_q_heads; ++head) {
      q_.push_back(turned(q.data() + size_t{head} * dim, n_tokens_));
      q_constant_.push_back(turned(q.data() + size_t{head} * dim, pos_const_));
    }
    for (uint32_t head = 0; head < shape_.n_kv_heads; ++head) {
      const float* key = k.data() + size_t{head} * dim;
      k_[layer][head].push_back(turned(key, n_tokens_));
      k_raw_[layer][head].emplace_back(key, key + dim);
      v_[layer][head].emplace_back(v.data() + size_t{head} * dim,
                                   v.data() + size_t{head + 1} * dim);
    }
    attend(layer, choose, o);
    model_.attn_output(layer, o.data(), 1, h.data());
    model_.ffn(layer, h.data(), 1);
  }
  ++n_tokens_;
  std::vector<float> logits(shape_.vocab_size);
  model_.logits(h.data(), 1, logits.data());
  return logits;
}

}  // namespace kvasir::test
