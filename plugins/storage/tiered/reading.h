// Records on their way from the file into the memory of a block.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plugins/storage/tiered/block_file.h"
#include "plugins/storage/tiered/block_memory.h"

namespace kvasir::tiered {

struct Reading {
  // Of the tokens of a block that are wanted and not in `memory`, which stays as it is.
  Reading(const Extent& from, const Records& records, TokenSet wanted, const BlockMemory& memory);

  // False with a reason in `why` when one of the wanted did not arrive. Runs of records that lie no
  // further than gap_bytes apart are read in one call; what lies between is kept unless it is
  // damaged, which is then for the one who wants it to find. buffer: memory to read into.
  bool read(BlockFile& file, uint64_t gap_bytes, std::vector<std::byte>& buffer, std::string& why);

  Extent from;
  const Records* records;
  TokenSet wanted, arrived, present;  // present: in memory before, and perhaps being read there
  Memory memory;                      // null: to be allocated before read()
  uint64_t bytes = 0;                 // read of the file

 private:
  bool take(uint32_t begin, uint32_t end, const std::byte* run, std::string& why);
};

}  // namespace kvasir::tiered
