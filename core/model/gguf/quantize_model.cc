// See quantize_model.h. Tensors are taken in slices of rows, the rows of a slice side by side.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/gguf/quantize_model.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>

#include "core/error.h"
#include "core/model/gguf/gguf_writer.h"
#include "core/model/gguf/quant.h"

namespace kvasir {
namespace {

constexpr uint64_t kSliceElements = uint64_t{1} << 23;  // 32 MB in f32
constexpr uint64_t kPieceElements = uint64_t{1} << 15;  // of rows that one worker takes at a time

uint64_t bytes_of(GgmlType type, uint64_t n_elements) {
  return n_elements / block_elements(type) * block_bytes(type);
}

// Of what the workers of a slice report, the error of the first row: it is the same however the
// rows were shared out.
class FirstError {
 public:
  void add(uint64_t row, const Error& error) {
    const std::lock_guard lock(mutex_);
    if (row >= row_) return;
    row_ = row;
    error_ = error;
  }
  void rethrow() const {
    if (error_) throw *error_;
  }

 private:
  std::mutex mutex_;
  uint64_t row_ = std::numeric_limits<uint64_t>::max();
  std::optional<Error> error_;
};

// Rows [begin, end) of the tensor to `bytes`, which begins at row `begin`.
void quantize_rows(const RetypedTensor& retyped, uint64_t begin, uint64_t end, ThreadPool& pool,
                   std::byte* bytes) {
  const GgufTensor& tensor = *retyped.tensor;
  const uint64_t width = tensor.shape[0];
  const uint64_t bytes_before = bytes_of(tensor.type, width);
  const uint64_t bytes_after = bytes_of(retyped.type, width);
  FirstError error;
  pool.parallel_for(end - begin, std::max<uint64_t>(1, kPieceElements / width),
                    [&](uint64_t from, uint64_t to, uint32_t) {
                      std::vector<float> values(width);
                      for (uint64_t i = from; i < to; ++i) {
                        const uint64_t row = begin + i;
                        try {
                          dequantize(tensor.type, tensor.data + row * bytes_before, values.data(),
                                     width);
                          quantize(retyped.type, values.data(), bytes + i * bytes_after, width,
                                   {tensor.name, row * width});
                        } catch (const Error& e) {
                          return error.add(row, e);
                        }
                      }
                    });
  error.rethrow();
}

void write_retyped(const RetypedTensor& retyped, ThreadPool& pool, const GgufFile& file,
                   std::vector<std::byte>& buffer, const GgufWriter::Sink& sink) {
  const GgufTensor& tensor = *retyped.tensor;
  const uint64_t width = tensor.shape[0];
  const uint64_t n_rows = width ? tensor.n_elements / width : 0;
  const uint64_t slice = std::max<uint64_t>(1, kSliceElements / std::max<uint64_t>(1, width));
  for (uint64_t begin = 0; begin < n_rows; begin += slice) {
    const uint64_t end = std::min(n_rows, begin + slice);
    buffer.resize(bytes_of(retyped.type, (end - begin) * width));
    quantize_rows(retyped, begin, end, pool, buffer.data());
    sink(buffer);
    file.release_pages(tensor.data + bytes_of(tensor.type, begin * width),
                       bytes_of(tensor.type, (end - begin) * width));
  }
}

void write_copied(const GgufTensor& tensor, const GgufFile& file, const GgufWriter::Sink& sink) {
  constexpr uint64_t kSliceBytes = uint64_t{1} << 24;
  for (uint64_t begin = 0; begin < tensor.n_bytes; begin += kSliceBytes) {
    const uint64_t n = std::min(kSliceBytes, tensor.n_bytes - begin);
    sink({tensor.data + begin, n});
    file.release_pages(tensor.data + begin, n);
  }
}

}  // namespace

uint64_t RetypedTensor::n_bytes() const {
  return changes() ? bytes_of(type, tensor->n_elements) : tensor->n_bytes;
}

std::vector<RetypedTensor> retype(const GgufFile& file, const WeightMix& mix) {
  MixedModel model;
  const auto architecture = file.get<std::string_view>("general.architecture");
  if (architecture)
    model.n_layers = file.get_or<uint32_t>(std::string(*architecture) + ".block_count", 0);
  const auto is_output = [](const GgufTensor& t) { return t.name == "output.weight"; };
  model.tied_embeddings = std::none_of(file.tensors().begin(), file.tensors().end(), is_output);
  std::vector<RetypedTensor> out;
  for (const GgufTensor& tensor : file.tensors()) {
    out.push_back({&tensor, tensor.type});
    if (!WeightMix::is_matrix(tensor.name, tensor.shape)) continue;
    out.back().type = mix.type_of(tensor.name, tensor.shape[0], model);
    if (out.back().changes()) file.find_tensor(tensor.name);  // refuses what cannot be read
  }
  return out;
}

void write_quantized_model(const GgufFile& file, const std::vector<RetypedTensor>& tensors,
                           const WeightMix& mix, const std::string& path, ThreadPool& pool,
                           const std::function<void(uint64_t, uint64_t)>& progress) {
  GgufWriter writer;
  for (const std::string& key : file.keys())
    if (!key.starts_with("split.") && key != "general.alignment") writer.set(key, *file.raw(key));
  writer.set("general.file_type", mix.file_type());
  writer.set("general.quantization_version", uint32_t{2});
  uint64_t total = 0, done = 0;
  for (const RetypedTensor& retyped : tensors) {
    writer.add_tensor(retyped.tensor->name, retyped.type, retyped.tensor->shape);
    total += retyped.n_bytes();
  }
  std::vector<std::byte> buffer;
  writer.stream(path, [&](size_t index, const GgufWriter::Sink& sink) {
    const GgufWriter::Sink counting = [&](std::span<const std::byte> bytes) {
      sink(bytes);
      done += bytes.size();
      if (progress) progress(done, total);
    };
    if (tensors[index].changes())
      write_retyped(tensors[index], pool, file, buffer, counting);
    else
      write_copied(*tensors[index].tensor, file, counting);
  });
}

}  // namespace kvasir
