// What read_shape takes from a file, and what it refuses: each error names file, key or tensor.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <map>

#include "core/model/gguf/gguf_writer.h"
#include "core/model/layers/shape.h"
#include "core/model/layers/tensor_list.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir;

// A llama of 2 layers whose metadata and tensors a test can change before it is written.
struct Draft {
  std::map<std::string, GgufWriter::Value> metadata;
  std::map<std::string, TensorShape> tensors;

  Draft() {
    metadata["general.architecture"] = std::string("llama");
    set("block_count", 2u);
    set("embedding_length", 64u);
    set("feed_forward_length", 96u);
    set("attention.head_count", 4u);
    set("attention.head_count_kv", 2u);
    set("attention.layer_norm_rms_epsilon", 1e-6f);
    set("context_length", 2048u);
    ModelShape shape;
    shape.n_layers = 2;
    shape.d_model = 64;
    shape.d_ff = 96;
    shape.n_q_heads = 4;
    shape.n_kv_heads = 2;
    shape.head_dim = shape.v_head_dim = 16;
    shape.vocab_size = 50;
    for_each_tensor(shape,
                    [&](const std::string& name, const TensorShape& s) { tensors[name] = s; });
  }
  void set(const std::string& key, GgufWriter::Value value) {
    metadata["llama." + key] = std::move(value);
  }
  ModelShape read() const {
    const test::TempDir dir;
    GgufWriter writer;
    for (const auto& [key, value] : metadata) writer.set(key, value);
    for (const auto& [name, shape] : tensors) writer.add_tensor(name, GgmlType::kF32, shape);
    const std::string path = dir.path("draft.gguf");
    writer.write(path, [](size_t, std::span<std::byte> bytes) {
      for (size_t i = 0; i < bytes.size(); i += 4) {  // 1.0f
        bytes[i + 2] = std::byte{0x80};
        bytes[i + 3] = std::byte{0x3F};
      }
    });
    return read_shape(GgufFile::open(path));
  }
  // Whether reading fails with an error that names the file and contains `text`.
  bool refused_with(const std::string& text) const {
    const std::string message = test::error_of([&] { read(); });
    INFO(message);
    CHECK(message.find(text) != std::string::npos);
    return message.find("draft.gguf") != std::string::npos;
  }
};

}  // namespace

TEST_SUITE_BEGIN("core/model/shape");

TEST_CASE("what the file does not say has the defaults of the architecture") {
  const ModelShape s = Draft().read();
  CHECK(s.architecture == "llama");
  CHECK(s.n_layers == 2);
  CHECK(s.head_dim == 16);
  CHECK(s.v_head_dim == 16);
  CHECK(s.vocab_size == 50);
  CHECK(s.max_context == 2048);
  CHECK(s.norm_eps == 1e-6f);
  CHECK(s.tied_embeddings == false);
  CHECK(s.rope.n_dims == 16);
  CHECK(s.rope.base == 10000.0f);
  CHECK(s.rope.scaling == RopeScaling::kNone);
  CHECK(s.rope.pairing == RopePairing::kInterleaved);
  CHECK(s.group_size() == 2);
  CHECK(s.kv_bytes_per_token(2.0, 1.0625) == static_cast<uint64_t>(2 * 2 * 16 * (2.0 + 1.0625)));
  Draft unrotated;
  unrotated.set("rope.dimension_count", 0u);
  CHECK(unrotated.read().rope.n_dims == 0);
  Draft tied;
  tied.tensors.erase("output.weight");
  CHECK(tied.read().tied_embeddings);
  Draft all_heads;
  all_heads.metadata.erase("llama.attention.head_count_kv");
  CHECK(
      all_heads.refused_with("tensor 'blk.0.attn_k.weight' has shape {64, 32}; the metadata "
                             "implies {64, 64}"));
}

TEST_CASE("RoPE scaling is read in the words of GGUF") {
  Draft draft;
  draft.set("rope.freq_base", 500000.0f);
  draft.set("rope.scaling.type", std::string("yarn"));
  draft.set("rope.scaling.factor", 4.0f);
  draft.set("rope.scaling.original_context_length", 512u);
  draft.set("rope.scaling.attn_factor", 0.5f);
  draft.set("rope.scaling.yarn_beta_fast", 16.0f);
  draft.tensors["rope_freqs.weight"] = {8};
  const RopeConfig rope = draft.read().rope;
  CHECK(rope.scaling == RopeScaling::kYarn);
  CHECK(rope.base == 500000.0f);
  CHECK(rope.factor == 4.0f);
  CHECK(rope.original_context == 512);
  CHECK(rope.attn_factor == 0.5f);
  CHECK(rope.beta_fast == 16.0f);
  CHECK(rope.beta_slow == 1.0f);
  CHECK(rope.freq_factors == std::vector<float>(8, 1.0f));
  Draft factor_only;
  factor_only.set("rope.scale_linear", 2.0f);
  CHECK(factor_only.read().rope.scaling == RopeScaling::kLinear);
  draft.set("rope.scaling.type", std::string("longrope"));
  CHECK(draft.refused_with("'longrope'; supported are none, linear, dynamic, yarn and llama3"));
}

