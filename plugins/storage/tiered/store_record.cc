// See store_record.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/store_record.h"

#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>
#include <vector>

namespace kvasir::tiered {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{1} << 18;  // read at a time where nobody wants the bytes

// n bytes, however many calls that takes; 0, or an errno.
template <class Call>
int all_of(uint64_t n, const Call& call) {
  for (uint64_t done = 0; done < n;) {
    const ssize_t now = call(done, n - done);
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) return errno;
    if (now == 0) return EIO;  // the file is shorter than it was
    done += static_cast<uint64_t>(now);
  }
  return 0;
}

int write_all(int file, const void* from, uint64_t n) {
  return all_of(n, [&](uint64_t done, uint64_t left) {
    return ::write(file, static_cast<const std::byte*>(from) + done, left);
  });
}

int read_all(int file, void* to, uint64_t n) {
  return all_of(n, [&](uint64_t done, uint64_t left) {
    return ::read(file, static_cast<std::byte*>(to) + done, left);
  });
}

class Checksum {
 public:
  explicit Checksum(StoreHeader header) : state_(XXH3_createState(), XXH3_freeState) {
    if (!state_) throw std::bad_alloc();
    header.checksum = {};
    XXH3_128bits_reset(state_.get());
    add(&header, sizeof header);
  }
  void add(const void* bytes, uint64_t n) { XXH3_128bits_update(state_.get(), bytes, n); }
  Hash value() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return {hash.low64, hash.high64};
  }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

}  // namespace

StoreLayout store_layout(const kvasir_geometry& geometry, const sdk::KvLayout& layout) {
  return {geometry.n_kv_heads,
          geometry.block_size,
          geometry.head_dim,
          geometry.v_dim,
          layout.format.dtype_k,
          layout.format.dtype_v,
          static_cast<uint32_t>(layout.format.k_token_stride),
          static_cast<uint32_t>(layout.format.v_token_stride),
          layout.block_bytes()};
}

Hash record_checksum(const StoreHeader& header, std::span<const std::byte> bytes) {
  Checksum sum(header);
  sum.add(bytes.data(), bytes.size());
  return sum.value();
}

std::string wrong_header(const StoreHeader& header, const StoreName& name,
                         const StoreLayout* layout) {
  if (!(header.name == name)) return "it holds another block than its name says";
  if (layout && !(header.layout == *layout)) return "its block has another shape";
  return "";
}

int write_record(int file, const StoreName& name, const StoreLayout& layout,
                 const std::byte* from) {
  StoreHeader header;
  header.name = name;
  header.layout = layout;
  header.checksum = record_checksum(header, {from, layout.block_bytes});
  if (const int error = write_all(file, &header, sizeof header)) return error;
  return write_all(file, from, layout.block_bytes);
}

std::optional<StoreHeader> read_record(int file, const StoreName& name, const StoreLayout* layout,
                                       std::byte* to, std::string& why) {
  const auto refuse = [&](std::string text) {
    why = std::move(text);
    return std::nullopt;
  };
  const auto failed = [&](int error) { return refuse(std::generic_category().message(error)); };
  struct stat status {};
  if (::fstat(file, &status) != 0) return failed(errno);
  const auto size = static_cast<uint64_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || size < sizeof(StoreHeader)) return refuse("it is cut");
  StoreHeader header;
  if (const int error = read_all(file, &header, sizeof header)) return failed(error);
  if (header.magic != StoreHeader::kMagic) return refuse("it is of another format");
  if (size - sizeof header != header.layout.block_bytes) return refuse("it is cut");
  if (std::string wrong = wrong_header(header, name, layout); !wrong.empty())
    return refuse(std::move(wrong));
  Checksum sum(header);
  std::vector<std::byte> piece(to ? 0 : std::min(kPieceBytes, header.layout.block_bytes));
  for (uint64_t done = 0; done < header.layout.block_bytes;) {
    const uint64_t left = header.layout.block_bytes - done;
    const uint64_t n = to ? left : std::min<uint64_t>(piece.size(), left);
    std::byte* const at = to ? to : piece.data();
    if (const int error = read_all(file, at, n)) return failed(error);
    sum.add(at, n);
    done += n;
  }
  if (sum.value() != header.checksum) return refuse("its checksum is wrong");
  return header;
}

}  // namespace kvasir::tiered
