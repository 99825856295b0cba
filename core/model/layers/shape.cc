// Reads and checks what a GGUF says about its transformer. The file is untrusted: every count is
// bounded, and every tensor must have exactly the shape that the counts imply.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/shape.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_set>

#include "core/error.h"
#include "core/model/gguf/quant.h"
#include "core/model/layers/architecture.h"
#include "core/model/layers/tensor_list.h"

namespace kvasir {
namespace {

// Present and not zero, these change the arithmetic in ways that we do not follow.
constexpr std::array kUnsupportedKeys = {"expert_count",
                                         "attention.clamp_kqv",
                                         "attention.max_alibi_bias",
                                         "logit_scale",
                                         "residual_scale",
                                         "embedding_scale",
                                         "attention.scale",
                                         "rope.scaling.yarn_log_multiplier"};

class ShapeReader {
 public:
  explicit ShapeReader(const GgufFile& file) : file_(file) {}
  ModelShape read();

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw input_error(file_.path() + ": " + message);
  }
  std::string key(const char* rest) const { return shape_.architecture + "." + rest; }
  uint32_t count(const char* rest, uint32_t limit) const {
    return bounded(rest, file_.require<uint32_t>(key(rest)), limit);
  }
  uint32_t count_or(const char* rest, uint32_t fallback, uint32_t limit) const {
    return bounded(rest, file_.get_or<uint32_t>(key(rest), fallback), limit);
  }
  uint32_t bounded(const char* rest, uint32_t value, uint32_t limit) const {
    if (value == 0 || value > limit) {
      fail("key '" + key(rest) + "' is " + std::to_string(value) + "; expected 1 to " +
           std::to_string(limit));
    }
    return value;
  }
  float positive_or(const std::string& full_key, float fallback) const {
    const float value = file_.get_or<float>(full_key, fallback);
    if (!std::isfinite(value) || value <= 0.0f) {
      fail("key '" + full_key + "' is " + std::to_string(value) + "; expected a number above 0");
    }
    return value;
  }
  // `always`: every model of the family has it.
  bool has_tensor(const char* tensor, bool always) const {
    if (file_.find_tensor(tensor)) return true;
    if (always) {
      fail("has no tensor '" + std::string(tensor) + "', which every " + shape_.architecture +
           " model has");
    }
    return false;
  }
  void read_architecture();
  void refuse_unsupported() const;
  void read_widths();
  void read_heads();
  void read_vocabulary();
  void read_sliding_windows();
  float softcap(const char* rest) const;
  void read_rope();
  void read_rope_scaling();
  void read_freq_factors();
  void check_tensors() const;

