// See raw_reads.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/raw_reads.h"

#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <random>
#include <system_error>
#include <vector>

#include "core/error.h"

namespace kvasir::tool {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kWriteBytes = uint64_t{1} << 20;

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
using Pages = std::unique_ptr<std::byte, Free>;

Pages pages(uint64_t bytes) {
  auto* p = static_cast<std::byte*>(std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage));
  if (!p) throw std::bad_alloc();
  return Pages(p);
}

[[noreturn]] void fail(const std::string& what, int error) {
  throw Error(ErrorKind::kResource,
              what + ": " + std::generic_category().message(error) + "; try another --folder");
}

}  // namespace

struct RawReads::State {
  int file = -1;
  bool direct = false, uring = false, fixed = false;
  uint64_t read_bytes = 0;
  uint32_t most_depth = 1;
  io_uring ring{};
  Pages buffers;

  ~State() {
    if (uring) ::io_uring_queue_exit(&ring);
    if (file >= 0) ::close(file);
  }
  std::byte* buffer(uint32_t i) const { return buffers.get() + i * read_bytes; }
  void write(uint64_t bytes);
  void read_one(uint64_t place) const;
  void read_deep(std::span<const uint64_t> places, uint32_t depth);
};

void RawReads::State::write(uint64_t bytes) {
  const Pages from = pages(kWriteBytes);
  std::mt19937_64 random(1);
  for (uint64_t i = 0; i < kWriteBytes / 8; ++i)
    reinterpret_cast<uint64_t*>(from.get())[i] = random();
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t n = ::pwrite(file, from.get(), kWriteBytes, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("a file to compare with cannot be written", errno);
    done += static_cast<uint64_t>(n);
  }
  ::fsync(file);
}

void RawReads::State::read_one(uint64_t place) const {
  ssize_t n = 0;
  do n = ::pread(file, buffer(0), read_bytes, static_cast<off_t>(place * read_bytes));
  while (n < 0 && errno == EINTR);
  if (n != static_cast<ssize_t>(read_bytes)) fail("the file to compare with", n < 0 ? errno : EIO);
}

void RawReads::State::read_deep(std::span<const uint64_t> places, uint32_t depth) {
  const auto start = [&](uint64_t place, uint64_t index) {
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring);
    std::byte* const to = buffer(static_cast<uint32_t>(index));
    const auto n = static_cast<unsigned>(read_bytes);
    if (fixed)
      ::io_uring_prep_read_fixed(entry, file, to, n, place * read_bytes, 0);
    else
      ::io_uring_prep_read(entry, file, to, n, place * read_bytes);
    ::io_uring_sqe_set_data64(entry, index);
  };
  uint64_t n_started = 0, n_ended = 0;
  while (n_started < std::min<uint64_t>(depth, places.size())) {
    start(places[n_started], n_started);
    ++n_started;
  }
  while (n_ended < places.size()) {
    const int submitted = ::io_uring_submit_and_wait(&ring, 1);
    if (submitted < 0 && submitted != -EINTR) fail("io_uring", -submitted);
    io_uring_cqe* entry = nullptr;
    while (::io_uring_peek_cqe(&ring, &entry) == 0) {
      const uint64_t index = ::io_uring_cqe_get_data64(entry);
      const int n = entry->res;
      ::io_uring_cqe_seen(&ring, entry);
      if (n != static_cast<int>(read_bytes)) fail("the file to compare with", n < 0 ? -n : EIO);
      ++n_ended;
      if (n_started < places.size()) start(places[n_started++], index);
    }
  }
}

RawReads::RawReads(const std::string& folder, uint64_t bytes, uint64_t read_bytes,
                   uint32_t most_depth)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.read_bytes = read_bytes;
  s.most_depth = most_depth;
  s.file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (s.file < 0) fail(folder + ": no file can be made there", errno);
  s.direct = ::fcntl(s.file, F_SETFL, ::fcntl(s.file, F_GETFL) | O_DIRECT) == 0;
  s.write(bytes);
  s.buffers = pages(most_depth * read_bytes);
  s.uring = ::io_uring_queue_init(most_depth, &s.ring, 0) == 0;
  const iovec all{s.buffers.get(), most_depth * read_bytes};
  s.fixed = s.uring && ::io_uring_register_buffers(&s.ring, &all, 1) == 0;
}

RawReads::~RawReads() = default;
bool RawReads::direct() const { return state_->direct; }
bool RawReads::uring() const { return state_->uring; }

double RawReads::read(std::span<const uint64_t> places, uint32_t depth) {
  const auto begin = std::chrono::steady_clock::now();
  if (state_->uring && depth > 1)
    state_->read_deep(places, depth);
  else
    for (const uint64_t place : places) state_->read_one(place);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace kvasir::tool
