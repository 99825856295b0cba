// Layers on the host before layers on a device; see device_model.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/device_model.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/model/layers/device_library.h"
#include "core/model/layers/tensor_list.h"
#include "core/platform/build_id.h"

namespace kvasir {
namespace {

// Tensors of a file as the device takes them.
class DeviceTensors {
 public:
  DeviceTensors(const GgufFile& file, const ModelShape& shape) : file_(file) {
    for_each_tensor(shape,
                    [&](const std::string& name, const TensorShape&) { names_.push_back(name); });
  }

  DeviceLayer layer(uint32_t index) {
    const std::string blk = "blk." + std::to_string(index) + ".";
    return {vector(blk + "attn_norm.weight"),
            vector(blk + "attn_q.bias"),
            vector(blk + "attn_k.bias"),
            vector(blk + "attn_v.bias"),
            vector(blk + "attn_q_norm.weight"),
            vector(blk + "attn_k_norm.weight"),
            vector(blk + "post_attention_norm.weight"),
            vector(blk + "ffn_norm.weight"),
            vector(blk + "post_ffw_norm.weight"),
            matrix(blk + "attn_q.weight"),
            matrix(blk + "attn_k.weight"),
            matrix(blk + "attn_v.weight"),
            matrix(blk + "attn_output.weight"),
            matrix(blk + "ffn_gate.weight"),
            matrix(blk + "ffn_up.weight"),
            matrix(blk + "ffn_down.weight")};
  }
  DeviceHead head(const ModelShape& shape) {
    return {vector("output_norm.weight"), matrix(head_tensor(shape))};
  }
  // What was handed out is copied: the file's pages need not be resident, vectors go.
  void release() {
    for (const GgufTensor* tensor : used_) file_.release_pages(tensor->data, tensor->n_bytes);
    used_.clear();
    vectors_.clear();
  }

 private:
  DeviceMatrix matrix(const std::string& name) {
    const GgufTensor& tensor = file_.tensor(name);
    used_.push_back(&tensor);
    return {tensor.type,
            static_cast<uint32_t>(tensor.shape[0]),
            static_cast<uint32_t>(tensor.shape[1]),
            {tensor.data, tensor.n_bytes}};
  }
  // Empty when models of the shape have none.
  DeviceVector vector(const std::string& name) {
    if (std::find(names_.begin(), names_.end(), name) == names_.end()) return {};
    std::vector<float>& values = vectors_.emplace_back(file_.tensor(name).n_elements);
    read_vector(file_, name, values.data());
    return values;
  }

  const GgufFile& file_;
  std::vector<std::string> names_;
  std::vector<const GgufTensor*> used_;
  std::vector<std::vector<float>> vectors_;
};

class DeviceModel final : public Model {
 public:
  DeviceModel(const GgufFile& file, const DevicePart& part, const DeviceShape& shape,
              std::unique_ptr<Model> host, std::unique_ptr<DeviceLayers> device,
              std::string library);

  const ModelShape& shape() const override { return host_->shape(); }
  const RopeTable& rope(uint32_t layer) const override { return host_->rope(layer); }
  Compute compute() const override { return host_->compute(); }
  bool may_round() const override { return host_->may_round(); }
  bool tokens_are_independent() const override { return exact_ && host_->tokens_are_independent(); }
  bool has_token(int32_t id) const override { return host_->has_token(id); }
  void embed(std::span<const int32_t> ids, float* h) const override {
    host_->embed(ids, h);
    hidden_ = input_ = {};
    projected_ = ahead_ = {};
  }
  void attn_norm(uint32_t layer, const float* h, uint32_t n, float* x) const override;
  void project_qkv(uint32_t layer, const float* x, uint32_t n, float* q, float* k,
                   float* v) const override;
  void attn_output(uint32_t layer, const float* o, uint32_t n, float* h) const override;
  void ffn(uint32_t layer, float* h, uint32_t n) const override;
  bool ends_at_logits() const override { return false; }  // the last layer's rows stay there, all
  void finish_layer(uint32_t layer, const float* o, uint32_t n, float* h) const override;
  void logits(const float* h, uint32_t n, float* out) const override;
  void project_turned(uint32_t layer, const float* x, uint32_t n, std::span<const Turn> turns,
                      float* q, float* k, float* v) const override;
  std::optional<Projected> projected_on_device() const override;
  bool is_device_memory(const void* data) const override { return device_->is_device_memory(data); }
  void query_ahead(uint32_t layer, const float* h, uint32_t n, float* x, float* q) const override;
  const float* query_ahead_on_device(uint32_t layer, const float* h, uint32_t n,
                                     std::span<const Turn> turns, float* q) const override;
  void read_hidden(float* h, uint32_t first, uint32_t n) const override;
  void read_input(float* x, uint32_t first, uint32_t n) const override;
  void read_projected(const float* which) const override;
  std::optional<bool> hidden_is_finite() const override;
  void pin(std::span<float> rows) const override { device_->pin(rows); }
  void unpin(std::span<float> rows) const noexcept override { device_->unpin(rows); }
  uint64_t weight_bytes() const override { return host_->weight_bytes(); }
  // From main memory, whose bandwidth it is compared with.
  uint64_t weight_bytes_per_token() const override { return host_->weight_bytes_per_token(); }
  Placement placement() const override;

