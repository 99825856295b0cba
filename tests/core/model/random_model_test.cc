// Random models: published sizes, a file the reader takes apart again, a consistent tokenizer,
// values with the promised spread.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/synthetic/random_model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numbers>
#include <set>

#include "core/error.h"
#include "core/model/gguf/quant.h"
#include "core/model/layers/architecture.h"
#include "tests/support/data.h"
#include "tests/support/larger_or_nan.h"
#include "tests/support/temp_dir.h"

namespace {

using namespace kvasir;
namespace fs = std::filesystem;

struct TemporaryModel {
  test::TempDir dir;
  explicit TemporaryModel(const RandomModelSpec& spec, const GgufFile* tokenizer = nullptr) {
    write_random_model(spec, dir.path("a.gguf"), tokenizer);
  }
  GgufFile open() const { return GgufFile::open(dir.path("a.gguf")); }
  std::string bytes() const { return test::read_bytes(dir.path("a.gguf")); }
};

std::vector<float> values_of(const GgufFile& file, const std::string& name) {
  const GgufTensor& tensor = file.tensor(name);
  std::vector<float> out(tensor.n_elements);
  dequantize(tensor.type, tensor.data, out.data(), out.size());
  return out;
}

struct Moments {
  double mean, deviation, largest;
};
Moments moments(const std::vector<float>& values) {
  double sum = 0, squares = 0, largest = 0;
  for (const double v : values) {
    sum += v;
    squares += v * v;
    largest = std::max(largest, std::fabs(v));
  }
  const auto n = static_cast<double>(values.size());
  return {sum / n, std::sqrt(squares / n - sum / n * (sum / n)), largest};
}

}  // namespace

