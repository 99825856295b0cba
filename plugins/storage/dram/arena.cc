// Mappings of 64 MiB or one block, whichever is larger, areas aligned for huge pages.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/dram/arena.h"

#include <fcntl.h>
#include <kvasir/sdk/error.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "plugins/shared/memory_node.h"
#include "plugins/shared/nameless_file.h"

namespace kvasir::dram {
namespace {

constexpr uint64_t kMappingBytes = uint64_t{64} << 20;

// `bytes` (a multiple of kHugePage) at an address that is one; null when the system refuses.
std::byte* map_aligned(uint64_t bytes) {
  void* raw = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(raw);
  const uint64_t skip = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (skip != 0) munmap(begin, skip);
  munmap(begin + skip + bytes, kHugePage - skip);
  return begin + skip;
}

}  // namespace

Arena::Arena(uint64_t part_bytes, std::vector<Nodes> areas, bool huge_pages,
             const std::string& folder)
    : part_bytes_(part_bytes),
      areas_(std::move(areas)),
      area_bytes_((std::max(kMappingBytes / areas_.size(), part_bytes) + kHugePage - 1) /
                  kHugePage * kHugePage),
      huge_pages_(huge_pages) {
  if (folder.empty()) return;
  file_ = sdk::open_nameless_file(folder);
  if (file_ < 0)
    throw sdk::Error(KVASIR_ERR_IO, "dram: no file can be made in " + folder + ": " +
                                        std::strerror(errno) + "; set map_folder to one that does");
}

Arena::~Arena() {
  for (const Mapping& mapping : mappings_) munmap(mapping.data, mapping.bytes);
  if (file_ >= 0) close(file_);
}

// The file gets its space first: a page that the disk has no space for would end the process.
int Arena::back_with_file(std::byte* data, uint64_t bytes) {
  const auto at = static_cast<off_t>(file_bytes_);
  if (const int error = posix_fallocate(file_, at, static_cast<off_t>(bytes))) return error;
  if (mmap(data, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_, at) == MAP_FAILED)
    return errno;
  file_bytes_ += bytes;
  return 0;
}

void Arena::grow() {
  const uint64_t bytes = areas_.size() * area_bytes_;
  const uint64_t n_blocks = area_bytes_ / part_bytes_;
  mappings_.reserve(mappings_.size() + 1);
  free_.reserve(n_blocks_ + n_blocks);
  std::byte* data = map_aligned(bytes);
  int error = data ? 0 : errno;
  if (data && file_ >= 0 && (error = back_with_file(data, bytes)) != 0) munmap(data, bytes);
  if (error != 0) {
    throw sdk::Error(KVASIR_ERR_OUT_OF_MEMORY,
                     "dram: the system refused " + std::to_string(bytes >> 20) +
                         " MiB more for blocks (" + std::strerror(error) + ") after " +
                         std::to_string(n_blocks_ * part_bytes_ * areas_.size() >> 20) +
                         " MiB: shorten the context, or use a smaller type_k and type_v");
  }
  if (huge_pages_ && file_ < 0)
    madvise(data, bytes, MADV_HUGEPAGE);  // a wish: refused, it costs TLB misses only
  mappings_.push_back({data, bytes});
  if (file_ < 0) place(data);
  next_ = data;
  n_fresh_ = n_blocks;
  n_blocks_ += n_blocks;
}

// A wish, too: refused, the pages go where they are first touched.
void Arena::place(std::byte* mapping) {
  for (size_t area = 0; area < areas_.size(); ++area) {
    std::string refusal =
        sdk::prefer_nodes(mapping + area * area_bytes_, area_bytes_, areas_[area]);
    if (refusal_.empty()) refusal_ = std::move(refusal);
  }
}

std::byte* Arena::allocate() {
  if (!free_.empty()) {
    std::byte* block = free_.back();
    free_.pop_back();
    return block;
  }
  if (n_fresh_ == 0) grow();
  std::byte* block = next_;
  next_ += part_bytes_;
  --n_fresh_;
  return block;
}

}  // namespace kvasir::dram