 private:
  // Where the stream of hidden states stands in a layer; kEnd is the next one's beginning.
  enum class Point { kNowhere, kNormed, kAttended, kEnd };
  // Rows of the host that the device has, as they were then. Model says that nobody changes them
  // before they come back.
  struct Held {
    Point point = Point::kNowhere;
    uint32_t layer = 0, n = 0;
    const float* rows = nullptr;
    bool is_newer = false;  // than the host's, which were not read since
    bool is(const Held& as) const {
      return point == as.point && layer == as.layer && n == as.n && rows == as.rows;
    }
  };
  // The host's arrays for what the device projected last; null: not there, or it was read.
  struct HeldProjections {
    uint32_t n = 0;  // 0: the device has none
    float *q = nullptr, *k = nullptr, *v = nullptr;
  };
  // RoPE's angles that the device has: of which rows, for which positions.
  struct Angles {
    uint32_t first;
    uint64_t kv_len;  // where it counts
    std::vector<uint32_t> pos;
    bool operator==(const Angles&) const = default;
  };
  void check_tokens(uint32_t n) const { check_call(n, max_tokens_); }
  // Puts them there unless they are; whatever follows changes them, and says what they are then.
  void take_hidden(const Held& as) const;
  void take_input(const Held& as) const;
  void put_angles(uint32_t table, const RopeTable& rope, uint32_t n,
                  std::span<const Turn> turns) const;
  // Which rows turn, q's or k's.
  static std::vector<DeviceLayers::Rows> rows_of(std::span<const Turn> turns, bool of_k);
  void project(uint32_t layer, const float* x, uint32_t n,
               const DeviceLayers::Rotation& rotation) const;
  // Before the host's rows at this address are used.
  void check_read(const float* rows) const;
  uint32_t on_device(uint32_t layer) const { return layer - part_.first_layer; }

