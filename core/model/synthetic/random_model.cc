// Writes a GGUF with random weights: the tensors that a model of the shape has, and a generator
// whose value depends only on seed, tensor name and element, so that threads and slices do not
// matter.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/synthetic/random_model.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <thread>

#include "core/error.h"
#include "core/model/gguf/gguf_writer.h"
#include "core/model/gguf/quant.h"
#include "core/model/layers/architecture.h"
#include "core/model/layers/tensor_list.h"
#include "core/model/synthetic/random_tokenizer.h"

namespace kvasir {
namespace {

enum class Fill { kNormal, kNorm, kRopeFactors };

uint64_t bytes_of(GgmlType type, uint64_t n_elements) {
  return n_elements / block_elements(type) * block_bytes(type);
}

struct Plan {
  std::string name;
  GgmlType type;
  TensorShape shape;
  Fill fill = Fill::kNormal;
  float deviation = 0.0f;  // kNormal

  uint64_t n_elements() const {
    return std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
  }
  uint64_t n_bytes() const { return bytes_of(type, n_elements()); }
};

// ---- the values ----

// Element i of a tensor is a hash of (tensor's seed, i): the finaliser of SplitMix64 (Steele, Lea,
// Flood 2014, doi:10.1145/2660193.2660195).
uint64_t hash(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Nearly normal with the given deviation: the sum of four uniform 16-bit numbers, whose variance
// is 4 (2^32 - 1) / 12. Bounded by 3.46 deviations.
void fill_normal(uint64_t seed, uint64_t begin, std::span<float> out, float deviation) {
  const float by = deviation / std::sqrt(4294967295.0f / 3.0f);
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t h = hash(seed, begin + i);
    const auto sum =
        static_cast<int32_t>((h & 0xFFFF) + (h >> 16 & 0xFFFF) + (h >> 32 & 0xFFFF) + (h >> 48));
    out[i] = (static_cast<float>(sum) - 131070.0f) * by;
  }
}

void fill_norm(uint64_t seed, uint64_t begin, std::span<float> out, float spread) {
  for (size_t i = 0; i < out.size(); ++i) {
    const auto u = static_cast<float>(hash(seed, begin + i) >> 40);  // 24 bits
    out[i] = 1.0f + spread * (u * 0x1p-23f - 1.0f);
  }
}

// Divisors of the rotation frequencies as Llama 3.1 defines them: waves shorter than
// original / high stay, those longer than original / low are slowed by the full factor, between
// them the frequency is interpolated.
void fill_rope_factors(const RandomModelSpec& spec, std::span<float> out) {
  const double original = spec.rope_original_context;
  const double low = spec.rope_low_freq_factor;
  const double high = spec.rope_high_freq_factor;
  for (size_t i = 0; i < out.size(); ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / spec.head_dim;
    const double wave = 2.0 * std::numbers::pi * std::pow(double{spec.rope_base}, exponent);
    const double smooth = std::clamp((original / wave - low) / (high - low), 0.0, 1.0);
    out[i] = static_cast<float>(1.0 / ((1.0 - smooth) / spec.rope_factor + smooth));
  }
}

void fill_values(const RandomModelSpec& spec, const Plan& plan, uint64_t seed, uint64_t begin,
                 std::span<float> out) {
  switch (plan.fill) {
    case Fill::kNormal:
      return fill_normal(seed, begin, out, plan.deviation);
    case Fill::kNorm:
      return fill_norm(seed, begin, out, spec.norm_spread);
    case Fill::kRopeFactors:
      return fill_rope_factors(spec, out);
  }
}

// Elements [begin, end) of the tensor into `bytes`, which begins with the first of them.
void fill_range(const RandomModelSpec& spec, const Plan& plan, uint64_t begin, uint64_t end,
                std::byte* bytes) {
  constexpr uint64_t kPiece = 4096;  // elements that stay in the first-level cache
  const uint64_t seed = XXH3_64bits_withSeed(plan.name.data(), plan.name.size(), spec.seed);
  std::vector<float> values(kPiece);
  for (uint64_t i = begin; i < end; i += kPiece) {
    const uint64_t n = std::min(kPiece, end - i);
    fill_values(spec, plan, seed, i, {values.data(), n});
    quantize(plan.type, values.data(), bytes + bytes_of(plan.type, i - begin), n, {plan.name, i});
  }
}

// The same on two threads when it is worth starting one: generating, not writing, is the limit.
void fill_parallel(const RandomModelSpec& spec, const Plan& plan, uint64_t begin, uint64_t end,
                   std::byte* bytes) {
  constexpr uint64_t kWorthIt = uint64_t{1} << 16;
  if (end - begin < kWorthIt) return fill_range(spec, plan, begin, end, bytes);
  const uint64_t middle = begin + (end - begin) / 2 / 256 * 256;  // between blocks of any type
  const std::jthread other(
      [&] { fill_range(spec, plan, middle, end, bytes + bytes_of(plan.type, middle - begin)); });
  fill_range(spec, plan, begin, middle, bytes);
}

// ---- the tensors ----

ModelShape shape_from(const RandomModelSpec& spec) {
  ModelShape shape;
  shape.architecture = spec.architecture;
  shape.name = spec.name;
  shape.n_layers = spec.n_layers;
  shape.d_model = spec.d_model;
  shape.d_ff = spec.d_ff;
  shape.vocab_size = spec.vocab_size;
  shape.n_q_heads = spec.n_q_heads;
  shape.n_kv_heads = spec.n_kv_heads;
  shape.head_dim = shape.v_head_dim = spec.head_dim;
  shape.max_context = spec.context_length;
  shape.norm_eps = spec.norm_eps;
  shape.qkv_bias = spec.qkv_bias;
  shape.qk_norm = spec.qk_norm;
  shape.tied_embeddings = spec.tied_embeddings;
  const Architecture& family = architecture(spec.architecture);
  take_arithmetic(family, shape);
  if (spec.sliding_window)
    shape.sliding_windows =
        sliding_windows(spec.sliding_window, spec.n_layers, family.global_every);
  shape.softmax_softcap = spec.softmax_softcap;
  shape.logits_softcap = spec.logits_softcap;
  shape.rope.n_dims = spec.rope ? spec.head_dim : 0;
  shape.rope.base = spec.rope_base;
  shape.sliding_rope = sliding_rope(family, shape, 0.0f);
  return shape;
}

Plan plan_tensor(const RandomModelSpec& spec, const std::string& name, const TensorShape& shape) {
  if (name.ends_with(".bias")) return {name, GgmlType::kF32, shape, Fill::kNormal, 0.1f};
  if (shape.size() == 1) return {name, GgmlType::kF32, shape, Fill::kNorm};
  // Deviation 1/sqrt(fan_in) keeps the size of activations; what is added to the residual stream
  // 2 n_layers times is smaller by the square root of that, so that the stream does not grow.
  const bool adds_to_residual =
      name.ends_with(".attn_output.weight") || name.ends_with(".ffn_down.weight");
  const float gain =
      adds_to_residual ? 1.0f / std::sqrt(2.0f * static_cast<float>(spec.n_layers)) : 1.0f;
  const float deviation = gain / std::sqrt(static_cast<float>(shape[0]));
  const GgmlType type = spec.type.type_of(name, shape[0], {spec.n_layers, spec.tied_embeddings});
  return {name, type, shape, Fill::kNormal, deviation};
}

std::vector<Plan> plan_tensors(const RandomModelSpec& spec) {
  std::vector<Plan> out;
  for_each_tensor(shape_from(spec), [&](const std::string& name, const TensorShape& shape) {
    out.push_back(plan_tensor(spec, name, shape));
  });
  if (spec.rope_scaling == "llama3") {  // second in the file, behind the embedding
    out.insert(out.begin() + 1,
               {"rope_freqs.weight", GgmlType::kF32, {spec.head_dim / 2}, Fill::kRopeFactors});
  }
  return out;
}

// ---- the metadata ----

std::string where(const RandomModelSpec& spec) { return "random model '" + spec.name + "': "; }

void require(bool holds, const RandomModelSpec& spec, const std::string& message) {
  if (!holds) throw input_error(where(spec) + message);
}

void check_spec(const RandomModelSpec& s) {
  architecture(s.architecture, where(s));
  require(s.n_layers > 0 && s.d_model > 0 && s.d_ff > 0 && s.context_length > 0, s,
          "n_layers, d_model, d_ff and context_length must be above 0");
  require(s.n_kv_heads > 0 && s.n_q_heads > 0 && s.n_q_heads % s.n_kv_heads == 0, s,
          "n_q_heads must be a multiple of n_kv_heads");
  require(s.head_dim > 0 && s.head_dim % 2 == 0, s, "head_dim must be even and above 0");
  s.type.file_type();  // refuses what is not written
  // The types of larger blocks have one of 32 that stands in for them.
  const uint32_t block = std::min(block_elements(s.type.type), 32u);
  const uint64_t q_width = uint64_t{s.n_q_heads} * s.head_dim;
  require(s.d_model % block == 0 && s.d_ff % block == 0 && q_width % block == 0, s,
          "d_model, d_ff and n_q_heads * head_dim must be multiples of " + std::to_string(block) +
              " for " + s.type.name());
  require(s.sliding_window == 0 || (s.sliding_window < s.context_length &&
                                    architecture(s.architecture).global_every != kNoLayerSlides),
          s, "sliding_window must be below context_length, and the architecture one that has it");
  const auto& scaling = s.rope_scaling;
  require(scaling.empty() || scaling == "linear" || scaling == "yarn" || scaling == "dynamic" ||
              scaling == "llama3",
          s, "rope_scaling '" + scaling + "' is not one of linear, yarn, dynamic, llama3");
  require(s.rope_factor > 0.0f, s, "rope_factor must be above 0");
  require((scaling != "llama3" && scaling != "yarn") || s.rope_original_context > 0, s,
          "rope_original_context must be above 0 for " + scaling);
  require(scaling != "llama3" || s.rope_high_freq_factor > s.rope_low_freq_factor, s,
          "rope_high_freq_factor must be above rope_low_freq_factor");
}

void set_metadata(GgufWriter& writer, const RandomModelSpec& s) {
  const std::string arch = s.architecture + ".";
  writer.set("general.architecture", s.architecture);
  writer.set("general.name", s.name);
  writer.set("general.file_type", s.type.file_type());
  writer.set("general.quantization_version", uint32_t{2});
  writer.set("general.description", std::string("random weights; its text means nothing"));
  writer.set(arch + "vocab_size", s.vocab_size);
  writer.set(arch + "context_length", s.context_length);
  writer.set(arch + "embedding_length", s.d_model);
  writer.set(arch + "feed_forward_length", s.d_ff);
  writer.set(arch + "block_count", s.n_layers);
  writer.set(arch + "attention.head_count", s.n_q_heads);
  writer.set(arch + "attention.head_count_kv", s.n_kv_heads);
  writer.set(arch + "attention.key_length", s.head_dim);
  writer.set(arch + "attention.value_length", s.head_dim);
  writer.set(arch + "attention.layer_norm_rms_epsilon", s.norm_eps);
  if (s.sliding_window) writer.set(arch + "attention.sliding_window", s.sliding_window);
  if (s.softmax_softcap != 0.0f) writer.set(arch + "attn_logit_softcapping", s.softmax_softcap);
  if (s.logits_softcap != 0.0f) writer.set(arch + "final_logit_softcapping", s.logits_softcap);
  writer.set(arch + "rope.dimension_count", s.rope ? s.head_dim : 0);
  writer.set(arch + "rope.freq_base", s.rope_base);
  if (s.rope_scaling.empty() || s.rope_scaling == "llama3") return;
  writer.set(arch + "rope.scaling.type", s.rope_scaling);
  writer.set(arch + "rope.scaling.factor", s.rope_factor);
  if (s.rope_original_context > 0)
    writer.set(arch + "rope.scaling.original_context_length", s.rope_original_context);
}

}  // namespace

ModelShape shape_of(const RandomModelSpec& spec) {
  check_spec(spec);
  require(spec.vocab_size > 0, spec, "vocab_size must be given");
  return shape_from(spec);
}

uint64_t parameter_count(const RandomModelSpec& spec) {
  check_spec(spec);
  uint64_t n = 0;
  for (const Plan& plan : plan_tensors(spec))
    if (plan.fill != Fill::kRopeFactors) n += plan.n_elements();
  return n;
}

void write_random_model(const RandomModelSpec& spec, const std::string& path,
                        const GgufFile* tokenizer_from,
                        const std::function<void(uint64_t done, uint64_t total)>& progress) {
  check_spec(spec);
  const Architecture& family = architecture(spec.architecture);
  GgufWriter writer;
  RandomModelSpec full = spec;
  full.vocab_size = tokenizer_from
                        ? copy_tokenizer(writer, *tokenizer_from, spec.vocab_size)
                        : set_synthetic_tokenizer(writer, std::string(family.pretokenizer),
                                                  family.add_bos, spec.vocab_size);
  set_metadata(writer, full);
  const std::vector<Plan> plans = plan_tensors(full);
  uint64_t total = 0;
  for (const Plan& plan : plans) {
    writer.add_tensor(plan.name, plan.type, plan.shape);
    total += plan.n_bytes();
  }

  constexpr uint64_t kSlice = uint64_t{1} << 23;  // elements written at once
  uint64_t done = 0;
  std::vector<std::byte> slice;
  writer.stream(path, [&](size_t index, const GgufWriter::Sink& sink) {
    const Plan& plan = plans[index];
    const uint64_t n = plan.n_elements();
    for (uint64_t begin = 0; begin < n; begin += kSlice) {
      const uint64_t end = std::min(n, begin + kSlice);
      slice.resize(bytes_of(plan.type, end - begin));
      fill_parallel(full, plan, begin, end, slice.data());
      sink(slice);
      done += slice.size();
      if (progress) progress(done, total);
    }
  });
}

}  // namespace kvasir
