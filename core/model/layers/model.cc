// The transformer's pieces over weights loaded from a GGUF.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <unordered_map>

#include "core/error.h"
#include "core/model/gguf/quant.h"
#include "core/model/layers/device_model.h"
#include "core/model/layers/panel_matrix.h"
#include "core/model/layers/quantized_panel.h"
#include "core/model/layers/tensor_list.h"
#include "core/model/layers/turn_rows.h"
#include "kernels/row_ops.h"

namespace kvasir {
namespace {

struct Layer {
  PanelMatrix q, k, v, o, gate, up, down;
  const float *attn_norm = nullptr, *ffn_norm = nullptr;
  const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr;  // or null
  const float *q_norm = nullptr, *k_norm = nullptr;                     // or null
  const float *post_attn_norm = nullptr, *post_ffn_norm = nullptr;      // or null
};

struct Weights {
  std::vector<Layer> layers;
  const float* output_norm = nullptr;
  PanelMatrix head;
};

// Lays the weights out in one block of memory, but for those of a device. Run twice with the same
// steps: without memory to count the bytes, then with memory to fill it.
class WeightLoader {
 public:
  // file may be null to count bytes only, of weights in bf16.
  WeightLoader(const GgufFile* file, const ModelShape& shape, const Model::Options& options)
      : file_(file), shape_(shape), compute_(options.compute), device_(shape, options) {
    for_each_tensor(shape, [&](const std::string& name, const TensorShape& tensor_shape) {
      tensors_.emplace(name, tensor_shape);
      const bool is_embedding = name == "token_embd.weight" && !shape.tied_embeddings;
      if (tensor_shape.size() == 2 && !is_embedding) note_type(kept(name).type);
    });
  }
  Weights lay_out(std::byte* memory, ThreadPool* pool);
  uint64_t n_bytes() const { return used_; }
  // Of all matrices, those of a device included.
  bool has_quantized() const { return has_quantized_; }
  std::optional<Compute> plain() const { return plain_; }
  Model::Arithmetic arithmetic(bool deterministic) const {
    const bool in_tiles = has_quantized_ && PanelProducts::in_tiles(deterministic);
    return {has_quantized_ ? Compute::kInt8 : *plain_,
            !in_tiles && (plain_ != Compute::kBF16 || deterministic)};
  }

 private:
  std::byte* take(uint64_t bytes) {
    std::byte* at = memory_ ? memory_ + used_ : nullptr;
    used_ += (bytes + 63) / 64 * 64;
    return at;
  }
  using Named = std::pair<PanelMatrix*, std::string>;
  void matrices(std::initializer_list<Named> together);  // those that one product takes
  PanelMatrix kept(const std::string& name) const;       // without data
  PanelMatrix matrix(const std::string& name);
  void note_type(Compute type) {
    if (type == Compute::kInt8)
      has_quantized_ = true;
    else
      plain_ = type;
  }
  const float* vector(const std::string& name);
  const float* vector_if_any(const std::string& name);  // null when models of the shape have none
  Layer layer(uint32_t index);

