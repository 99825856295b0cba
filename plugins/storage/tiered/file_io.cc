// See file_io.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/file_io.h"

#include <cerrno>

#include "plugins/storage/tiered/block_memory.h"
#include "plugins/storage/tiered/reason.h"

namespace kvasir::tiered {

FileIo::FileIo(const FileChain& files, uint32_t depth, uint32_t n_spare, uint64_t buffer_bytes)
    : files_(files),
      depth_(depth),
      n_spare_(n_spare),
      buffer_bytes_((buffer_bytes + BlockFile::kPage - 1) / BlockFile::kPage * BlockFile::kPage),
      memory_(allocate(arena_bytes())) {}

// A short call goes on where a read past the page cache may begin.
bool FileIo::ends(FileCall& rest, int64_t n, int& error) {
  BlockFile& file = files_[rest.file];
  error = 0;
  if (n == -EINTR || n == -EAGAIN) return false;
  if (n == -EINVAL && file.alignment() != 1 && !rest.was_refused) {
    file.stop_direct();  // others that were under way are refused, too
    rest.was_refused = true;
    return false;
  }
  if (n < 0) {
    error = static_cast<int>(-n);
    return true;
  }
  if (n == 0) {
    error = EIO;  // the file is shorter than it was
    return true;
  }
  auto moved = static_cast<uint64_t>(n);
  if (moved < rest.n) moved -= moved % file.alignment();
  rest.offset += moved;
  rest.n -= moved;
  return rest.n == 0;
}

namespace {

class PlainIo final : public FileIo {
 public:
  PlainIo(const FileChain& files, uint64_t buffer_bytes) : FileIo(files, 1, 0, buffer_bytes) {}

  void start(uint32_t buffer_index, const FileCall& call) override {
    FileCall rest = call;
    BlockFile& file = files_[call.file];
    std::byte* const at = buffer(buffer_index);
    for (bool ended = false; !ended;) {
      std::byte* const from = at + (rest.offset - call.offset);
      const int64_t n = call.is_write ? file.write(rest.offset, rest.n, from)
                                      : file.read(rest.offset, rest.n, from);
      ended = ends(rest, n, error_);
    }
  }
  void wait(std::vector<Done>& done) override { done.push_back({0, error_}); }

 private:
  int error_ = 0;
};

}  // namespace

std::unique_ptr<FileIo> make_plain_io(const FileChain& files, uint64_t buffer_bytes) {
  return std::make_unique<PlainIo>(files, buffer_bytes);
}

std::unique_ptr<FileIo> make_file_io(const FileChain& files, const FileOptions& options,
                                     uint64_t buffer_bytes, const sdk::Host& host) {
  if (options.uring) {
    int error = 0;
    auto io = make_uring_io(files, options, buffer_bytes, error);
    if (io) return io;
    host.log(KVASIR_LOG_WARN, "the kernel gives no io_uring (" + reason(error) +
                                  "): the file is read one call at a time; io = \"thread\" does "
                                  "so without this line");
  }
  return make_plain_io(files, buffer_bytes);
}

}  // namespace kvasir::tiered
