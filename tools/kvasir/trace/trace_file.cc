// See trace_file.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/trace/trace_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>

#include "core/error.h"
#include "kernels/convert.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/session/planning.h"
#include "tools/kvasir/trace/safetensors.h"
#include "tools/kvasir/trace/trace_header.h"

namespace kvasir::tool {
namespace {

constexpr uint64_t kMostHeaderBytes = uint64_t{1} << 24;
constexpr TraceTensor kTensors[] = {TraceTensor::kQ, TraceTensor::kK, TraceTensor::kV,
                                    TraceTensor::kX, TraceTensor::kAhead};
constexpr const char* kNames[] = {"q", "k", "v", "x", "ahead"};
constexpr const char* kHeaderKey = "kvasir_trace";
constexpr const char* kTokens = "tokens";

const char* dtype_name(kernels::ElementType type) {
  return type == kernels::ElementType::kF32 ? "F32" : "F16";
}

struct Place {
  std::string dtype;
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes behind the JSON text
};

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw input_error(path + ": " + why);
}

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), in_(path, std::ios::binary) {
    n_bytes_ = file_bytes(path);
    if (!in_ || n_bytes_ < 8) refuse(path, "cannot be read, or is no trace (a safetensors file)");
    uint64_t length = 0;
    read(0, &length, sizeof(length));
    if (length > std::min(kMostHeaderBytes, n_bytes_ - 8))
      refuse(path, "is no trace: its header would be longer than the file or 16 MiB");
    std::string text(length, '\0');
    read(8, text.data(), length);
    data_ = 8 + length;
    root_ = Json::parse(text, nullptr, false);
    if (!root_.is_object()) refuse(path, "is no trace: its header is no JSON object");
  }

  TraceHeader header() const {
    const auto metadata = root_.find(kSafetensorsMetadata);
    if (metadata == root_.end() || !metadata->is_object() || !metadata->contains(kHeaderKey) ||
        !(*metadata)[kHeaderKey].is_string())
      refuse(path_, "was not written by `kvasir trace record`: its metadata lack kvasir_trace");
    return parse_trace_header((*metadata)[kHeaderKey].get<std::string>(), path_);
  }

  // Reads a tensor that must be there as it is expected.
  void tensor(const std::string& name, const Place& expected, void* to) {
    const auto at = root_.find(name);
    if (at == root_.end()) refuse(path_, "tensor '" + name + "' is missing");
    Place place = expected;
    try {
      place.dtype = at->at("dtype").get<std::string>();
      place.shape = at->at("shape").get<std::vector<uint64_t>>();
      const auto offsets = at->at("data_offsets").get<std::vector<uint64_t>>();
      if (offsets.size() != 2) refuse(path_, "tensor '" + name + "': data_offsets must be two");
      place.begin = offsets[0];
      place.end = offsets[1];
    } catch (const Json::exception&) {
      refuse(path_, "tensor '" + name + "' lacks dtype, shape or data_offsets");
    }
    const uint64_t bytes = expected.end - expected.begin;
    if (place.dtype != expected.dtype || place.shape != expected.shape)
      refuse(path_, "tensor '" + name + "' is " + place.dtype + " " + Json(place.shape).dump() +
                        ", expected " + expected.dtype + " " + Json(expected.shape).dump());
    if (place.begin > place.end || place.end > n_bytes_ - data_ || place.end - place.begin != bytes)
      refuse(path_, "tensor '" + name + "' does not lie within the file");
    read(data_ + place.begin, to, bytes);
    known_.insert(name);
  }

  void refuse_others() const {
    for (const auto& [name, value] : root_.items())
      if (name != kSafetensorsMetadata && !known_.contains(name))
        refuse(path_, "tensor '" + name + "' is none of a trace");
  }

 private:
  void read(uint64_t offset, void* to, uint64_t bytes) {
    in_.seekg(static_cast<std::streamoff>(offset));
    in_.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
    if (static_cast<uint64_t>(in_.gcount()) != bytes) refuse(path_, "ends early");
  }

  std::string path_;
  std::ifstream in_;
  uint64_t n_bytes_ = 0, data_ = 0;
  Json root_;
  std::set<std::string> known_;
};

// From 0 on, as all that are expected.
Place place_of(const Trace& trace, TraceTensor tensor) {
  const TraceHeader& h = trace.header();
  Place place{dtype_name(h.type), {trace.n_rows(tensor)}};
  if (tensor == TraceTensor::kX) {
    place.shape.push_back(h.d_model);
  } else {
    const bool of_queries = tensor == TraceTensor::kQ || tensor == TraceTensor::kAhead;
    place.shape.push_back(of_queries ? h.n_q_heads : h.n_kv_heads);
    place.shape.push_back(tensor == TraceTensor::kV ? h.v_head_dim : h.head_dim);
  }
  place.end = trace.n_rows(tensor) * kernels::row_bytes(h.type, trace.row_width(tensor));
  return place;
}

Place place_of_tokens(const TraceHeader& header) {
  return {"I32", {header.n_tokens()}, 0, uint64_t{header.n_tokens()} * 4};
}

}  // namespace

