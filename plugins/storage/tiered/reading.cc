// See reading.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/reading.h"

#include <utility>

namespace kvasir::tiered {

Reading::Reading(const Extent& from_in, const Records& records_in, TokenSet wanted_in,
                 const BlockMemory& block)
    : from(from_in),
      records(&records_in),
      wanted(block.missing(std::move(wanted_in))),
      arrived(records_in.size()),
      present(block.present(records_in)),
      memory(block.memory()) {}

bool Reading::read(BlockFile& file, uint64_t gap_bytes, std::vector<std::byte>& buffer,
                   std::string& why) {
  const uint64_t size = records->record_bytes();
  for (uint32_t begin = wanted.next(0); begin < wanted.size();) {
    uint32_t end = begin + 1, next = wanted.next(end);
    while (next < wanted.size() && (next - end) * size <= gap_bytes) {
      end = next + 1;
      next = wanted.next(end);
    }
    const uint64_t n = (end - begin) * size;
    if (buffer.size() < n) buffer.resize(n);
    if (!file.read(from, begin * size, n, buffer.data(), why)) return false;
    bytes += n;
    if (!take(begin, end, buffer.data(), why)) return false;
    begin = next;
  }
  return true;
}

bool Reading::take(uint32_t begin, uint32_t end, const std::byte* run, std::string& why) {
  for (uint32_t i = begin; i < end; ++i, run += records->record_bytes()) {
    if (present.has(i)) continue;
    if (records->intact(run, from.seed, i)) {
      records->unpack(run, i, memory.get());
      arrived.add(i);
    } else if (wanted.has(i)) {
      why = "the bytes of token " + std::to_string(i % records->block_size()) + " of kv head " +
            std::to_string(i / records->block_size()) + " changed on the way";
      return false;
    }
  }
  return true;
}

}  // namespace kvasir::tiered
