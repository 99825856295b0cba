// NumPy format version 1.0: magic, version, length of the header, header, data.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/model/npy.h"

#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {

NpyWriter::NpyWriter(const std::string& path, uint64_t n_rows, uint64_t n_columns)
    : file_(path, {.flag = "-o "}) {
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
  file_.write(all.data(), all.size());
}

}  // namespace kvasir::tool