uint64_t Trace::bytes(const TraceHeader& h) {
  const uint64_t of_tokens =
      uint64_t{h.n_tokens()} *
      (uint64_t{h.n_q_heads} * h.head_dim + uint64_t{h.n_kv_heads} * (h.head_dim + h.v_head_dim));
  const uint64_t of_steps = uint64_t{h.steps} * (h.d_model + uint64_t{h.n_q_heads} * h.head_dim);
  return h.layers.size() * kernels::row_bytes(h.type, of_tokens + of_steps);
}

Trace::Trace(TraceHeader header)
    : header_(std::move(header)), tokens_(header_.n_tokens()), data_(bytes(header_)) {}

bool Trace::has(TraceTensor tensor, uint32_t layer) const {
  return tensor != TraceTensor::kAhead || header_.layers[layer] > 0;
}

std::vector<TraceTensor> Trace::tensors_of(uint32_t layer) const {
  std::vector<TraceTensor> all;
  for (const TraceTensor tensor : kTensors)
    if (has(tensor, layer)) all.push_back(tensor);
  return all;
}

uint32_t Trace::n_rows(TraceTensor tensor) const {
  const bool of_steps = tensor == TraceTensor::kX || tensor == TraceTensor::kAhead;
  return of_steps ? header_.steps : header_.n_tokens();
}

uint32_t Trace::row_width(TraceTensor tensor) const {
  switch (tensor) {
    case TraceTensor::kK:
      return header_.n_kv_heads * header_.head_dim;
    case TraceTensor::kV:
      return header_.n_kv_heads * header_.v_head_dim;
    case TraceTensor::kX:
      return header_.d_model;
    default:
      return header_.n_q_heads * header_.head_dim;
  }
}

uint64_t Trace::tensor_bytes(TraceTensor tensor) const {
  return n_rows(tensor) * kernels::row_bytes(header_.type, row_width(tensor));
}

uint64_t Trace::offset_of(TraceTensor tensor, uint32_t layer) const {
  uint64_t of_layer = 0, before = 0;
  for (const TraceTensor other : kTensors) {
    of_layer += tensor_bytes(other);
    if (other < tensor) before += tensor_bytes(other);
  }
  return layer * of_layer + before;
}

std::byte* Trace::row_at(TraceTensor tensor, uint32_t layer, uint32_t row) const {
  return data_.data() + offset_of(tensor, layer) +
         row * kernels::row_bytes(header_.type, row_width(tensor));
}

void Trace::write_row(TraceTensor tensor, uint32_t layer, uint32_t row, const float* values) {
  kernels::convert_from_f32(header_.type, values, row_at(tensor, layer, row), row_width(tensor));
}

void Trace::read_row(TraceTensor tensor, uint32_t layer, uint32_t row, float* values) const {
  kernels::convert_to_f32(header_.type, row_at(tensor, layer, row), values, row_width(tensor));
}

std::string Trace::tensor_name(TraceTensor tensor, uint32_t layer) const {
  return "layers." + std::to_string(header_.layers[layer]) + "." +
         kNames[static_cast<size_t>(tensor)];
}

void write_trace(const Trace& trace, const std::string& path) {
  const TraceHeader& header = trace.header();
  SafetensorsWriter writer(kHeaderKey, trace_header_text(header));
  const auto add = [&](const std::string& name, const Place& place, const void* data) {
    writer.add(name, place.dtype, place.shape, data, place.end - place.begin);
  };
  add(kTokens, place_of_tokens(header), trace.tokens_.data());
  for (uint32_t layer = 0; layer < header.layers.size(); ++layer)
    for (const TraceTensor tensor : trace.tensors_of(layer))
      add(trace.tensor_name(tensor, layer), place_of(trace, tensor),
          trace.row_at(tensor, layer, 0));
  writer.write(path);
}

Trace read_trace(const std::string& path) {
  Reader reader(path);
  const TraceHeader header = reader.header();
  const uint64_t ahead_of_first =  // which the file does not have
      header.steps * kernels::row_bytes(header.type, uint64_t{header.n_q_heads} * header.head_dim);
  if (Trace::bytes(header) > file_bytes(path) + ahead_of_first)
    refuse(path, "its header speaks of more than the file holds");
  check_memory(Trace::bytes(header), "the trace " + path, "", "record fewer tokens or --layers");
  Trace trace(header);
  reader.tensor(kTokens, place_of_tokens(header), trace.tokens_.data());
  std::vector<float> row;
  for (uint32_t layer = 0; layer < header.layers.size(); ++layer)
    for (const TraceTensor tensor : trace.tensors_of(layer)) {
      const std::string name = trace.tensor_name(tensor, layer);
      reader.tensor(name, place_of(trace, tensor), trace.row_at(tensor, layer, 0));
      row.resize(trace.row_width(tensor));
      for (uint32_t i = 0; i < trace.n_rows(tensor); ++i) {
        trace.read_row(tensor, layer, i, row.data());
        if (!std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); }))
          refuse(path, "tensor '" + name + "', row " + std::to_string(i) +
                           ": holds a number that is not finite");
      }
    }
  reader.refuse_others();
  return trace;
}

}  // namespace kvasir::tool