  std::unordered_map<std::string, TensorShape> tensors_;
  const GgufFile* file_;
  const ModelShape& shape_;
  Compute compute_;
  DevicePart device_;
  std::byte* memory_ = nullptr;
  ThreadPool* pool_ = nullptr;
  uint64_t used_ = 0;
  bool has_quantized_ = false;
  std::optional<Compute> plain_;
};

PanelMatrix WeightLoader::kept(const std::string& name) const {
  const TensorShape& shape = tensors_.at(name);
  PanelMatrix m = kept_as(file_ ? file_->tensor(name).type : GgmlType::kBF16, compute_);
  m.n_in = static_cast<uint32_t>(shape[0]);
  m.n_out = static_cast<uint32_t>(shape[1]);
  return m;
}

// Perplexity moves most by what is rounded before these two, which mixes of types give more bits,
// too: SmolLM2 in Q5_0 loses 0.5 % with 8 bits and 0.2 % with 16 (docs/trained-models.md). They
// cost little: values are a fiftieth of a prompt's products, the head has one token of it, and two
// rows read a matrix as fast as one.
bool takes_rows_of_16_bits(const std::string& name, const ModelShape& shape) {
  return name.ends_with("attn_v.weight") || name == head_tensor(shape);
}

PanelMatrix WeightLoader::matrix(const std::string& name) {
  PanelMatrix m = kept(name);
  m.rows_16_bit = m.type == Compute::kInt8 && takes_rows_of_16_bits(name, shape_);
  m.data = take(m.n_bytes());
  return m;
}

void WeightLoader::matrices(std::initializer_list<Named> together) {
  std::vector<PanelSource> sources;
  for (const auto& [to, name] : together) {
    *to = matrix(name);
    if (memory_) sources.push_back({&file_->tensor(name), to});
  }
  if (!memory_) return;
  load_panels(sources, *pool_, *file_);
  for (const PanelSource& source : sources)
    file_->release_pages(source.tensor->data, source.tensor->n_bytes);
}

const float* WeightLoader::vector(const std::string& name) {
  const uint64_t n = tensors_.at(name)[0];
  auto* data = reinterpret_cast<float*>(take(n * sizeof(float)));
  if (memory_) read_vector(*file_, name, data);
  return data;
}

const float* WeightLoader::vector_if_any(const std::string& name) {
  return tensors_.contains(name) ? vector(name) : nullptr;
}

Layer WeightLoader::layer(uint32_t index) {
  const std::string blk = "blk." + std::to_string(index) + ".";
  Layer l;
  l.attn_norm = vector(blk + "attn_norm.weight");
  matrices({{&l.q, blk + "attn_q.weight"},
            {&l.k, blk + "attn_k.weight"},
            {&l.v, blk + "attn_v.weight"}});
  l.q_bias = vector_if_any(blk + "attn_q.bias");
  l.k_bias = vector_if_any(blk + "attn_k.bias");
  l.v_bias = vector_if_any(blk + "attn_v.bias");
  l.q_norm = vector_if_any(blk + "attn_q_norm.weight");
  l.k_norm = vector_if_any(blk + "attn_k_norm.weight");
  matrices({{&l.o, blk + "attn_output.weight"}});
  l.post_attn_norm = vector_if_any(blk + "post_attention_norm.weight");
  l.ffn_norm = vector(blk + "ffn_norm.weight");
  matrices({{&l.gate, blk + "ffn_gate.weight"}});
  matrices({{&l.up, blk + "ffn_up.weight"}});
  matrices({{&l.down, blk + "ffn_down.weight"}});
  l.post_ffn_norm = vector_if_any(blk + "post_ffw_norm.weight");
  return l;
}

Weights WeightLoader::lay_out(std::byte* memory, ThreadPool* pool) {
  memory_ = memory;
  pool_ = pool;
  used_ = 0;
  Weights w;
  for (uint32_t i = 0; i < device_.first_layer; ++i) w.layers.push_back(layer(i));
  if (device_.has_head) return w;
  w.output_norm = vector("output_norm.weight");
  matrices({{&w.head, head_tensor(shape_)}});
  return w;
}

// Activations that live inside one call: the normalised input, and what products need.
struct Scratch {
  uint64_t norm_floats;
  std::vector<uint32_t> widths;  // of inputs of products
  uint32_t d_ff;
  Scratch(const ModelShape& s, uint32_t max_tokens)
      : norm_floats(uint64_t{max_tokens} * s.d_model),
        widths{s.d_model, s.n_q_heads * s.v_head_dim},
        d_ff(s.d_ff) {}
  uint64_t n_bytes() const { return norm_floats * sizeof(float); }
  PanelProducts::Options products(const WeightLoader& weights, const Model::Options& o) const {
    return {weights.plain(), weights.has_quantized(),
            o.deterministic, o.max_batch_tokens,
            widths,          d_ff};
  }
};

constexpr uint64_t kEmbeddedBeforeRelease = 256;

class GgufModel final : public Model {
 public:
  GgufModel(const GgufFile& file, const ModelShape& shape, ThreadPool& pool,
            const Options& options);

  const ModelShape& shape() const override { return shape_; }
  const RopeTable& rope(uint32_t layer) const override {
    return shape_.sliding_window(layer) ? sliding_rope_ : rope_;
  }
  void embed(std::span<const int32_t> ids, float* h) const override;
  void attn_norm(uint32_t layer, const float* h, uint32_t n, float* x) const override;
  void project_qkv(uint32_t layer, const float* x, uint32_t n, float* q, float* k,
                   float* v) const override;
  void attn_output(uint32_t layer, const float* o, uint32_t n, float* h) const override;
  void ffn(uint32_t layer, float* h, uint32_t n) const override;
  void logits(const float* h, uint32_t n, float* out) const override;
  Compute compute() const override { return arithmetic_.compute; }
  bool may_round() const override { return may_round_; }
  bool tokens_are_independent() const override { return arithmetic_.tokens_are_independent; }
  uint64_t weight_bytes() const override { return weights_memory_.size(); }
  uint64_t weight_bytes_per_token() const override { return bytes_per_token_; }

 private:
  void check_tokens(uint32_t n) const { check_call(n, max_tokens_); }
  void norm_rows(const float* x, const float* weight, uint64_t n, uint32_t width, float* y) const;
  // h += x w, through the norm if there is one.
  void add_product(const float* x, uint32_t n, const PanelMatrix& w, const float* post_norm,
                   float* h) const;
  // The product of it, and what is left to do after that.
  PanelProducts::Product residual_product(const PanelMatrix& w, const float* post_norm,
                                          float* h) const;
  void finish_residual(uint32_t n, const float* post_norm, float* h) const;