  const GgufFile& file_;
  const Architecture* family_ = nullptr;
  ModelShape shape_;
};

void ShapeReader::read_architecture() {
  const auto arch = file_.get<std::string_view>("general.architecture");
  if (!arch) fail("has no key 'general.architecture'; is this a model?");
  family_ = &architecture(*arch, file_.path() + ": ");
  shape_.architecture = *arch;
  shape_.name = file_.get_or<std::string_view>("general.name", "");
}

void ShapeReader::refuse_unsupported() const {
  for (const char* rest : kUnsupportedKeys) {
    if (!file_.has(key(rest))) continue;
    const std::string value = file_.describe(key(rest));
    if (value.find_first_not_of("0.") == std::string::npos) continue;
    fail("key '" + key(rest) + "' is " + value + ", which is not supported");
  }
}

// Which layers slide: the file's pattern, a period or a flag per layer, or that of the family.
void ShapeReader::read_sliding_windows() {
  const auto window = file_.get_or<uint32_t>(key("attention.sliding_window"), 0);
  if (window == 0 || window >= shape_.max_context) return;
  const std::string pattern = key("attention.sliding_window_pattern");
  if (file_.is_array(pattern)) {
    const auto slides = file_.get_array<bool>(pattern);
    if (slides->size() != shape_.n_layers) {
      fail("key '" + pattern + "' has " + std::to_string(slides->size()) + " entries for " +
           std::to_string(shape_.n_layers) + " layers");
    }
    for (const bool slides_here : *slides)
      shape_.sliding_windows.push_back(slides_here ? window : 0);
    return;
  }
  const auto every = file_.get_or<uint32_t>(pattern, family_->global_every);
  if (every == kNoLayerSlides) {
    fail("key '" + key("attention.sliding_window") + "' is " + std::to_string(window) +
         ", below the context length of " + std::to_string(shape_.max_context) +
         " tokens, and no key '" + pattern + "' says which layers it is for");
  }
  shape_.sliding_windows = sliding_windows(window, shape_.n_layers, every);
}

float ShapeReader::softcap(const char* rest) const {
  const float cap = file_.get_or<float>(key(rest), 0.0f);
  if (!std::isfinite(cap) || cap < 0.0f) {
    fail("key '" + key(rest) + "' is " + std::to_string(cap) + "; expected 0 or a number above it");
  }
  return cap;
}

void ShapeReader::read_widths() {
  shape_.n_layers = count("block_count", 4096);
  shape_.d_model = count("embedding_length", 1 << 20);
  shape_.d_ff = count("feed_forward_length", 1 << 22);
  shape_.max_context = count("context_length", 1 << 30);
  shape_.norm_eps = positive_or(key("attention.layer_norm_rms_epsilon"), 1e-5f);
}

void ShapeReader::read_heads() {
  shape_.n_q_heads = count("attention.head_count", 1 << 14);
  shape_.n_kv_heads = count_or("attention.head_count_kv", shape_.n_q_heads, 1 << 14);
  if (shape_.n_q_heads % shape_.n_kv_heads != 0) {
    fail("'" + key("attention.head_count") + "' (" + std::to_string(shape_.n_q_heads) +
         ") is not a multiple of '" + key("attention.head_count_kv") + "' (" +
         std::to_string(shape_.n_kv_heads) + ")");
  }
  if (!file_.has(key("attention.key_length")) && shape_.d_model % shape_.n_q_heads != 0) {
    fail("has no key '" + key("attention.key_length") + "' and '" + key("embedding_length") +
         "' (" + std::to_string(shape_.d_model) + ") is not a multiple of '" +
         key("attention.head_count") + "' (" + std::to_string(shape_.n_q_heads) + ")");
  }
  const uint32_t even_share = std::max(1u, shape_.d_model / shape_.n_q_heads);
  shape_.head_dim = count_or("attention.key_length", even_share, 1024);
  shape_.v_head_dim = count_or("attention.value_length", even_share, 1024);
}

// The rows of the embedding decide; what the metadata says must agree with them.
void ShapeReader::read_vocabulary() {
  const GgufTensor& embedding = file_.tensor("token_embd.weight");
  constexpr uint64_t kLimit = uint64_t{1} << 24;
  if (embedding.shape.size() != 2 || embedding.shape[1] == 0 || embedding.shape[1] > kLimit) {
    fail("tensor 'token_embd.weight' has shape " + shape_text(embedding.shape) +
         "; expected {embedding_length, vocabulary} with a vocabulary up to " +
         std::to_string(kLimit));
  }
  shape_.vocab_size = static_cast<uint32_t>(embedding.shape[1]);
  const auto claimed = file_.get<uint32_t>(key("vocab_size"));
  if (claimed && *claimed != shape_.vocab_size) {
    fail("key '" + key("vocab_size") + "' is " + std::to_string(*claimed) +
         ", but tensor 'token_embd.weight' has " + std::to_string(shape_.vocab_size) + " rows");
  }
  const auto tokens = file_.get_array<std::string_view>("tokenizer.ggml.tokens");
  if (tokens && tokens->size() > shape_.vocab_size) {
    fail("the vocabulary 'tokenizer.ggml.tokens' has " + std::to_string(tokens->size()) +
         " tokens, but tensor 'token_embd.weight' only " + std::to_string(shape_.vocab_size) +
         " rows");
  }
  shape_.tied_embeddings = file_.find_tensor("output.weight") == nullptr;
}

void ShapeReader::read_rope() {
  RopeConfig& rope = shape_.rope;
  const auto n_dims = file_.get_or<uint32_t>(key("rope.dimension_count"), shape_.head_dim);
  if (n_dims == 0) return;  // no RoPE: keys are as they were projected
  rope.n_dims = bounded("rope.dimension_count", n_dims, shape_.head_dim);
  if (rope.n_dims % 2 != 0) {
    fail("key '" + key("rope.dimension_count") + "' is " + std::to_string(rope.n_dims) +
         "; expected an even number");
  }
  rope.base = positive_or(key("rope.freq_base"), 10000.0f);
  read_rope_scaling();
  read_freq_factors();
  const std::string sliding_base = key("rope.freq_base_swa");
  shape_.sliding_rope = sliding_rope(
      *family_, shape_, file_.has(sliding_base) ? positive_or(sliding_base, 1.0f) : 0.0f);
}

void ShapeReader::read_rope_scaling() {
  RopeConfig& rope = shape_.rope;
  // A factor without a type is linear scaling, as older converters wrote it.
  const bool has_factor = file_.has(key("rope.scaling.factor"));
  rope.factor =
      positive_or(has_factor ? key("rope.scaling.factor") : key("rope.scale_linear"), 1.0f);
  const auto type = file_.get_or<std::string_view>(key("rope.scaling.type"),
                                                   rope.factor == 1.0f ? "none" : "linear");
  if (type == "none") {
    rope.scaling = RopeScaling::kNone;
  } else if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
  } else if (type == "dynamic") {
    rope.scaling = RopeScaling::kDynamicNtk;
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
  } else if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
  } else {
    fail("key '" + key("rope.scaling.type") + "' is '" + std::string(type).substr(0, 64) +
         "'; supported are none, linear, dynamic, yarn and llama3");
  }
  rope.original_context =
      count_or("rope.scaling.original_context_length", shape_.max_context, 1 << 30);
  rope.attn_factor = positive_or(key("rope.scaling.attn_factor"), 1.0f) *
                     positive_or(key("rope.scaling.yarn_attn_factor"), 1.0f);
  if (file_.get_or<float>(key("rope.scaling.yarn_ext_factor"), 1.0f) != 1.0f) {
    fail("key '" + key("rope.scaling.yarn_ext_factor") + "' other than 1 is not supported");
  }
  rope.beta_fast = positive_or(key("rope.scaling.yarn_beta_fast"), 32.0f);
  rope.beta_slow = positive_or(key("rope.scaling.yarn_beta_slow"), 1.0f);
  rope.low_freq_factor = positive_or(key("rope.scaling.low_freq_factor"), 1.0f);
  rope.high_freq_factor = positive_or(key("rope.scaling.high_freq_factor"), 4.0f);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    fail("key '" + key("rope.scaling.high_freq_factor") + "' must be above '" +
         key("rope.scaling.low_freq_factor") + "'");
  }
}

