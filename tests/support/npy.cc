// Zip directory (APPNOTE 6.3.9, sections 4.3.7 and 4.3.12) and .npy headers (NumPy's NEP 1).
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/npy.h"

#include <zlib.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace kvasir::test {
namespace {

using Bytes = std::vector<unsigned char>;

template <class T>
T read_at(const Bytes& bytes, size_t at) {
  T value;
  if (at + sizeof(T) > bytes.size()) throw std::runtime_error("npz: truncated");
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

Bytes slice(const Bytes& bytes, size_t at, size_t n) {
  if (at + n > bytes.size()) throw std::runtime_error("npz: truncated");
  return Bytes(bytes.begin() + static_cast<std::ptrdiff_t>(at),
               bytes.begin() + static_cast<std::ptrdiff_t>(at + n));
}

Bytes inflate_raw(Bytes packed, size_t n) {
  Bytes out(n);
  z_stream stream{};
  stream.next_in = packed.data();
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(n);
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw std::runtime_error("npz: zlib");
  const int status = inflate(&stream, Z_FINISH);
  inflateEnd(&stream);
  if (status != Z_STREAM_END) throw std::runtime_error("npz: damaged deflate stream");
  return out;
}

template <class T>
void convert(const Bytes& bytes, size_t at, std::vector<double>& out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<double>(read_at<T>(bytes, at + i * sizeof(T)));
  }
}

// False for element types we have no use for.
bool parse_npy(const Bytes& bytes, NpyArray& out) {
  if (bytes.size() < 10 || std::memcmp(bytes.data(), "\x93NUMPY", 6) != 0) {
    throw std::runtime_error("npz: entry is no .npy file");
  }
  const size_t length = read_at<uint16_t>(bytes, 8);
  const Bytes text = slice(bytes, 10, length);
  const std::string header(text.begin(), text.end());
  const auto value_after = [&](const std::string& key) {
    return header.substr(header.find(key) + key.size());
  };
  if (!value_after("'fortran_order': ").starts_with("False")) return false;
  std::string dims = value_after("'shape': (");
  dims = dims.substr(0, dims.find(')'));
  uint64_t count = 1;
  for (size_t at = 0; at < dims.size();) {
    const size_t comma = std::min(dims.find(',', at), dims.size());
    const std::string dim = dims.substr(at, comma - at);
    if (dim.find_first_of("0123456789") != std::string::npos) {
      out.shape.push_back(std::stoull(dim));
      count *= out.shape.back();
    }
    at = comma + 1;
  }
  out.values.resize(count);
  const std::string type = value_after("'descr': '").substr(0, 3);
  const size_t data = 10 + length;
  if (type == "<f4") return convert<float>(bytes, data, out.values), true;
  if (type == "<f8") return convert<double>(bytes, data, out.values), true;
  if (type == "<i4") return convert<int32_t>(bytes, data, out.values), true;
  if (type == "<i8") return convert<int64_t>(bytes, data, out.values), true;
  return false;
}

}  // namespace

std::map<std::string, NpyArray> read_npz(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const Bytes zip((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (zip.size() < 22) throw std::runtime_error("cannot read " + path);
  size_t end = zip.size() - 22;
  while (end > 0 && read_at<uint32_t>(zip, end) != 0x06054b50) --end;
  const size_t n_entries = read_at<uint16_t>(zip, end + 10);
  size_t at = read_at<uint32_t>(zip, end + 16);
  std::map<std::string, NpyArray> arrays;
  for (size_t i = 0; i < n_entries; ++i) {
    const auto method = read_at<uint16_t>(zip, at + 10);
    const size_t packed = read_at<uint32_t>(zip, at + 20);
    const size_t n_bytes = read_at<uint32_t>(zip, at + 24);
    const size_t name_length = read_at<uint16_t>(zip, at + 28);
    const size_t local = read_at<uint32_t>(zip, at + 42);
    const Bytes name_bytes = slice(zip, at + 46, name_length);
    const size_t data =
        local + 30 + read_at<uint16_t>(zip, local + 26) + read_at<uint16_t>(zip, local + 28);
    Bytes bytes = slice(zip, data, packed);
    if (method == 8) bytes = inflate_raw(std::move(bytes), n_bytes);
    std::string name(name_bytes.begin(), name_bytes.end());
    NpyArray array;
    if (parse_npy(bytes, array)) arrays.emplace(name.substr(0, name.rfind('.')), std::move(array));
    at += 46 + name_length + read_at<uint16_t>(zip, at + 30) + read_at<uint16_t>(zip, at + 32);
  }
  return arrays;
}

}  // namespace kvasir::test
