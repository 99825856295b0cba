// Blocks as records: what comes out is what went in, or nothing; zstd where it pays.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "plugins/storage/tiered/store_pack.h"

namespace {
using namespace kvasir::tiered;

constexpr uint64_t kBytes = 1 << 16;
const StoreName kName = {{1, 2}, {3, 4}, 5, 6};

StoreLayout layout() {
  StoreLayout out;
  out.block_size = 16;
  out.block_bytes = kBytes;
  return out;
}

// Every n-th byte is random, the others are 0.
std::vector<std::byte> block(size_t n) {
  std::mt19937 random(1);
  std::vector<std::byte> out(kBytes);
  for (size_t i = 0; i < kBytes; i += n) out[i] = static_cast<std::byte>(random());
  return out;
}

bool comes_back(const std::string& record, const std::vector<std::byte>& want) {
  std::vector<std::byte> got(kBytes);
  std::string why;
  const StoreLayout shape = layout();
  CHECK(unpack(record, kName, nullptr, nullptr, why));
  return unpack(record, kName, &shape, got.data(), why) && got == want;
}

}  // namespace

TEST_SUITE_BEGIN("plugins/storage/store_pack");

TEST_CASE("a block comes back, compressed or not") {
  for (const Compress when : {Compress::kNever, Compress::kAlways}) {
    Packer packer(when);
    for (const size_t n : {1, 4}) {
      const auto bytes = block(n);
      const std::string record = packer.pack(kName, layout(), bytes.data());
      CHECK(comes_back(record, bytes));
      CHECK(record.size() <= most_packed_bytes(layout()));
      CHECK((record.size() < kBytes / 2) == (when == Compress::kAlways && n == 4));
    }
  }
}

TEST_CASE("auto compresses for a slow server, not for a fast one, and not before it knows") {
  const auto bytes = block(4);
  const auto packed = [&](Packer& packer) {
    return packer.pack(kName, layout(), bytes.data()).size() < kBytes / 2;
  };
  Packer slow(Compress::kAuto), fast(Compress::kAuto);
  CHECK(!packed(slow));
  slow.sent(1000, 1.0);
  CHECK(packed(slow));
  CHECK(packed(slow));
  fast.sent(uint64_t{1} << 60, 1e-3);
  CHECK(!packed(fast));
  // Slower now, but the next blocks go by before it is tried again.
  for (int i = 0; i < 200; ++i) fast.sent(1000, 1.0);
  int n_plain = 0;
  while (n_plain < 100 && !packed(fast)) ++n_plain;
  CHECK(n_plain == 15);
  CHECK(packed(fast));
}

TEST_CASE("a record that is not whole, or another's, gives nothing") {
  const auto bytes = block(4);
  for (const Compress when : {Compress::kNever, Compress::kAlways}) {
    const std::string whole = Packer(when).pack(kName, layout(), bytes.data());
    const StoreLayout shape = layout();
    StoreLayout other = shape;
    other.head_dim = 1;
    std::vector<std::byte> to(kBytes);
    std::string why;
    const auto refused = [&](const std::string& record, const StoreName& name,
                             const StoreLayout& as) {
      return !unpack(record, name, &as, to.data(), why);
    };
    CHECK(!refused(whole, kName, shape));
    StoreName name = kName;
    name.layer = 7;
    CHECK(refused(whole, name, shape));
    CHECK(refused(whole, kName, other));
    for (const size_t n : {size_t{0}, size_t{103}, size_t{104}, whole.size() - 1})
      CHECK(refused(whole.substr(0, n), kName, shape));
    CHECK(refused(whole + whole, kName, shape));
    // A right checksum over what zstd cannot read, or over a block that is too long for its header.
    StoreHeader header;
    std::memcpy(&header, whole.data(), sizeof header);
    std::string bad = whole;
    for (char& c : bad) c = static_cast<char>(c ^ 1);
    header.checksum =
        record_checksum(header, {reinterpret_cast<const std::byte*>(bad.data()) + sizeof header,
                                 bad.size() - sizeof header});
    std::memcpy(bad.data(), &header, sizeof header);
    CHECK(refused(bad, kName, shape) == (when == Compress::kAlways));
  }
}

TEST_SUITE_END();