void ShapeReader::read_freq_factors() {
  const GgufTensor* tensor = file_.find_tensor("rope_freqs.weight");
  if (!tensor) return;
  check_tensor_shape(file_, "rope_freqs.weight", {shape_.rope.n_dims / 2});
  auto& factors = shape_.rope.freq_factors;
  if (tensor->n_elements % block_elements(tensor->type) != 0) {
    fail("tensor 'rope_freqs.weight' cannot be of type " + std::string(kvasir::name(tensor->type)));
  }
  factors.resize(tensor->n_elements);
  dequantize(tensor->type, tensor->data, factors.data(), factors.size());
  for (const float factor : factors) {
    if (!std::isfinite(factor) || factor <= 0.0f) {
      fail("tensor 'rope_freqs.weight' holds " + std::to_string(factor) +
           "; expected numbers above 0");
    }
  }
}

// Every tensor we need has its shape, and there is none whose effect we would leave out.
void ShapeReader::check_tensors() const {
  std::unordered_set<std::string> known = {"rope_freqs.weight"};
  for_each_tensor(shape_, [&](const std::string& tensor, const TensorShape& expected) {
    check_tensor_shape(file_, tensor, expected);
    known.insert(tensor);
  });
  for (const GgufTensor& tensor : file_.tensors()) {
    const bool ignored = tensor.name.ends_with(".attn_rot_embd.weight");  // recomputed, not used
    if (!ignored && !known.contains(tensor.name)) {
      fail("tensor '" + tensor.name + "' is not part of a " + shape_.architecture +
           " model as we compute it; the result would be wrong without it");
    }
  }
}

ModelShape ShapeReader::read() {
  read_architecture();
  read_widths();
  refuse_unsupported();
  read_heads();
  read_vocabulary();
  read_sliding_windows();
  take_arithmetic(*family_, shape_);
  read_rope();
  shape_.softmax_softcap = softcap("attn_logit_softcapping");
  shape_.logits_softcap = softcap("final_logit_softcapping");
  shape_.qkv_bias = has_tensor("blk.0.attn_q.bias", family_->qkv_bias);
  shape_.qk_norm = has_tensor("blk.0.attn_q_norm.weight", family_->qk_norm);
  check_tensors();
  return shape_;
}

}  // namespace

ModelShape read_shape(const GgufFile& file) { return ShapeReader(file).read(); }

float ModelShape::attention_scale() const {
  return softmax_scale != 0.0f ? softmax_scale : 1.0f / std::sqrt(static_cast<float>(head_dim));
}

uint32_t ModelShape::n_sliding_layers() const {
  return static_cast<uint32_t>(sliding_windows.size() -
                               std::count(sliding_windows.begin(), sliding_windows.end(), 0u));
}

uint64_t ModelShape::kv_bytes_per_token(double bytes_k, double bytes_v) const {
  const double per_head = head_dim * bytes_k + v_head_dim * bytes_v;
  return static_cast<uint64_t>(std::llround(per_head * n_kv_heads * n_layers));
}

}  // namespace kvasir
