// Dense layers on a CUDA device: the library that core/model/layers/device_library.h loads. The
// stream of hidden states stays on the device from layer to layer; all copies of rows are here.
// What works on it is put off until somebody needs what comes of it: a layer of few rows is one
// graph.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/model/cuda/deferred_work.h"
#include "core/model/cuda/device_memory.h"
#include "core/model/cuda/device_products.h"
#include "core/model/layers/device_layers.h"
#include "kernels/cuda/finite.h"
#include "kernels/cuda/rms_norm.h"
#include "kernels/cuda/rotate_rows.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/weight_product.h"

namespace kvasir {
namespace {

// What the device refuses, as an error of the core.
template <class Fn>
auto guarded(const Fn& fn) {
  try {
    return fn();
  } catch (const cuda::Error& e) {
    throw Error(e.is_out_of_memory() ? ErrorKind::kResource : ErrorKind::kInternal,
                std::string("layers on a GPU: ") + e.what() +
                    (e.is_out_of_memory() ? ": lower -ngl, or free memory of the device" : ""));
  }
}

// Numbers that the device tells the host.
struct PinnedCounts {
  uint32_t value[2] = {};
  PinnedCounts() { is_pinned_ = cuda::pin_memory(value, sizeof value); }
  ~PinnedCounts() {
    if (is_pinned_) cuda::unpin_memory(value);
  }
  PinnedCounts(const PinnedCounts&) = delete;

 private:
  bool is_pinned_;
};

struct Stream {
  cuda::Stream handle = cuda::make_stream();
  Stream() = default;
  ~Stream() { cuda::destroy_stream(handle); }
  Stream(const Stream&) = delete;
};

// Addresses of f32 vectors, 0 for those that the model does not have, and matrices.
struct LayerOnDevice {
  DeviceMemory memory;
  uint64_t attn_norm = 0, q_bias = 0, k_bias = 0, v_bias = 0, q_norm = 0, k_norm = 0,
           post_attn_norm = 0, ffn_norm = 0, post_ffn_norm = 0;
  MatrixOnDevice q{}, k{}, v{}, o{}, gate{}, up{}, down{};
};
struct HeadOnDevice {
  DeviceMemory memory;
  uint64_t norm = 0;
  MatrixOnDevice weights{};
};

// Copies weights one after another into memory of exactly their size.
class Uploader {
 public:
  Uploader(DeviceMemory& memory, cuda::Stream stream) : memory_(memory), stream_(stream) {}

  uint64_t vector(DeviceVector values) { return values.empty() ? 0 : copy(std::as_bytes(values)); }
  MatrixOnDevice matrix(const DeviceMatrix& m) {
    const auto type = static_cast<cuda::WeightType>(m.type);  // both are the file format's numbers
    if (!cuda::is_known(type))
      throw input_error("layers on a GPU: no kernel reads weights of GGUF's type " +
                        std::to_string(static_cast<uint32_t>(m.type)) + ": lower -ngl");
    return {type, m.n_in, m.n_out, m.rows.size() / m.n_out, copy(m.rows)};
  }

 private:
  uint64_t copy(std::span<const std::byte> bytes) {
    const uint64_t at = memory_.take(bytes.size());
    cuda::copy_to_device(reinterpret_cast<void*>(at), bytes.data(), bytes.size(), stream_);
    return at;
  }
  DeviceMemory& memory_;
  cuda::Stream stream_;
};

uint64_t bytes_of(std::initializer_list<DeviceVector> vectors,
                  std::initializer_list<const DeviceMatrix*> matrices) {
  uint64_t bytes = 0;
  for (const DeviceVector& v : vectors) bytes += DeviceBuffers::aligned(v.size_bytes());
  for (const DeviceMatrix* m : matrices) bytes += DeviceBuffers::aligned(m->rows.size());
  return bytes;
}

class CudaLayers final : public DeviceLayers {
 public:
  explicit CudaLayers(const DeviceShape& shape);