TEST_SUITE("core/model/random_model") {
  TEST_CASE("presets have the published number of parameters") {
    const std::map<std::string, uint64_t> published = {
        {"llama-3.2-1b", 1'235'814'400},   {"llama-3.2-3b", 3'212'749'824},
        {"llama-3.1-8b", 8'030'261'248},   {"llama-2-7b", 6'738'415'616},
        {"internlm2.5-7b", 7'737'708'544}, {"qwen2.5-0.5b", 494'032'768},
        {"qwen2.5-7b", 7'615'616'512},     {"qwen3-0.6b", 596'049'920},
        {"qwen3-8b", 8'190'735'360},       {"mistral-7b-v0.1", 7'241'732'096},
        {"gemma-2-2b", 2'614'341'888},     {"gemma-3-270m", 268'098'176},
        {"gemma-3-1b", 999'885'952}};
    for (const auto& [name, n] : published) CHECK_MESSAGE(parameter_count(preset(name)) == n, name);
    for (const std::string& name : preset_names()) CHECK(preset(name).name == name);
    CHECK_THROWS_AS(preset("gpt-5"), Error);
  }

  TEST_CASE("a tiny model of each architecture has its tensors and keys") {
    for (const std::string& arch : architecture_names()) {
      CAPTURE(arch);
      const RandomModelSpec spec = preset("tiny-" + arch + "-test");
      const TemporaryModel model(spec);
      const GgufFile file = model.open();
      uint64_t n_parameters = 0;
      for (const GgufTensor& tensor : file.tensors()) n_parameters += tensor.n_elements;
      CHECK(n_parameters == parameter_count(spec));
      CHECK(file.require<std::string_view>("general.architecture") == arch);
      CHECK(file.require<uint32_t>(arch + ".block_count") == spec.n_layers);
      CHECK(file.require<uint32_t>(arch + ".attention.key_length") == spec.head_dim);
      CHECK(file.require<uint32_t>(arch + ".context_length") == 2097152);
      CHECK(file.require<uint32_t>(arch + ".vocab_size") == spec.vocab_size);
      CHECK(file.require<float>(arch + ".rope.freq_base") == spec.rope_base);
      const uint64_t q = uint64_t{spec.n_q_heads} * spec.head_dim;
      CHECK(file.tensor("blk.1.attn_q.weight").shape == std::vector<uint64_t>{spec.d_model, q});
      CHECK(file.tensor("blk.1.attn_output.weight").shape ==
            std::vector<uint64_t>{q, spec.d_model});
      CHECK((file.find_tensor("blk.0.attn_q.bias") != nullptr) == (arch == "qwen2"));
      CHECK((file.find_tensor("blk.0.attn_k_norm.weight") != nullptr) ==
            (arch == "qwen3" || arch == "gemma3"));
      CHECK((file.find_tensor("output.weight") == nullptr) == spec.tied_embeddings);
    }
  }

  TEST_CASE("same spec, same bytes; another seed, other weights") {
    RandomModelSpec spec = preset("tiny-qwen2-test");
    const TemporaryModel a(spec), b(spec);
    CHECK(a.bytes() == b.bytes());
    spec.seed = 2;
    const TemporaryModel c(spec);
    CHECK(a.open().content_hash() != c.open().content_hash());
    CHECK(values_of(a.open(), "blk.0.attn_q.weight") != values_of(c.open(), "blk.0.attn_q.weight"));
    CHECK(values_of(a.open(), "blk.0.attn_q.weight") != values_of(a.open(), "blk.1.attn_q.weight"));
  }

  TEST_CASE("weights have the promised spread, norms are one") {
    RandomModelSpec spec = preset("tiny-llama-test");
    spec.type = GgmlType::kF32;
    spec.vocab_size = 2048;  // embedding of 2^17 elements: filled on two threads
    const TemporaryModel model(spec);
    const GgufFile file = model.open();
    for (const auto& [name, deviation] :
         std::map<std::string, double>{{"token_embd.weight", 1.0 / 8},
                                       {"blk.0.ffn_up.weight", 1.0 / 8},
                                       {"blk.0.ffn_down.weight", 1.0 / std::sqrt(96.0) / 2}}) {
      CAPTURE(name);
      const auto values = values_of(file, name);
      const auto n = static_cast<double>(values.size());
      const Moments m = moments(values);
      CHECK(std::fabs(m.mean) < 5 * deviation / std::sqrt(n));
      CHECK(std::fabs(m.deviation / deviation - 1) < 5 / std::sqrt(2 * n));
      CHECK(m.largest <= 3.465 * deviation);
      CHECK(m.largest > 2.8 * deviation);
      // Neighbours and the two halves (two threads) are unrelated.
      for (const size_t lag : {size_t{1}, size_t{2}, values.size() / 2}) {
        double product = 0;
        for (size_t i = lag; i < values.size(); ++i) product += double{values[i]} * values[i - lag];
        const auto pairs = static_cast<double>(values.size() - lag);
        CHECK(std::fabs(product / pairs) < 5 * deviation * deviation / std::sqrt(pairs));
      }
    }
    CHECK(values_of(file, "output_norm.weight") == std::vector<float>(64, 1.0f));
    spec.norm_spread = 0.5f;
    const TemporaryModel spread(spec);
    const Moments m = moments(values_of(spread.open(), "output_norm.weight"));
    CHECK(std::fabs(m.mean - 1.0) < 0.2);
    CHECK(m.deviation > 0.1);
  }

  TEST_CASE("every type that is written reads back as the same numbers") {
    RandomModelSpec spec = preset("tiny-qwen3-test");
    spec.type = GgmlType::kF32;
    const TemporaryModel exact(spec);
    const auto want = values_of(exact.open(), "blk.0.ffn_gate.weight");
    // Largest error over 3.5 deviations: half a step, a whole one where one end is cut short.
    const std::pair<GgmlType, double> written[] = {
        {GgmlType::kF16, 0.005},      {GgmlType::kBF16, 0.005},     {GgmlType::kQ8_0, 0.005},
        {GgmlType::kQ4_0, 1.01 / 8},  {GgmlType::kQ4_1, 1.01 / 15}, {GgmlType::kQ5_0, 1.01 / 16},
        {GgmlType::kQ5_1, 1.01 / 31}, {GgmlType::kIQ4_NL, 1.0 / 8}};
    for (const auto& [type, most] : written) {
      CAPTURE(name(type));
      spec.type = type;
      const TemporaryModel model(spec);
      const GgufFile file = model.open();
      CHECK(file.tensor("blk.0.ffn_gate.weight").type == type);
      CHECK(file.tensor("blk.0.ffn_norm.weight").type == GgmlType::kF32);
      const auto got = values_of(file, "blk.0.ffn_gate.weight");
      double worst = 0;
      for (size_t i = 0; i < want.size(); ++i)
        worst = test::larger_or_nan(worst, std::fabs(double{got[i]} - want[i]));
      CHECK(worst < 3.5 / 8 * most);
    }
  }

  TEST_CASE("a mix is written as its name says") {
    RandomModelSpec spec = preset("tiny-llama-test");
    spec.d_model = 256;
    spec.type = weight_mix_by_name("q4_k_m", "--type");
    const TemporaryModel model(spec), again(spec);
    CHECK(model.bytes() == again.bytes());
    const GgufFile file = model.open();
    CHECK(file.require<uint32_t>("general.file_type") == 15);
    CHECK(file.tensor("output.weight").type == GgmlType::kQ6_K);
    CHECK(file.tensor("blk.0.attn_q.weight").type == GgmlType::kQ4_K);
    CHECK(file.tensor("blk.0.ffn_down.weight").type == GgmlType::kQ5_0);  // rows of 96
    CHECK(file.tensor("blk.0.ffn_norm.weight").type == GgmlType::kF32);
    for (const GgufTensor& tensor : file.tensors())
      for (const float value : values_of(file, tensor.name)) REQUIRE(std::isfinite(value));
  }

  TEST_CASE("llama3 scaling is stored as frequency divisors") {
    RandomModelSpec spec = preset("tiny-llama-test");
    spec.head_dim = 64;
    spec.rope_scaling = "llama3";
    spec.rope_base = 5e5f;
    spec.rope_factor = 32.0f;
    spec.rope_original_context = 8192;
    const TemporaryModel model(spec);
    const auto factors = values_of(model.open(), "rope_freqs.weight");
    REQUIRE(factors.size() == 32);
    for (size_t i = 0; i < factors.size(); ++i) {
      const double wave = 2 * std::numbers::pi * std::pow(5e5, static_cast<double>(i) / 32);
      if (wave < 8192.0 / 4) CHECK(factors[i] == 1.0f);
      if (wave > 8192.0) CHECK(factors[i] == 32.0f);
      if (i > 0) CHECK(factors[i] >= factors[i - 1]);
    }
    CHECK(factors.front() == 1.0f);
    CHECK(factors.back() == 32.0f);
  }

  TEST_CASE("progress reaches the total and may stop the writing") {
    const RandomModelSpec spec = preset("tiny-llama-test");
    const test::TempDir dir;
    const std::string path = dir.path("a.gguf");
    uint64_t last = 0, of = 1;
    write_random_model(spec, path, nullptr, [&](uint64_t done, uint64_t total) {
      CHECK(done >= last);
      last = done;
      of = total;
    });
    CHECK(last == of);
    fs::remove(path);
    CHECK_THROWS_WITH(
        write_random_model(spec, path, nullptr,
                           [](uint64_t, uint64_t) { throw std::runtime_error("enough"); }),
        "enough");
    CHECK_FALSE(fs::exists(path));
  }

  TEST_CASE("a spec that makes no sense is refused") {
    const auto refuses = [](auto&& change) {
      RandomModelSpec spec = preset("tiny-llama-test");
      change(spec);
      CHECK_THROWS_AS(write_random_model(spec, "/nonexistent/x.gguf"), Error);
      CHECK_THROWS_AS(parameter_count(spec), Error);
    };
    refuses([](RandomModelSpec& s) { s.architecture = "mamba"; });
    refuses([](RandomModelSpec& s) { s.n_layers = 0; });
    refuses([](RandomModelSpec& s) { s.n_kv_heads = 3; });
    refuses([](RandomModelSpec& s) { s.head_dim = 15; });
    refuses([](RandomModelSpec& s) { s.type = GgmlType::kQ3_K; });
    refuses([](RandomModelSpec& s) { s.rope_scaling = "magic"; });
    refuses([](RandomModelSpec& s) { s.rope_scaling = "yarn"; });
    refuses([](RandomModelSpec& s) {
      s.type = GgmlType::kQ8_0;
      s.d_ff = 100;
    });
  }
}

TEST_SUITE("core/model/random_model tokenizer") {
  TEST_CASE("the made-up vocabulary is consistent") {
    RandomModelSpec spec = preset("tiny-llama-test");
    spec.vocab_size = 1000;
    const TemporaryModel model(spec);
    const GgufFile file = model.open();
    const auto tokens = *file.get_array<std::string_view>("tokenizer.ggml.tokens");
    const auto types = *file.get_array<int32_t>("tokenizer.ggml.token_type");
    const auto merges = *file.get_array<std::string_view>("tokenizer.ggml.merges");
    const std::set<std::string_view> vocabulary(tokens.begin(), tokens.end());
    REQUIRE(tokens.size() == 1000);
    CHECK(types.size() == 1000);
    CHECK(vocabulary.size() == 1000);  // no text twice
    CHECK(merges.size() >= 300);
    std::set<std::string> known(tokens.begin(), tokens.begin() + 256);
    for (const std::string_view merge : merges) {  // parts exist before, the whole is a token
      const size_t space = merge.find(' ');
      const std::string left(merge.substr(0, space)), right(merge.substr(space + 1));
      REQUIRE(known.count(left) == 1);
      REQUIRE(known.count(right) == 1);
      REQUIRE(vocabulary.count(left + right) == 1);
      known.insert(left + right);
    }
    CHECK(std::count(types.begin(), types.end(), 3) == 3);
    for (size_t i = 0; i < tokens.size(); ++i)
      CHECK((types[i] == 5) == tokens[i].starts_with("[PAD"));
    CHECK(tokens[file.require<uint32_t>("tokenizer.ggml.eos_token_id")] == "<|im_end|>");
    CHECK(tokens[0] == "!");
    CHECK(vocabulary.count("\xC4\xA0the") == 1);
    CHECK(file.require<std::string_view>("tokenizer.ggml.pre") == "llama-bpe");
  }

  TEST_CASE("the smallest vocabulary is bytes and control tokens; less is refused") {
    RandomModelSpec spec = preset("tiny-qwen2-test");
    spec.vocab_size = 259;
    const TemporaryModel model(spec);
    CHECK(model.open().get_array<std::string_view>("tokenizer.ggml.merges")->empty());
    spec.vocab_size = 258;
    CHECK_THROWS_AS(write_random_model(spec, "/nonexistent/x.gguf"), Error);
  }

  TEST_CASE("another model's tokenizer is copied, padded where the vocabulary is larger") {
    RandomModelSpec spec = preset("tiny-llama-test");
    spec.vocab_size = 300;
    const TemporaryModel source(spec);
    const GgufFile from = source.open();
    for (const uint32_t asked : {0u, 300u, 400u}) {
      RandomModelSpec copy = preset("tiny-qwen3-test");
      copy.vocab_size = asked;
      const TemporaryModel model(copy, &from);
      const GgufFile file = model.open();
      const uint32_t n = std::max(asked, 300u);
      CHECK(file.require<uint32_t>("qwen3.vocab_size") == n);
      CHECK(file.tensor("token_embd.weight").shape == std::vector<uint64_t>{64, n});
      const auto tokens = *file.get_array<std::string_view>("tokenizer.ggml.tokens");
      CHECK(tokens.size() == n);
      CHECK(file.get_array<int32_t>("tokenizer.ggml.token_type")->size() == n);
      CHECK(tokens[299] == from.get_array<std::string_view>("tokenizer.ggml.tokens")->at(299));
      for (const std::string& key : from.keys())
        if (key.starts_with("tokenizer.") && n == 300)
          CHECK(file.raw(key)->bytes == from.raw(key)->bytes);
    }
  }

  KVASIR_DATA_TEST_CASE("a SentencePiece vocabulary is copied with its scores") {
    KVASIR_REQUIRE_DATA(data);
    const GgufFile from = GgufFile::open((data / "models" / "stories260K.gguf").string());
    RandomModelSpec spec = preset("tiny-llama-test");
    spec.vocab_size = 600;
    const TemporaryModel model(spec, &from);
    const GgufFile file = model.open();
    CHECK(file.require<std::string_view>("tokenizer.ggml.model") == "llama");
    CHECK(file.get_array<float>("tokenizer.ggml.scores")->size() == 600);
    CHECK(file.get<uint32_t>("tokenizer.ggml.padding_token_id") == 4294967295u);
  }
}
