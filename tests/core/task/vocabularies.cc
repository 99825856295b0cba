// See vocabularies.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/task/vocabularies.h"

#include "core/model/synthetic/random_model.h"
#include "tests/support/data.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trained_model.h"

namespace kvasir::test {

std::unique_ptr<Tokenizer> small_vocabulary(bool add_bos) {
  const TempDir dir;
  RandomModelSpec spec;
  spec.architecture = add_bos ? "llama" : "qwen2";
  spec.n_layers = 1;
  spec.d_model = spec.d_ff = 8;
  spec.n_q_heads = spec.n_kv_heads = 1;
  spec.head_dim = 8;
  spec.context_length = 64;
  write_random_model(spec, dir.path("v.gguf"));
  return Tokenizer::from_gguf(GgufFile::open(dir.path("v.gguf")));
}

std::vector<NamedTokenizer> real_vocabularies() {
  std::vector<NamedTokenizer> out;
  const auto data = data_dir();
  if (data.empty()) return out;
  for (const char* file :
       {"qwen2/qwen2-vocab.gguf", "llama.cpp-vocab/ggml-vocab-gpt-2.gguf",
        "llama.cpp-vocab/ggml-vocab-deepseek-llm.gguf",
        "llama.cpp-vocab/ggml-vocab-deepseek-coder.gguf",
        "llama.cpp-vocab/ggml-vocab-llama-spm.gguf", "llama.cpp-vocab/ggml-vocab-phi-3.gguf"})
    out.push_back(
        {file, Tokenizer::from_gguf(GgufFile::open((data / "tokenizers" / file).string()))});
  return out;
}

std::vector<NamedTokenizer> trained_vocabularies() {
  std::vector<NamedTokenizer> out;
  for (const char* file : {"smollm2-135m-instruct.Q4_1.gguf", "gemma-3-270m.Q4_K_M.gguf"})
    if (const auto path = trained_model(file); has_model(path))
      out.push_back({file, Tokenizer::from_gguf(GgufFile::open(path.string()))});
  return out;
}

}  // namespace kvasir::test
