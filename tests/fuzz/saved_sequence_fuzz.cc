// libFuzzer over saved sequences: any bytes are refused with an Error or give a sequence that goes
// on, can be saved and closed. An input is a strategy (its first byte) and what follows a saved
// sequence's settings: these, which compare texts, and the checksum are put around it. A first byte
// above 127: the settings are the input's own.
// SPDX-License-Identifier: Apache-2.0
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>

#include "core/error.h"
#include "core/model/synthetic/random_model.h"
#include "core/plugin/pipeline.h"
#include "core/plugin/registry.h"
#include "core/runtime/engine.h"
#include "core/runtime/sequence/byte_stream.h"
#include "tests/fuzz/seeds.h"
#include "tests/support/temp_dir.h"

using namespace kvasir;

namespace {

using Bytes = std::vector<std::byte>;

// What a saved layer holds: blocks, records, state of plugins, evictions, packed heads, what a
// head may reach.
constexpr const char* kSelectors[] = {
    "[selector]\nplugin = 'dense'\n",
    "[selector]\nplugin = 'block_topk'\nbudget_tokens = 8\n[representative]\nplugin = 'minmax'\n",
    "[selector]\nplugin = 'magicpig'\nK = 3\nL = 6\n",
    "[selector]\nplugin = 'infinigen'\nbudget_tokens = 8\npool_limit = 20\n",
    "[selector]\nplugin = 'h2o'\nbudget_tokens = 8\n",
    "[selector]\nplugin = 'snapkv'\nbudget_tokens = 8\nwindow_size = 8\n",
    "[selector]\nplugin = 'snapkv'\nbudget_tokens = 8\nwindow_size = 8\nmode = 'retrieve'\n",
    ("[selector]\nplugin = 'infllm'\nbudget_tokens = 16\nexc_block_size = 8\n"
     "[representative]\nplugin = 'dynamic'\nmass = 'window'\n"),
};
constexpr uint32_t kVocabulary = 260;

// A model and an engine for each strategy, for the whole run.
class Engines {
 public:
  Engines() {
    const test::TempDir dir;
    RandomModelSpec spec;
    spec.n_layers = 2;
    spec.d_model = 16;
    spec.d_ff = 16;
    spec.n_q_heads = 4;
    spec.n_kv_heads = 2;
    spec.head_dim = 8;
    spec.vocab_size = kVocabulary;
    spec.context_length = 256;
    spec.type = GgmlType::kF32;
    write_random_model(spec, dir.path("model.gguf"));
    file_ = std::make_unique<GgufFile>(GgufFile::open(dir.path("model.gguf")));
    model_ = Model::load(*file_, pool_, {Compute::kF32, 256});
    StrategyConfig defaults;
    defaults.storage.kind = Kind::kStorage;
    defaults.storage.plugin.value = "kvasir.dram";
    defaults.attention.kind = Kind::kAttention;
    defaults.attention.plugin.value = "kvasir.cpu";
    EngineOptions options;
    options.max_context = 256;
    for (const char* selector : kSelectors) {
      const std::string toml =
          std::string("[cache]\nblock_size = 4\nsink_tokens = 2\nwindow_tokens = 4\n") + selector;
      engines_.push_back(std::make_unique<Engine>(
          *model_,
          build_pipeline(parse_strategy(toml, "fuzz.toml", {}, defaults), registry_, services_),
          pool_, services_, options));
      settings_.push_back(settings(*engines_.back()));
    }
  }

  Engine& engine(uint8_t strategy) { return *engines_[strategy % engines_.size()]; }
  // A saved sequence's beginning: the mark of the format and the settings of its strategy.
  const Bytes& settings(uint8_t strategy) const { return settings_[strategy % settings_.size()]; }

 private:
  static PluginSearch search() {
    PluginSearch out;
    out.levels.push_back({"build", {KVASIR_BINARY_DIR "/plugins"}});
    return out;
  }
  static Bytes settings(Engine& engine) {
    const SequenceId seq = engine.open();
    Bytes bytes = engine.save(seq);
    engine.close(seq);
    constexpr size_t kMark = 8;
    ByteReader in(std::span<const std::byte>(bytes).subspan(kMark), "seed");
    size_t n = kMark + sizeof(uint64_t);
    for (uint64_t left = 2 * in.number<uint64_t>(); left > 0; --left)
      n += sizeof(uint64_t) + in.text().size();
    bytes.resize(n);
    return bytes;
  }

  ThreadPool pool_{Topology::synthetic("numa:1 core:1 pu:1"), 1, false};
  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Model> model_;
  HostServices services_{pool_, [](uint32_t, const std::string&, const std::string&) {}};
  PluginRegistry registry_{search(), services_};
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Bytes> settings_;
};

Engines& engines() {
  static Engines all;
  return all;
}

void decode(Engine& engine, SequenceId seq, TokenId token) {
  std::vector<float> logits(kVocabulary);
  const Engine::DecodeItem items[] = {{seq, token}};
  engine.decode(items, logits);
}

std::string without_settings(uint8_t strategy, const Bytes& saved) {
  const size_t begin = engines().settings(strategy).size();
  std::string out(1, static_cast<char>(strategy));
  out.append(reinterpret_cast<const char*>(saved.data()) + begin,
             saved.size() - begin - sizeof(uint64_t));
  return out;
}

Bytes with_settings(std::span<const std::byte> input) {
  const auto strategy = static_cast<uint8_t>(input[0]);
  Bytes out = strategy < 128 ? engines().settings(strategy) : Bytes();
  out.insert(out.end(), input.begin() + 1, input.end());
  const uint64_t sum = XXH3_64bits(out.data(), out.size());
  out.resize(out.size() + sizeof(sum));
  std::memcpy(out.data() + out.size() - sizeof(sum), &sum, sizeof(sum));
  return out;
}

}  // namespace

std::vector<fuzz::Seed> fuzz::seeds() {
  std::vector<Seed> out;
  for (uint8_t strategy = 0; strategy < std::size(kSelectors); ++strategy) {
    Engine& engine = engines().engine(strategy);
    const SequenceId seq = engine.open();
    const auto save = [&](const char* when) {
      out.push_back(
          {std::to_string(strategy) + "-" + when, without_settings(strategy, engine.save(seq))});
    };
    save("empty");
    std::vector<TokenId> prompt(23);
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(i * 37 % 256);
    engine.prefill(seq, prompt, {});
    save("prompt");
    for (TokenId token = 0; token < 9; ++token) decode(engine, seq, token);
    save("answer");
    engine.close(seq);
  }
  return out;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  Engine& engine = engines().engine(data[0]);
  SequenceId seq = 0;
  try {
    seq = engine.load(with_settings(std::as_bytes(std::span(data, size))), "fuzz");
  } catch (const Error&) {
    return 0;
  }
  try {
    (void)engine.kv_bytes(seq);
    for (TokenId token = 0; token < 3; ++token) decode(engine, seq, token);
    (void)engine.save(seq);
    engine.truncate(seq, engine.kv_len(seq) / 2);
    decode(engine, seq, 1);
  } catch (const Error&) {
  }
  engine.close(seq);
  return 0;
}
