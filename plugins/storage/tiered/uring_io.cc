// Calls on a FileChain through io_uring; see file_io.h.
// SPDX-License-Identifier: Apache-2.0
#include <liburing.h>

#include <cerrno>
#include <optional>

#include "plugins/storage/tiered/file_io.h"

namespace kvasir::tiered {
namespace {

class UringIo final : public FileIo {
 public:
  // `ring` has an entry per buffer; it is this object's now.
  UringIo(const FileChain& files, const io_uring& ring, const FileOptions& options,
          uint64_t buffer_bytes)
      : FileIo(files, options.queue_depth, options.n_spare(), buffer_bytes),
        ring_(ring),
        calls_(n_buffers()) {}
  ~UringIo() override { ::io_uring_queue_exit(&ring_); }

  void start(uint32_t buffer_index, const FileCall& call) override {
    if (!registered_) registered_ = register_buffers();
    calls_[buffer_index] = {call, call};
    enqueue(buffer_index);
  }

  // What the kernel does not take now, wait() hands over.
  void flush() override {
    if (::io_uring_sq_ready(&ring_) != 0) ::io_uring_submit(&ring_);
  }

  void wait(std::vector<Done>& done) override {
    for (const size_t before = done.size(); done.size() == before;) {
      const int submitted = ::io_uring_submit_and_wait(&ring_, 1);
      // Signals, and memory that the kernel lacks for the moment: what is queued stays so.
      if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN && submitted != -ENOMEM &&
          submitted != -EBUSY)
        return fail_all(-submitted, done);
      take_completions(done);
    }
  }

 private:
  struct Call {
    FileCall whole, rest;  // rest.n = 0: none is under way
  };

  // Registered, their pages are not looked up for every call. They are in memory from then on, so
  // not before the first call: a run may end before it, and one whose blocks fit never calls.
  bool register_buffers() {
    const iovec all{arena(), arena_bytes()};
    return ::io_uring_register_buffers(&ring_, &all, 1) == 0;
  }

  void enqueue(uint32_t index) {
    const FileCall& rest = calls_[index].rest;
    std::byte* const at = buffer(index) + (rest.offset - calls_[index].whole.offset);
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);  // one per buffer: never null
    const auto n = static_cast<unsigned>(rest.n);
    const int fd = files_[rest.file].descriptor();
    if (*registered_ && rest.is_write)
      ::io_uring_prep_write_fixed(entry, fd, at, n, rest.offset, 0);
    else if (*registered_)
      ::io_uring_prep_read_fixed(entry, fd, at, n, rest.offset, 0);
    else if (rest.is_write)
      ::io_uring_prep_write(entry, fd, at, n, rest.offset);
    else
      ::io_uring_prep_read(entry, fd, at, n, rest.offset);
    ::io_uring_sqe_set_data64(entry, index);
  }

  void take_completions(std::vector<Done>& done) {
    // No more than there are spare buffers, which take other calls: the disk does not wait while
    // what came is unpacked.
    const size_t most = done.size() + n_spare();
    io_uring_cqe* entry = nullptr;
    while (done.size() < most && ::io_uring_peek_cqe(&ring_, &entry) == 0) {
      const auto index = static_cast<uint32_t>(::io_uring_cqe_get_data64(entry));
      const int n = entry->res;
      ::io_uring_cqe_seen(&ring_, entry);
      Call& call = calls_[index];
      if (n > 0) files_[call.rest.file].count(call.rest.is_write, static_cast<uint64_t>(n));
      int error = 0;
      if (!ends(call.rest, n, error)) {
        enqueue(index);
        continue;
      }
      call.rest.n = 0;
      done.push_back({index, error});
    }
  }

  void fail_all(int error, std::vector<Done>& done) {
    for (uint32_t i = 0; i < calls_.size(); ++i)
      if (calls_[i].rest.n != 0) {
        calls_[i].rest.n = 0;
        done.push_back({i, error});
      }
  }

  io_uring ring_;
  std::vector<Call> calls_;
  std::optional<bool> registered_;  // nothing: not tried yet
};

}  // namespace

std::unique_ptr<FileIo> make_uring_io(const FileChain& files, const FileOptions& options,
                                      uint64_t buffer_bytes, int& error) {
  io_uring ring{};
  error = -::io_uring_queue_init(options.n_buffers(), &ring, 0);
  if (error != 0) return nullptr;
  try {
    return std::make_unique<UringIo>(files, ring, options, buffer_bytes);
  } catch (...) {
    ::io_uring_queue_exit(&ring);
    throw;
  }
}

}  // namespace kvasir::tiered
