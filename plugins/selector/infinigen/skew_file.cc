// Reading and checking; see skew_file.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/selector/infinigen/skew_file.h"

#include <kvasir/ext/draft/skew.h>
#include <kvasir/sdk/error.h>
#include <xxhash.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace kvasir::infinigen {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  sdk::fail_invalid("skew_file " + path + ": " + what +
                    "; make it anew with `kvasir model skew -m MODEL.gguf -f TEXT -o FILE`");
}

std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

void check_header(const kvasir_skew_header& header, const kvasir_geometry& geometry,
                  const std::string& path) {
  char magic[8] = KVASIR_SKEW_MAGIC;
  if (std::memcmp(header.magic, magic, sizeof magic) != 0) fail(path, "it is no skew file");
  if (header.version != KVASIR_SKEW_VERSION) {
    fail(path, "it has format version " + std::to_string(header.version) + ", expected " +
                   std::to_string(KVASIR_SKEW_VERSION));
  }
  const auto check = [&](uint32_t has, uint32_t needs, const char* name) {
    if (has != needs) {
      fail(path, std::string("it is for a model with ") + name + " = " + std::to_string(has) +
                     ", this one has " + std::to_string(needs));
    }
  };
  check(header.n_layers, geometry.n_layers, "n_layers");
  check(header.n_kv_heads, geometry.n_kv_heads, "n_kv_heads");
  check(header.head_dim, geometry.head_dim, "head_dim");
  if (header.model_hash != geometry.model_hash) {
    fail(path, "it was made from the model " + hex(header.model_hash) + ", this one is " +
                   hex(geometry.model_hash));
  }
}

// Every column has length 1: what it is not is neither finite nor a rotation. Storing in f32 moves
// a length by 1e-7, solving for the vectors by less.
void check_columns(const std::vector<float>& columns, uint32_t head_dim, const std::string& path) {
  for (size_t at = 0; at < columns.size(); at += head_dim) {
    double length = 0.0;
    for (size_t i = 0; i < head_dim; ++i) length += double{columns[at + i]} * columns[at + i];
    if (!(std::abs(length - 1.0) < 1e-3)) {  // also true for NaN
      fail(path, "column " + std::to_string(at / head_dim) + " has not length 1");
    }
  }
}

void check_sums(const std::vector<float>& sums, const std::string& path) {
  for (const float sum : sums) {
    if (!(sum >= 0.0f && std::isfinite(sum))) fail(path, "a column's sum is negative or no number");
  }
}

}  // namespace

SkewFile load_skew_file(const std::string& path, const kvasir_geometry& geometry) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) fail(path, "it cannot be opened");
  const auto file_bytes = static_cast<uint64_t>(file.tellg());
  file.seekg(0);
  kvasir_skew_header header{};
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header))
    fail(path, file.bad() ? "it cannot be read" : "it is too short");
  check_header(header, geometry, path);
  // The header's sizes are those of the geometry now: no product of untrusted numbers.
  const uint64_t n_columns = uint64_t{geometry.n_layers} * geometry.n_kv_heads * geometry.head_dim;
  std::vector<float> numbers(n_columns * (geometry.head_dim + 2));
  const uint64_t bytes = numbers.size() * sizeof(float);
  if (file_bytes != sizeof header + bytes) {
    fail(path, "it has " + std::to_string(file_bytes) + " bytes, expected " +
                   std::to_string(sizeof header + bytes));
  }
  if (!file.read(reinterpret_cast<char*>(numbers.data()), static_cast<std::streamsize>(bytes))) {
    fail(path, "it cannot be read");
  }
  if (XXH3_64bits(numbers.data(), bytes) != header.checksum) fail(path, "it is damaged");
  const auto sums = numbers.end() - static_cast<ptrdiff_t>(2 * n_columns);
  SkewFile out{{numbers.begin(), sums}, {sums, numbers.end()}};
  check_columns(out.matrices, geometry.head_dim, path);
  check_sums(out.sums, path);
  return out;
}

}  // namespace kvasir::infinigen