TEST_CASE("architectures and features that we do not compute are refused by name") {
  Draft draft;
  draft.metadata["general.architecture"] = std::string("mamba");
  CHECK(draft.refused_with(
      "'mamba' is not supported; supported are llama, qwen2, qwen3, gemma2 and gemma3"));
  Draft experts;
  experts.set("expert_count", 8u);
  CHECK(experts.refused_with("'llama.expert_count' is 8, which is not supported"));
  experts.set("expert_count", 0u);
  CHECK(experts.read().n_layers == 2);
  Draft window;
  window.set("attention.sliding_window", 2048u);
  CHECK(window.read().max_context == 2048);  // never shorter than what there is
  CHECK(window.read().sliding_windows.empty());
  Draft extra;
  extra.tensors["blk.1.attn_output.bias"] = {64};
  CHECK(extra.refused_with("tensor 'blk.1.attn_output.bias' is not part of a llama model"));
}

TEST_CASE("layers with a sliding window are told by the file's pattern, or by the family") {
  Draft draft;  // Mistral's first models
  draft.set("attention.sliding_window", 1024u);
  CHECK(draft.read().sliding_windows == std::vector<uint32_t>{1024, 1024});
  CHECK(draft.read().n_sliding_layers() == 2);
  draft.set("attention.sliding_window_pattern", 2u);
  CHECK(draft.read().sliding_windows == std::vector<uint32_t>{1024, 0});
  const auto flags = [](const std::string& each) {  // an array of bool, as it lies in a file
    std::string bytes = {7, 0, 0, 0, static_cast<char>(each.size()), 0, 0, 0, 0, 0, 0, 0};
    return GgufRaw{9, bytes + each};
  };
  draft.set("attention.sliding_window_pattern", flags({0, 1}));
  CHECK(draft.read().sliding_windows == std::vector<uint32_t>{0, 1024});
  draft.set("attention.sliding_window_pattern", flags({0}));
  CHECK(draft.refused_with("has 1 entries for 2 layers"));
  draft.set("attention.sliding_window_pattern", 0u);
  CHECK(draft.refused_with("no key 'llama.attention.sliding_window_pattern' says which layers"));
  draft.set("attention.sliding_window_pattern", 2u);
  draft.set("rope.freq_base", 5e5f);
  draft.set("rope.freq_base_swa", 2e4f);
  CHECK(draft.read().rope.base == 5e5f);
  CHECK(draft.read().sliding_rope.base == 2e4f);
  draft.set("rope.freq_base_swa", 0.0f);
  CHECK(draft.refused_with("'llama.rope.freq_base_swa' is 0.0"));
}

TEST_CASE("counts out of bounds, or that do not fit each other or the tensors, are refused") {
  for (const char* key : {"block_count", "embedding_length", "feed_forward_length",
                          "context_length", "attention.head_count", "attention.head_count_kv",
                          "attention.key_length", "rope.dimension_count"}) {
    CAPTURE(std::string(key));
    Draft draft;
    for (const uint32_t value : {0u, 0xFFFFFFFFu}) {
      if (value == 0 && std::string(key) == "rope.dimension_count") continue;  // no RoPE
      draft.set(key, value);
      CHECK(draft.refused_with("llama." + std::string(key)));
    }
    if (std::string(key) == "attention.head_count_kv" ||
        std::string(key) == "rope.dimension_count" || std::string(key) == "attention.key_length") {
      continue;  // has a default
    }
    draft.metadata.erase("llama." + std::string(key));
    CHECK(draft.refused_with("llama." + std::string(key)));
  }
  Draft draft;
  draft.set("attention.head_count_kv", 3u);
  CHECK(draft.refused_with("(4) is not a multiple of 'llama.attention.head_count_kv' (3)"));
  draft = Draft();
  draft.set("attention.head_count_kv", std::vector<int32_t>{2, 1});
  CHECK(draft.refused_with("llama.attention.head_count_kv"));
  draft = Draft();
  draft.set("block_count", 3u);
  CHECK(draft.refused_with("blk.2.attn_norm.weight"));
  draft = Draft();
  draft.set("block_count", 1u);
  CHECK(draft.refused_with("tensor 'blk.1."));
  draft = Draft();
  draft.set("vocab_size", 51u);
  CHECK(draft.refused_with("'llama.vocab_size' is 51"));
  draft = Draft();
  draft.metadata["tokenizer.ggml.tokens"] = std::vector<std::string>(51, "x");
  CHECK(draft.refused_with("has 51 tokens"));
  draft = Draft();
  draft.set("rope.dimension_count", 7u);
  CHECK(draft.refused_with("expected an even number"));
  draft = Draft();
  draft.set("rope.freq_base", -1.0f);
  CHECK(draft.refused_with("llama.rope.freq_base"));
  for (const char* name : {"token_embd.weight", "blk.0.ffn_gate.weight", "blk.1.ffn_norm.weight",
                           "output_norm.weight", "blk.0.attn_v.weight"}) {
    CAPTURE(std::string(name));
    draft = Draft();
    draft.tensors[name].back() += 1;
    CHECK(draft.refused_with("tensor '"));
    draft.tensors.erase(name);
    CHECK(draft.refused_with(name));
  }
}
