// NumPy format version 1.0: magic, version, length of the header, header, data.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/model/npy.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {

NpyWriter::NpyWriter(const std::string& path, uint64_t n_rows, uint64_t n_columns)
    : path_(path), partial_(path + ".partial-" + std::to_string(getpid())) {
  file_ = std::fopen(partial_.c_str(), "wb");
  if (!file_) fail("cannot be written");
  std::string header =
      format("{'descr': '<f4', 'fortran_order': False, 'shape': (%llu, %llu), }",
             static_cast<unsigned long long>(n_rows), static_cast<unsigned long long>(n_columns));
  constexpr size_t kPrefix = 10;  // data begins at a multiple of 64
  header.append(63 - (kPrefix + header.size()) % 64, ' ').push_back('\n');
  const auto length = static_cast<uint16_t>(header.size());
  const std::string prefix{'\x93',
                           'N',
                           'U',
                           'M',
                           'P',
                           'Y',
                           '\x01',
                           '\x00',
                           static_cast<char>(length & 0xFF),
                           static_cast<char>(length >> 8)};
  const std::string all = prefix + header;
  if (std::fwrite(all.data(), 1, all.size(), file_) != all.size()) fail("cannot be written");
}

NpyWriter::~NpyWriter() {
  if (!file_) return;
  std::fclose(file_);
  std::remove(partial_.c_str());
}

void NpyWriter::fail(const char* what) const {
  throw input_error("-o " + path_ + ": " + what + ": " + std::strerror(errno));
}

void NpyWriter::write(std::span<const float> values) {
  if (std::fwrite(values.data(), sizeof(float), values.size(), file_) != values.size())
    fail("cannot be written");
}

void NpyWriter::finish() {
  const bool is_written = std::fclose(file_) == 0;
  file_ = nullptr;
  if (is_written && std::rename(partial_.c_str(), path_.c_str()) == 0) return;
  const int reason = errno;
  std::remove(partial_.c_str());
  errno = reason;
  fail("cannot be written");
}

}  // namespace kvasir::tool