  DevicePart part_;
  bool exact_;
  uint32_t max_tokens_;
  std::unique_ptr<Model> host_;
  std::unique_ptr<DeviceLayers> device_;
  std::string library_;
  mutable Held hidden_, input_;
  mutable HeldProjections projected_, ahead_;  // ahead_: q alone
  mutable std::vector<Angles> angles_[DeviceBuffers::kAngleTables];
};

DeviceModel::DeviceModel(const GgufFile& file, const DevicePart& part, const DeviceShape& shape,
                         std::unique_ptr<Model> host, std::unique_ptr<DeviceLayers> device,
                         std::string library)
    : part_(part),
      exact_(shape.exact),
      max_tokens_(shape.max_tokens),
      host_(std::move(host)),
      device_(std::move(device)),
      library_(std::move(library)) {
  DeviceTensors tensors(file, host_->shape());
  for (uint32_t layer = part.first_layer; layer < part.n_layers; ++layer) {
    device_->add_layer(tensors.layer(layer));
    tensors.release();
  }
  if (part.has_head) device_->set_head(tensors.head(host_->shape()));
  tensors.release();
}

void DeviceModel::check_read(const float* rows) const {
  const uint64_t width = host_->shape().d_model;
  for (const Held* held : {&hidden_, &input_})
    if (held->is_newer && !std::less<>{}(rows, held->rows) &&
        std::less<>{}(rows, held->rows + held->n * width))
      throw Error(ErrorKind::kInternal,
                  "rows of layer " + std::to_string(held->layer) +
                      ", which a device has changed, are used before they were read");
}

void DeviceModel::take_hidden(const Held& as) const {
  check_tokens(as.n);
  if (!hidden_.is(as)) {
    check_read(as.rows);
    hidden_ = {};
    device_->put_hidden(as.rows, as.n);
    hidden_ = as;
  }
}

void DeviceModel::take_input(const Held& as) const {
  check_tokens(as.n);
  if (input_.is(as)) return;
  check_read(as.rows);
  input_ = {};
  device_->put_input(as.rows, as.n);
}

void DeviceModel::attn_norm(uint32_t layer, const float* h, uint32_t n, float* x) const {
  if (!part_.has_layer(layer)) return host_->attn_norm(layer, h, n, x);
  take_hidden({Point::kEnd, layer - 1, n, h});
  input_ = {};
  device_->attn_norm(on_device(layer), n);
  hidden_.point = Point::kNormed;
  hidden_.layer = layer;
  input_ = {Point::kNormed, layer, n, x, true};
}

void DeviceModel::project_qkv(uint32_t layer, const float* x, uint32_t n, float* q, float* k,
                              float* v) const {
  if (!part_.has_layer(layer)) return host_->project_qkv(layer, x, n, q, k, v);
  if (!k && !v) {
    check_tokens(n);
    check_read(x);
    return device_->query_of(on_device(layer), x, n, nullptr, q);
  }
  project(layer, x, n, {});
  device_->get_projected(q, k, v, n);
}

void DeviceModel::project(uint32_t layer, const float* x, uint32_t n,
                          const DeviceLayers::Rotation& rotation) const {
  projected_ = {};
  take_input({Point::kNormed, layer, n, x});
  device_->project_qkv(on_device(layer), n, rotation);
}

// Layers of a step turn by the same angles: they go to the device once.
void DeviceModel::put_angles(uint32_t table, const RopeTable& rope, uint32_t n,
                             std::span<const Turn> turns) const {
  std::vector<Angles> wanted;
  for (const Turn& turn : turns) {
    if (turn.first + turn.pos.size() > n)
      throw Error(ErrorKind::kInternal, "RoPE of row " +
                                            std::to_string(turn.first + turn.pos.size() - 1) +
                                            ", and the call has " + std::to_string(n));
    wanted.push_back({turn.first,
                      rope.turns_by_length(turn.kv_len) ? turn.kv_len : 0,
                      {turn.pos.begin(), turn.pos.end()}});
  }
  if (wanted == angles_[table]) return;
  angles_[table].clear();
  const size_t n_pairs = rope.n_pairs();
  std::vector<float> cos(n * n_pairs), sin(n * n_pairs);
  for (const Turn& turn : turns)
    rope.angles(turn.pos, turn.kv_len, cos.data() + turn.first * n_pairs,
                sin.data() + turn.first * n_pairs);
  device_->put_angles(table, cos.data(), sin.data(), n, static_cast<uint32_t>(n_pairs));
  angles_[table] = std::move(wanted);
}

std::vector<DeviceLayers::Rows> DeviceModel::rows_of(std::span<const Turn> turns, bool of_k) {
  std::vector<DeviceLayers::Rows> rows;
  for (const Turn& turn : turns) {
    if (of_k && !turn.turns_k) continue;
    const auto more = static_cast<uint32_t>(turn.pos.size());
    if (!rows.empty() && rows.back().first + rows.back().n == turn.first)
      rows.back().n += more;
    else
      rows.push_back({turn.first, more});
  }
  return rows;
}

void DeviceModel::project_turned(uint32_t layer, const float* x, uint32_t n,
                                 std::span<const Turn> turns, float* q, float* k, float* v) const {
  projected_ = {};
  if (!part_.has_layer(layer)) return host_->project_turned(layer, x, n, turns, q, k, v);
  check_tokens(n);
  const uint32_t table = shape().sliding_window(layer) ? 1 : 0;
  put_angles(table, rope(layer), n, turns);
  const std::vector<DeviceLayers::Rows> of_q = rows_of(turns, false), of_k = rows_of(turns, true);
  project(layer, x, n, {table, rope(layer).pairing(), of_q, of_k});
  projected_ = {n, q, k, v};
}

std::optional<Model::Projected> DeviceModel::projected_on_device() const {
  if (projected_.n == 0) return {};
  const DeviceLayers::Projected there = device_->projected(projected_.n);
  return Projected{there.is_finite, there.q, there.k, there.v, there.o, there.lse};
}

void DeviceModel::query_ahead(uint32_t layer, const float* h, uint32_t n, float* x,
                              float* q) const {
  if (!part_.has_layer(layer)) return host_->query_ahead(layer, h, n, x, q);
  check_tokens(n);
  check_read(h);
  device_->query_of(on_device(layer), h, n, x, q);
}

const float* DeviceModel::query_ahead_on_device(uint32_t layer, const float* h, uint32_t n,
                                                std::span<const Turn> turns, float* q) const {
  ahead_ = {};
  if (!part_.has_layer(layer) || !hidden_.is_newer || hidden_.rows != h || hidden_.n != n)
    return nullptr;
  const uint32_t table = shape().sliding_window(layer) ? 1 : 0;
  put_angles(table, rope(layer), n, turns);
  const std::vector<DeviceLayers::Rows> of_q = rows_of(turns, false);
  const float* const there =
      device_->query_ahead(on_device(layer), n, {table, rope(layer).pairing(), of_q, {}});
  ahead_ = {n, q};
  return there;
}

void DeviceModel::attn_output(uint32_t layer, const float* o, uint32_t n, float* h) const {
  if (!part_.has_layer(layer)) return host_->attn_output(layer, o, n, h);
  take_hidden({Point::kNormed, layer, n, h});
  hidden_ = {};
  device_->attn_output(on_device(layer), o, n);
  hidden_ = {Point::kAttended, layer, n, h, true};
}

void DeviceModel::ffn(uint32_t layer, float* h, uint32_t n) const {
  if (!part_.has_layer(layer)) return host_->ffn(layer, h, n);
  take_hidden({Point::kAttended, layer, n, h});
  hidden_ = {};
  device_->ffn(on_device(layer), n);
  hidden_ = {Point::kEnd, layer, n, h, true};
}

void DeviceModel::finish_layer(uint32_t layer, const float* o, uint32_t n, float* h) const {
  if (!part_.has_layer(layer)) return host_->finish_layer(layer, o, n, h);
  take_hidden({Point::kNormed, layer, n, h});
  hidden_ = {};
  device_->attn_output(on_device(layer), o, n);
  device_->ffn(on_device(layer), n);
  hidden_ = {Point::kEnd, layer, n, h, true};
}

void DeviceModel::logits(const float* h, uint32_t n, float* out) const {
  check_read(h);
  if (!part_.has_head) return host_->logits(h, n, out);
  check_tokens(n);
  device_->logits(h, n, out);
}

void DeviceModel::read_hidden(float* h, uint32_t first, uint32_t n) const {
  if (!hidden_.is_newer || h != hidden_.rows) return;
  device_->get_hidden(h, first, n);
  if (first == 0 && n == hidden_.n) hidden_.is_newer = false;
}

void DeviceModel::read_input(float* x, uint32_t first, uint32_t n) const {
  if (!input_.is_newer || x != input_.rows) return;
  device_->get_input(x, first, n);
  if (first == 0 && n == input_.n) input_.is_newer = false;
}

void DeviceModel::read_projected(const float* which) const {
  const auto wanted = [&](float*& rows) {
    return !which || which == rows ? std::exchange(rows, nullptr) : nullptr;
  };
  float *const q = wanted(projected_.q), *const k = wanted(projected_.k),
               *const v = wanted(projected_.v);
  if (q || k || v) device_->get_projected(q, k, v, projected_.n);
  if (which && which == ahead_.q) device_->get_ahead(std::exchange(ahead_.q, nullptr), ahead_.n);
}

std::optional<bool> DeviceModel::hidden_is_finite() const {
  if (!hidden_.is_newer) return {};
  return device_->hidden_is_finite(hidden_.n);
}

Model::Placement DeviceModel::placement() const {
  const DeviceLayers::Copied copied = device_->copied();
  return {
      part_.n_layers - part_.first_layer, part_.has_head,   library_,      device_->weight_bytes(),
      device_->scratch_bytes(),           copied.to_device, copied.to_host};
}

void check_device(const DeviceLibraryTable& library, uint64_t needed, const DevicePart& part) {
  const std::string problem = library.problem();
  if (!problem.empty()) throw Error(ErrorKind::kResource, "layers on a GPU: " + problem);
  const DeviceLibraryTable::Memory memory = library.memory();
  if (needed <= memory.free_bytes) return;
  const auto megabytes = [](uint64_t bytes) { return std::to_string(bytes / 1000000) + " MB"; };
  throw Error(ErrorKind::kResource,
              "layers on a GPU: " + std::to_string(part.n_layers - part.first_layer) + " layers" +
                  (part.has_head ? " and the head" : "") + " need " + megabytes(needed) +
                  " of its memory, " + megabytes(memory.free_bytes) +
                  " are free: lower -ngl, or free memory of the device");
}

}  // namespace

std::string Model::Placement::text() const {
  if (library.empty()) return "";
  return "the last " + std::to_string(n_layers) + " layers" + (has_head ? " and the head" : "") +
         " by " + library;
}

DevicePart::DevicePart(const ModelShape& shape, const Model::Options& options)
    : first_layer(shape.n_layers - std::min(shape.n_layers, options.device_layers)),
      n_layers(shape.n_layers),
      has_head(options.device_layers > shape.n_layers) {}

uint64_t device_weight_bytes(const DevicePart& part, const ModelShape& shape, const GgufFile* file,
                             uint64_t bytes_per_weight) {
  uint64_t bytes = 0;
  const std::string head = head_tensor(shape);
  for_each_tensor(shape, [&](const std::string& name, const TensorShape& tensor) {
    const bool is_layer = name.starts_with("blk.");
    const bool is_head = name == head || name == "output_norm.weight";
    if (is_layer ? !part.has_layer(static_cast<uint32_t>(std::stoul(name.substr(4))))
                 : !(part.has_head && is_head))
      return;
    uint64_t n = 1;
    for (const uint64_t dim : tensor) n *= dim;
    const bool is_matrix = tensor.size() == 2;
    const uint64_t of_matrix = file ? file->tensor(name).n_bytes : bytes_per_weight * n;
    bytes += DeviceBuffers::aligned(is_matrix ? of_matrix : sizeof(float) * n);
  });
  return bytes;
}

bool device_is_exact(const Model::Options& options) {
  return options.compute == Compute::kF32 || options.deterministic;
}

DeviceShape device_shape(const DevicePart& part, const ModelShape& s,
                         const Model::Options& options) {
  return {s.d_model,     s.d_ff,
          s.vocab_size,  s.n_q_heads,
          s.n_kv_heads,  s.head_dim,
          s.v_head_dim,  std::max(s.rope.n_dims, s.sliding_rope.n_dims) / 2,
          s.norm_eps,    s.logits_softcap,
          s.activation,  options.max_batch_tokens,
          part.has_head, device_is_exact(options)};
}

std::unique_ptr<Model> make_device_model(const GgufFile& file, const ModelShape& shape,
                                         const Model::Options& options,
                                         const std::function<std::unique_ptr<Model>()>& make_host) {
  const DevicePart part(shape, options);
  const DeviceShape on_device = device_shape(part, shape, options);
  const DeviceLibraryTable& library = open_device_library(options.device_library);
  check_device(library,
               device_weight_bytes(part, shape, &file) + DeviceBuffers(on_device).n_bytes(), part);
  std::unique_ptr<Model> host = make_host();
  return std::make_unique<DeviceModel>(
      file, part, on_device, std::move(host), library.make(on_device),
      "cuda_layers " + build_id_of(reinterpret_cast<const void*>(library.make)));
}

}  // namespace kvasir
