// See travel_bench.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/gpu/travel_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "kernels/cuda/stream_read.h"
#include "kernels/cuda/token_rows.h"
#include "tools/gpu/bench.h"

namespace kvasir::bench {
namespace {
using namespace kvasir::cuda;

constexpr uint32_t kHeads = 8, kDim = 128, kEvery = 16;
constexpr uint64_t kRow = kDim * 2, kStaging = uint64_t{4} << 20;

struct OwnStream {
  Stream stream = make_stream();
  OwnStream() = default;
  ~OwnStream() { destroy_stream(stream); }
  OwnStream(const OwnStream&) = delete;
};

struct Pinned {
  explicit Pinned(uint64_t n) : bytes(n, std::byte{1}) { pin_memory(bytes.data(), n); }
  ~Pinned() { unpin_memory(bytes.data()); }
  Pinned(const Pinned&) = delete;
  std::vector<std::byte> bytes;
};

// Blocks in main memory and their places on the device. K of a block before its V,
// [kv_head][token].
class Travel {
 public:
  explicit Travel(const TravelCase& c)
      : c_(c),
        block_bytes_(2 * kHeads * uint64_t{c.block_size} * kRow),
        from_(c.n_blocks * block_bytes_, std::byte{1}),
        staging_(std::max(kStaging, block_bytes_)),
        to_(c.n_blocks * block_bytes_),
        packed_(std::max(kStaging, block_bytes_)),
        sent_(std::max(kStaging, block_bytes_) / (2 * kRow) * sizeof(TokenRow)) {}

  uint64_t bytes() const { return from_.size(); }
  uint64_t token_bytes() const { return uint64_t{c_.n_blocks} * n_tokens() * kHeads * 2 * kRow; }

  void in_one_copy(const Pinned& from) {
    copy_to_device(to_.data, from.bytes.data(), from.bytes.size(), own_.stream);
    wait(own_.stream);
  }
  void whole_blocks() {
    uint64_t at = 0;
    for (uint32_t block = 0; block < c_.n_blocks; ++block) {
      if (at + block_bytes_ > staging_.bytes.size()) flush(at);
      std::memcpy(staging_.bytes.data() + at, from_.data() + block * block_bytes_, block_bytes_);
      copy_to_device(static_cast<std::byte*>(to_.data) + block * block_bytes_,
                     staging_.bytes.data() + at, block_bytes_, own_.stream);
      at += block_bytes_;
    }
    flush(at);
  }
  void some_tokens() {
    uint64_t at = 0;
    for (uint32_t block = 0; block < c_.n_blocks; ++block)
      for (uint32_t head = 0; head < kHeads; ++head)
        for (uint32_t t = head; t < c_.block_size; t += kEvery) {
          if (at + 2 * kRow > kStaging) send_rows(at);
          const uint64_t k = block * block_bytes_ + (head * uint64_t{c_.block_size} + t) * kRow;
          const uint64_t v = k + block_bytes_ / 2;
          rows_.push_back({to_.address() + k, to_.address() + v, at});
          std::memcpy(staging_.bytes.data() + at, from_.data() + k, kRow);
          std::memcpy(staging_.bytes.data() + at + kRow, from_.data() + v, kRow);
          at += 2 * kRow;
        }
    send_rows(at);
  }

 private:
  uint64_t n_tokens() const { return c_.block_size / kEvery; }  // of each kv head of a block
  void flush(uint64_t& at) {
    wait(own_.stream);
    at = 0;
  }
  void send_rows(uint64_t& at) {
    copy_to_device(sent_.data, rows_.data(), rows_.size() * sizeof rows_[0], own_.stream);
    copy_to_device(packed_.data, staging_.bytes.data(), at, own_.stream);
    unpack_rows({sent_.address(), static_cast<uint32_t>(rows_.size()), kDim, kDim, KvType::kF16,
                 KvType::kF16},
                packed_.address(), own_.stream);
    flush(at);
    rows_.clear();
  }

  TravelCase c_;
  uint64_t block_bytes_;
  std::vector<std::byte> from_;
  Pinned staging_;
  Memory to_, packed_, sent_;
  OwnStream own_;
  std::vector<TokenRow> rows_;
};

// What is computed meanwhile, on a stream and a thread of its own.
class Beside {
 public:
  explicit Beside(uint64_t bytes) : bytes_(bytes), from_(bytes), sums_(kReadBlocks * 4) {
    fill_words(from_.data, bytes / 4, 1, 0, own_.stream);
    wait(own_.stream);
  }
  void run(uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) read_all(from_.data, bytes_, sums_.data, own_.stream);
    wait(own_.stream);
  }

 private:
  uint64_t bytes_;
  Memory from_, sums_;
  OwnStream own_;
};

// Of the time of `travel` alone, how much is not seen beside a computation that takes as long.
template <class Fn>
void print_row(const char* name, const TravelCase& c, uint64_t bytes, Beside& beside,
               uint32_t n_runs, const Fn& travel) {
  const double alone = seconds_of(travel, n_runs);
  const double once = seconds_of([&] { beside.run(1); }, n_runs);
  const auto n = static_cast<uint32_t>(std::clamp(std::ceil(alone / once), 1.0, 1000.0));
  const double computing = seconds_of([&] { beside.run(n); }, n_runs);
  const double both = seconds_of(
      [&] {
        std::exception_ptr fault;
        std::thread carrier([&] {
          try {
            travel();
          } catch (...) {
            fault = std::current_exception();
          }
        });
        beside.run(n);
        carrier.join();
        if (fault) std::rethrow_exception(fault);
      },
      n_runs);
  const double hidden = std::clamp((alone + computing - both) / alone, 0.0, 1.0);
  const auto size = static_cast<double>(bytes);
  std::printf("%-22s %6u %8.1f %10.3f %10.1f %10.3f %10.3f %8.1f %%\n", name, c.n_blocks,
              size / 1e6, alone * 1e3, size / alone / 1e9, computing * 1e3, both * 1e3,
              100.0 * hidden);
}

}  // namespace

void print_travel(const TravelCase& c, uint32_t n_runs) {
  std::printf("\n%-22s %6s %8s %10s %10s %10s %10s %10s\n", "K and V on their way", "blocks", "MB",
              "ms", "GB/s", "computing", "both ms", "hidden");
  Travel travel(c);
  Beside beside(c.beside_bytes);
  {
    const Pinned pinned(travel.bytes());
    print_row("pinned, one copy", c, travel.bytes(), beside, n_runs,
              [&] { travel.in_one_copy(pinned); });
  }
  print_row("whole blocks", c, travel.bytes(), beside, n_runs, [&] { travel.whole_blocks(); });
  print_row("one token in 16", c, travel.token_bytes(), beside, n_runs,
            [&] { travel.some_tokens(); });
}

}  // namespace kvasir::bench