  ModelShape shape_;
  ThreadPool& pool_;
  RopeTable rope_, sliding_rope_;
  const GgufFile& file_;
  const GgufTensor& embedding_;
  mutable uint64_t embedded_ = 0;  // tokens since the embedding's pages were released
  Region weights_memory_, scratch_memory_;
  Weights weights_;
  uint64_t bytes_per_token_ = 0;
  Arithmetic arithmetic_{};
  bool may_round_;
  uint32_t max_tokens_;
  float* norm_ = nullptr;  // inside scratch_memory_
  std::unique_ptr<PanelProducts> products_;
};

GgufModel::GgufModel(const GgufFile& file, const ModelShape& shape, ThreadPool& pool,
                     const Options& options)
    : shape_(shape),
      pool_(pool),
      rope_(shape.rope, shape.max_context, &pool),
      sliding_rope_(shape.sliding_rope, shape.max_context, &pool),
      file_(file),
      embedding_(file.tensor("token_embd.weight")),
      may_round_(options.compute != Compute::kF32),
      max_tokens_(options.max_batch_tokens) {
  const Scratch scratch(shape_, options.max_batch_tokens);
  WeightLoader loader(&file, shape_, options);
  loader.lay_out(nullptr, nullptr);
  arithmetic_ = loader.arithmetic(options.deterministic);
  weights_memory_ = Region(loader.n_bytes());
  scratch_memory_ = Region(scratch.n_bytes());
  weights_ = loader.lay_out(weights_memory_.data(), &pool_);
  norm_ = scratch_memory_.as<float>().data();
  products_ = std::make_unique<PanelProducts>(pool_, scratch.products(loader, options));
  // Every weight once, and one row of the embedding.
  bytes_per_token_ = loader.n_bytes() + embedding_.n_bytes / shape_.vocab_size;
}

void GgufModel::embed(std::span<const int32_t> ids, float* h) const {
  const uint64_t row_bytes = embedding_.n_bytes / shape_.vocab_size;
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<uint32_t>(id) >= shape_.vocab_size) {
      throw Error(ErrorKind::kInput, "token id " + std::to_string(id) +
                                         " is outside the vocabulary of " +
                                         std::to_string(shape_.vocab_size) + " tokens");
    }
  }
  const auto tokens = [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t i = begin; i < end; ++i) {
      dequantize(embedding_.type, embedding_.data + static_cast<uint64_t>(ids[i]) * row_bytes,
                 h + i * shape_.d_model, shape_.d_model);
      if (shape_.embedding_scale != 1.0f)
        for (uint32_t d = 0; d < shape_.d_model; ++d)
          h[i * shape_.d_model + d] *= shape_.embedding_scale;
    }
  };
  if (ids.size() < 8)
    tokens(0, ids.size(), 0);
  else
    pool_.parallel_for(ids.size(), 0, tokens);
  // The operating system maps 16 pages around each row that is read: without this, a long prompt
  // would make the whole embedding resident.
  embedded_ += ids.size();
  if (embedded_ < kEmbeddedBeforeRelease) return;
  embedded_ = 0;
  file_.release_pages(embedding_.data, embedding_.n_bytes);
}

// Normalises n rows of `width`: the activations of tokens, or the heads of tokens. Waking the pool
// costs more than normalising a few.
void GgufModel::norm_rows(const float* x, const float* weight, uint64_t n, uint32_t width,
                          float* y) const {
  const auto rows = [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t i = begin; i < end; ++i) {
      kernels::rms_norm(x + i * width, weight, width, shape_.norm_eps, y + i * width);
    }
  };
  if (n * width < 65536) return rows(0, n, 0);
  pool_.parallel_for(n, 0, rows);
}

void GgufModel::attn_norm(uint32_t layer, const float* h, uint32_t n, float* x) const {
  norm_rows(h, weights_.layers[layer].attn_norm, n, shape_.d_model, x);
}

void GgufModel::project_qkv(uint32_t layer, const float* x, uint32_t n, float* q, float* k,
                            float* v) const {
  check_tokens(n);
  const Layer& l = weights_.layers[layer];
  std::array<PanelProducts::Product, 3> list;
  size_t count = 0;
  if (q) list[count++] = {&l.q, q, l.q_bias};
  if (k) list[count++] = {&l.k, k, l.k_bias};
  if (v) list[count++] = {&l.v, v, l.v_bias};
  products_->multiply(x, n, std::span(list.data(), count));
  if (l.q_norm && q) norm_rows(q, l.q_norm, uint64_t{n} * shape_.n_q_heads, shape_.head_dim, q);
  if (l.k_norm && k) norm_rows(k, l.k_norm, uint64_t{n} * shape_.n_kv_heads, shape_.head_dim, k);
}