  void add_layer(const DeviceLayer& layer) override;
  void set_head(const DeviceHead& head) override;
  void pin(std::span<float> rows) override;
  void unpin(std::span<float> rows) noexcept override;
  void put_hidden(const float* h, uint32_t n) override {
    guarded([&] { put(hidden_, h, uint64_t{n} * shape_.d_model); });
    n_counted_ = 0;
  }
  void put_input(const float* x, uint32_t n) override {
    guarded([&] { put(input_, x, uint64_t{n} * shape_.d_model); });
  }
  void get_hidden(float* h, uint32_t first, uint32_t n) override { get_rows(h, hidden_, first, n); }
  void get_input(float* x, uint32_t first, uint32_t n) override { get_rows(x, input_, first, n); }
  bool hidden_is_finite(uint32_t n) override;
  void put_angles(uint32_t table, const float* cos, const float* sin, uint32_t n,
                  uint32_t n_pairs) override;
  void attn_norm(uint32_t layer, uint32_t n) override {
    queue({kAttnNorm, layer, n}, n,
          [=, this] { norm(hidden_, layers_[layer].attn_norm, n, shape_.d_model, input_); });
  }
  bool is_device_memory(const void* data) override {
    return guarded([&] { return cuda::is_device_memory(data); });
  }
  void project_qkv(uint32_t layer, uint32_t n, const Rotation& rotation) override;
  Projected projected(uint32_t n) override;
  void get_projected(float* q, float* k, float* v, uint32_t n) override;
  void query_of(uint32_t layer, const float* rows, uint32_t n, float* x, float* q) override;
  const float* query_ahead(uint32_t layer, uint32_t n, const Rotation& rotation) override;
  void get_ahead(float* q, uint32_t n) override {
    guarded([&] {
      get(q, ahead_, uint64_t{n} * shape_.q_width());
      cuda::wait(stream_.handle);
    });
  }
  void attn_output(uint32_t layer, const float* o, uint32_t n) override;
  void ffn(uint32_t layer, uint32_t n) override;
  void logits(const float* h, uint32_t n, float* out) override;
  Copied copied() const override { return copied_; }
  uint64_t weight_bytes() const override { return weight_bytes_; }
  uint64_t scratch_bytes() const override { return scratch_.n_bytes(); }

 private:
  void put(uint64_t to, const float* from, uint64_t n) {
    work_.give();
    cuda::copy_to_device(reinterpret_cast<void*>(to), from, 4 * n, stream_.handle);
    copied_.to_device += 4 * n;
  }
  void get(float* to, uint64_t from, uint64_t n) {
    work_.give();
    cuda::copy_to_host(to, reinterpret_cast<const void*>(from), 4 * n, stream_.handle);
    copied_.to_host += 4 * n;
  }
  void get_rows(float* to, uint64_t from, uint32_t first, uint32_t n) {
    guarded([&] {
      const uint64_t at = uint64_t{first} * shape_.d_model;
      get(to + at, from + 4 * at, uint64_t{n} * shape_.d_model);
      cuda::wait(stream_.handle);
    });
  }
  uint64_t cos_of(uint32_t table) const { return angles_ + 2 * table * sizes_.angles; }
  uint64_t sin_of(uint32_t table) const { return cos_of(table) + sizes_.angles; }
  uint64_t lse_of(uint32_t n) const { return o_ + uint64_t{4} * n * shape_.o_width(); }

  enum Work : uint32_t { kAttnNorm, kProject, kHandOver, kAhead, kAttnOutput, kFfn, kCountHidden };
  // form: as DeferredWork::add. Many rows are those of prompts, whose numbers of rows seldom come
  // again, and whose launches take no time that is seen.
  void queue(const std::vector<uint32_t>& form, uint32_t n, std::function<void()> work) {
    work_.add(form, n <= cuda::kMostProductRows, std::move(work));
  }
  std::vector<uint32_t> form_of(Work work, uint32_t layer, uint32_t n,
                                const Rotation& rotation) const;
  void project(const LayerOnDevice& l, uint32_t n, const Rotation& rotation);
  void project_ahead(const LayerOnDevice& l, uint32_t n);  // of normed_
  void add_ffn(const LayerOnDevice& l, uint32_t n);

  enum Counted : uint32_t { kHidden, kProjected };  // place in n_bad_
  void begin_count(Counted what);
  void count(Counted what, uint64_t x, uint64_t n) {
    cuda::count_not_finite(x, n, n_bad_ + sizeof(uint32_t) * what, stream_.handle);
  }
  void count_hidden(uint32_t n);
  // Once all is given: waits for it, unless the numbers are here since they were counted.
  bool is_finite(Counted what);
  void rotate(const Rotation& by, std::span<const Rows> rows, uint64_t x, uint32_t n_heads);
  void norm(uint64_t x, uint64_t weight, uint64_t n_rows, uint32_t width, uint64_t y,
            bool adds = false) {
    cuda::rms_norm({x, weight, y, n_rows, width, shape_.norm_eps, adds}, stream_.handle);
  }
  // h += x w, through the norm if there is one.
  void add_product(uint64_t x, uint32_t n, const MatrixOnDevice& w, uint64_t post_norm);

  DeviceShape shape_;
  DeviceBuffers sizes_;
  Stream stream_;
  DeviceMemory scratch_;
  uint64_t hidden_, input_, normed_, q_, k_, v_, o_, ahead_, gate_, up_, angles_, n_bad_, logits_;
  uint32_t n_pairs_[DeviceBuffers::kAngleTables] = {};  // of the angles that were put
  PinnedCounts bad_;
  bool bad_is_read_ = false;  // since something was counted
  uint32_t n_counted_ = 0;    // rows of h as it is now
  DeviceProducts products_;
  std::vector<LayerOnDevice> layers_;
  std::vector<HeadOnDevice> head_;  // one or none
  uint64_t weight_bytes_ = 0;
  Copied copied_;
  DeferredWork work_;  // goes first
};

ProductScratch take_products(DeviceMemory& memory, const DeviceBuffers& sizes) {
  if (sizes.workspace == 0) return {};
  if (cuda::MatrixProducts::workspace_bytes() > sizes.workspace)
    throw Error(ErrorKind::kInternal, "layers on a GPU: the workspace of products was not planned");
  ProductScratch scratch;
  scratch.rounded = memory.take(sizes.rounded);
  scratch.tile = memory.take(sizes.tile);
  scratch.tile_bytes = sizes.tile;
  scratch.workspace = memory.take(sizes.workspace);
  return scratch;
}

CudaLayers::CudaLayers(const DeviceShape& shape)
    : shape_(shape),
      sizes_(shape),
      scratch_(sizes_.n_bytes()),
      hidden_(scratch_.take(sizes_.hidden)),
      input_(scratch_.take(sizes_.input)),
      normed_(scratch_.take(sizes_.normed)),
      q_(scratch_.take(sizes_.q)),
      k_(scratch_.take(sizes_.k)),
      v_(scratch_.take(sizes_.v)),
      o_(scratch_.take(sizes_.o)),
      ahead_(scratch_.take(sizes_.ahead)),
      gate_(scratch_.take(sizes_.gate)),
      up_(scratch_.take(sizes_.up)),
      angles_(scratch_.take(2 * DeviceBuffers::kAngleTables * sizes_.angles)),
      n_bad_(scratch_.take(sizes_.n_bad)),
      logits_(scratch_.take(sizes_.logits)),
      products_(stream_.handle, take_products(scratch_, sizes_)),
      work_(stream_.handle) {}

void CudaLayers::add_layer(const DeviceLayer& from) {
  guarded([&] {
    LayerOnDevice layer{DeviceMemory(
        bytes_of({from.attn_norm, from.q_bias, from.k_bias, from.v_bias, from.q_norm, from.k_norm,
                  from.post_attn_norm, from.ffn_norm, from.post_ffn_norm},
                 {&from.q, &from.k, &from.v, &from.o, &from.gate, &from.up, &from.down}))};
    Uploader upload(layer.memory, stream_.handle);
    layer.attn_norm = upload.vector(from.attn_norm);
    layer.q_bias = upload.vector(from.q_bias);
    layer.k_bias = upload.vector(from.k_bias);
    layer.v_bias = upload.vector(from.v_bias);
    layer.q_norm = upload.vector(from.q_norm);
    layer.k_norm = upload.vector(from.k_norm);
    layer.post_attn_norm = upload.vector(from.post_attn_norm);
    layer.ffn_norm = upload.vector(from.ffn_norm);
    layer.post_ffn_norm = upload.vector(from.post_ffn_norm);
    layer.q = upload.matrix(from.q);
    layer.k = upload.matrix(from.k);
    layer.v = upload.matrix(from.v);
    layer.o = upload.matrix(from.o);
    layer.gate = upload.matrix(from.gate);
    layer.up = upload.matrix(from.up);
    layer.down = upload.matrix(from.down);
    cuda::wait(stream_.handle);
    weight_bytes_ += layer.memory.n_bytes();
    layers_.push_back(std::move(layer));
  });
}

void CudaLayers::set_head(const DeviceHead& from) {
  guarded([&] {
    HeadOnDevice head{DeviceMemory(bytes_of({from.norm}, {&from.weights}))};
    Uploader upload(head.memory, stream_.handle);
    head.norm = upload.vector(from.norm);
    head.weights = upload.matrix(from.weights);
    cuda::wait(stream_.handle);
    weight_bytes_ += head.memory.n_bytes();
    head_.push_back(std::move(head));
  });
}

void CudaLayers::pin(std::span<float> rows) {
  guarded([&] { cuda::pin_memory(rows.data(), rows.size_bytes()); });
}

void CudaLayers::unpin(std::span<float> rows) noexcept {
  try {
    cuda::wait(stream_.handle);
  } catch (const cuda::Error&) {  // the next call says so
  }
  cuda::unpin_memory(rows.data());
}

void CudaLayers::begin_count(Counted what) {
  cuda::zero_memory(reinterpret_cast<void*>(n_bad_ + sizeof(uint32_t) * what), sizeof(uint32_t),
                    stream_.handle);
}

void CudaLayers::count_hidden(uint32_t n) {
  begin_count(kHidden);
  count(kHidden, hidden_, uint64_t{n} * shape_.d_model);
}

bool CudaLayers::is_finite(Counted what) {
  if (!bad_is_read_) {
    work_.give();
    cuda::copy_to_host(bad_.value, reinterpret_cast<const void*>(n_bad_), sizeof bad_.value,
                       stream_.handle);
    copied_.to_host += sizeof bad_.value;
    cuda::wait(stream_.handle);
    bad_is_read_ = true;
  }
  return bad_.value[what] == 0;
}

bool CudaLayers::hidden_is_finite(uint32_t n) {
  return guarded([&] {
    if (n_counted_ != n) {
      queue({kCountHidden, n}, n, [=, this] { count_hidden(n); });
      n_counted_ = n;
      bad_is_read_ = false;
    }
    return is_finite(kHidden);
  });
}

void CudaLayers::put_angles(uint32_t table, const float* cos, const float* sin, uint32_t n,
                            uint32_t n_pairs) {
  guarded([&] {
    work_.give();  // which turned by others
    n_pairs_[table] = n_pairs;
    put(cos_of(table), cos, uint64_t{n} * n_pairs);
    put(sin_of(table), sin, uint64_t{n} * n_pairs);
  });
}

void CudaLayers::rotate(const Rotation& by, std::span<const Rows> rows, uint64_t x,
                        uint32_t n_heads) {
  const uint32_t n_pairs = n_pairs_[by.table];
  for (const Rows& some : rows) {
    const uint64_t angle = uint64_t{4} * some.first * n_pairs;
    cuda::rotate_rows({cos_of(by.table) + angle, sin_of(by.table) + angle,
                       x + uint64_t{4} * some.first * n_heads * shape_.head_dim, some.n, n_heads,
                       shape_.head_dim, n_pairs, by.pairing == RopePairing::kInterleaved},
                      stream_.handle);
  }
}

std::vector<uint32_t> CudaLayers::form_of(Work work, uint32_t layer, uint32_t n,
                                          const Rotation& rotation) const {
  std::vector<uint32_t> form = {work,
                                layer,
                                n,
                                rotation.table,
                                rotation.pairing == RopePairing::kInterleaved,
                                n_pairs_[rotation.table],
                                static_cast<uint32_t>(rotation.of_q.size())};
  for (const auto& rows : {rotation.of_q, rotation.of_k})
    for (const Rows& some : rows) form.insert(form.end(), {some.first, some.n});
  return form;
}

void CudaLayers::project_qkv(uint32_t layer, uint32_t n, const Rotation& rotation) {
  queue(form_of(kProject, layer, n, rotation), n,
        [=, this, of_q = std::vector(rotation.of_q.begin(), rotation.of_q.end()),
         of_k = std::vector(rotation.of_k.begin(), rotation.of_k.end())] {
          project(layers_[layer], n, {rotation.table, rotation.pairing, of_q, of_k});
        });
}

void CudaLayers::project(const LayerOnDevice& l, uint32_t n, const Rotation& rotation) {
  const DeviceProducts::Product list[] = {
      {&l.q, q_, l.q_bias}, {&l.k, k_, l.k_bias}, {&l.v, v_, l.v_bias}};
  products_.multiply(input_, n, list);
  const uint32_t dim = shape_.head_dim;
  if (l.q_norm) norm(q_, l.q_norm, uint64_t{n} * shape_.n_q_heads, dim, q_);
  if (l.k_norm) norm(k_, l.k_norm, uint64_t{n} * shape_.n_kv_heads, dim, k_);
  rotate(rotation, rotation.of_q, q_, shape_.n_q_heads);
  rotate(rotation, rotation.of_k, k_, shape_.n_kv_heads);
}

CudaLayers::Projected CudaLayers::projected(uint32_t n) {
  return guarded([&]() -> Projected {
    queue({kHandOver, n}, n, [=, this] {
      begin_count(kProjected);
      count(kProjected, q_, uint64_t{n} * shape_.q_width());
      count(kProjected, k_, uint64_t{n} * shape_.k_width());
      count(kProjected, v_, uint64_t{n} * shape_.v_width());
      cuda::fill_memory(reinterpret_cast<void*>(o_), 0xff,
                        uint64_t{4} * n * (shape_.o_width() + shape_.n_q_heads), stream_.handle);
    });
    bad_is_read_ = false;
    const bool all_are_finite = is_finite(kProjected);
    const auto at = [](uint64_t address) { return reinterpret_cast<float*>(address); };
    return {all_are_finite, at(q_), at(k_), at(v_), at(o_), at(lse_of(n))};
  });
}

void CudaLayers::get_projected(float* q, float* k, float* v, uint32_t n) {
  guarded([&] {
    if (q) get(q, q_, uint64_t{n} * shape_.q_width());
    if (k) get(k, k_, uint64_t{n} * shape_.k_width());
    if (v) get(v, v_, uint64_t{n} * shape_.v_width());
    cuda::wait(stream_.handle);
  });
}

void CudaLayers::query_of(uint32_t layer, const float* rows, uint32_t n, float* x, float* q) {
  guarded([&] {
    const LayerOnDevice& l = layers_[layer];
    put(normed_, rows, uint64_t{n} * shape_.d_model);
    if (x) {
      norm(normed_, l.attn_norm, n, shape_.d_model, normed_);
      get(x, normed_, uint64_t{n} * shape_.d_model);
    }
    project_ahead(l, n);
    get(q, ahead_, uint64_t{n} * shape_.q_width());
    cuda::wait(stream_.handle);
  });
}

void CudaLayers::project_ahead(const LayerOnDevice& l, uint32_t n) {
  const DeviceProducts::Product product{&l.q, ahead_, l.q_bias};
  products_.multiply(normed_, n, {&product, 1});
  if (l.q_norm) norm(ahead_, l.q_norm, uint64_t{n} * shape_.n_q_heads, shape_.head_dim, ahead_);
}

const float* CudaLayers::query_ahead(uint32_t layer, uint32_t n, const Rotation& rotation) {
  return guarded([&] {
    queue(form_of(kAhead, layer, n, rotation), n,
          [=, this, of_q = std::vector(rotation.of_q.begin(), rotation.of_q.end())] {
            norm(hidden_, layers_[layer].attn_norm, n, shape_.d_model, normed_);
            project_ahead(layers_[layer], n);
            rotate(rotation, of_q, ahead_, shape_.n_q_heads);
          });
    work_.give();
    cuda::wait(stream_.handle);
    return reinterpret_cast<const float*>(ahead_);
  });
}

void CudaLayers::add_product(uint64_t x, uint32_t n, const MatrixOnDevice& w, uint64_t post_norm) {
  const DeviceProducts::Product product{&w, post_norm ? normed_ : hidden_, 0, !post_norm};
  products_.multiply(x, n, {&product, 1});
  if (post_norm) norm(normed_, post_norm, n, shape_.d_model, hidden_, true);
}

void CudaLayers::attn_output(uint32_t layer, const float* o, uint32_t n) {
  guarded([&] {
    if (reinterpret_cast<uint64_t>(o) != o_) put(o_, o, uint64_t{n} * shape_.o_width());
  });
  queue({kAttnOutput, layer, n}, n,
        [=, this] { add_product(o_, n, layers_[layer].o, layers_[layer].post_attn_norm); });
  n_counted_ = 0;
}

void CudaLayers::ffn(uint32_t layer, uint32_t n) {
  queue({kFfn, layer, n}, n, [=, this] {
    add_ffn(layers_[layer], n);
    count_hidden(n);
  });
  n_counted_ = n;
  bad_is_read_ = false;
}

void CudaLayers::add_ffn(const LayerOnDevice& l, uint32_t n) {
  norm(hidden_, l.ffn_norm, n, shape_.d_model, normed_);
  products_.multiply_gated(
      normed_, n, l.gate, l.up,
      shape_.activation == Activation::kGelu ? cuda::GateKind::kGelu : cuda::GateKind::kSilu, gate_,
      up_);
  add_product(gate_, n, l.down, l.post_ffn_norm);
}

void CudaLayers::logits(const float* h, uint32_t n, float* out) {
  guarded([&] {
    const HeadOnDevice& head = head_.front();
    for (uint32_t first = 0; first < n; first += sizes_.logit_rows) {
      const uint32_t rows = std::min(sizes_.logit_rows, n - first);
      const uint64_t values = uint64_t{rows} * shape_.vocab_size;
      put(normed_, h + uint64_t{first} * shape_.d_model, uint64_t{rows} * shape_.d_model);
      norm(normed_, head.norm, rows, shape_.d_model, normed_);
      const DeviceProducts::Product product{&head.weights, logits_};
      products_.multiply(normed_, rows, {&product, 1});
      if (shape_.logits_softcap != 0.0f)
        cuda::cap_values(shape_.logits_softcap, logits_, values, stream_.handle);
      get(out + uint64_t{first} * shape_.vocab_size, logits_, values);
    }
    cuda::wait(stream_.handle);
  });
}

DeviceLibraryTable::Memory memory() {
  return guarded([] {
    const cuda::MemoryState state = cuda::memory_state();
    return DeviceLibraryTable::Memory{state.free_bytes, state.total_bytes};
  });
}

std::unique_ptr<DeviceLayers> make(const DeviceShape& shape) {
  return guarded(
      [&]() -> std::unique_ptr<DeviceLayers> { return std::make_unique<CudaLayers>(shape); });
}

}  // namespace
}  // namespace kvasir

extern "C" {
[[gnu::visibility("default")]] extern const kvasir::DeviceLibraryTable kvasir_device_layers;
const kvasir::DeviceLibraryTable kvasir_device_layers = {
    KVASIR_DEVICE_INTERFACE, kvasir::cuda::device_problem, kvasir::memory, kvasir::make};
}