void GgufModel::attn_output(uint32_t layer, const float* o, uint32_t n, float* h) const {
  check_tokens(n);
  const Layer& l = weights_.layers[layer];
  add_product(o, n, l.o, l.post_attn_norm, h);
}

void GgufModel::add_product(const float* x, uint32_t n, const PanelMatrix& w,
                            const float* post_norm, float* h) const {
  const PanelProducts::Product product = residual_product(w, post_norm, h);
  products_->multiply(x, n, {&product, 1});
  finish_residual(n, post_norm, h);
}

PanelProducts::Product GgufModel::residual_product(const PanelMatrix& w, const float* post_norm,
                                                   float* h) const {
  return {&w, post_norm ? norm_ : h, nullptr, !post_norm};
}

void GgufModel::finish_residual(uint32_t n, const float* post_norm, float* h) const {
  if (!post_norm) return;
  norm_rows(norm_, post_norm, n, shape_.d_model, norm_);
  kernels::add_to(norm_, size_t{n} * shape_.d_model, h);
}

void GgufModel::ffn(uint32_t layer, float* h, uint32_t n) const {
  check_tokens(n);
  const Layer& l = weights_.layers[layer];
  norm_rows(h, l.ffn_norm, n, shape_.d_model, norm_);
  products_->multiply_gated(norm_, n, {l.gate, l.up, shape_.activation},
                            residual_product(l.down, l.post_ffn_norm, h));
  finish_residual(n, l.post_ffn_norm, h);
}

void GgufModel::logits(const float* h, uint32_t n, float* out) const {
  check_tokens(n);
  norm_rows(h, weights_.output_norm, n, shape_.d_model, norm_);
  const PanelProducts::Product product{&weights_.head, out};
  products_->multiply(norm_, n, {&product, 1});
  if (const float cap = shape_.logits_softcap; cap != 0.0f)
    pool_.parallel_for(n, 1, [&](uint64_t begin, uint64_t end, uint32_t) {
      for (uint64_t i = begin * shape_.vocab_size; i < end * shape_.vocab_size; ++i)
        out[i] = cap * std::tanh(out[i] / cap);
    });
}

}  // namespace

void Model::project_turned(uint32_t layer, const float* x, uint32_t n, std::span<const Turn> turns,
                           float* q, float* k, float* v) const {
  project_qkv(layer, x, n, q, k, v);
  turn_rows(*this, layer, turns, q, k);
}

void Model::check_call(uint32_t n, uint32_t most) {
  if (n <= most) return;
  throw Error(ErrorKind::kInternal, "a step of " + std::to_string(n) +
                                        " tokens, but the model was loaded for at most " +
                                        std::to_string(most));
}

std::unique_ptr<Model> Model::load(const GgufFile& file, ThreadPool& pool, const Options& options) {
  if (!compute_supported(options.compute)) {
    throw Error(ErrorKind::kResource,
                "bf16 matrix products need a CPU with AVX-512 BF16 or AMX; use compute = \"f32\"");
  }
  const ModelShape shape = read_shape(file);
  const auto make_host = [&] { return std::make_unique<GgufModel>(file, shape, pool, options); };
  if (options.device_layers == 0) return make_host();
  return make_device_model(file, shape, options, make_host);
}

Model::Arithmetic Model::arithmetic(const GgufFile& file, const Options& options) {
  const ModelShape shape = read_shape(file);
  const WeightLoader loader(&file, shape, options);
  Arithmetic made = loader.arithmetic(options.deterministic);
  if (options.device_layers != 0 && !device_is_exact(options)) made.tokens_are_independent = false;
  return made;
}

namespace {

Model::Memory plan(const GgufFile* file, const ModelShape& shape, const Model::Options& options) {
  const Scratch scratch(shape, options.max_batch_tokens);
  WeightLoader loader(file, shape, options);
  loader.lay_out(nullptr, nullptr);
  Model::Memory memory{
      loader.n_bytes(),
      scratch.n_bytes() + PanelProducts::scratch_bytes(scratch.products(loader, options)),
      options.compute != Compute::kF32};
  const DevicePart part(shape, options);
  if (part.is_empty()) return memory;
  // A shape's weights are taken to be those of a file in the type that is multiplied.
  memory.device_weight_bytes =
      device_weight_bytes(part, shape, file, options.compute == Compute::kF32 ? 4 : 2);
  memory.device_scratch_bytes = DeviceBuffers(device_shape(part, shape, options)).n_bytes();
  return memory;
}

}  // namespace

Model::Memory Model::plan_memory(const GgufFile& file, const Options& options) {
  return plan(&file, read_shape(file), options);
}

Model::Memory Model::plan_memory(const ModelShape& shape, const Options& options) {
  return plan(nullptr, shape, options);
}

}  // namespace kvasir
