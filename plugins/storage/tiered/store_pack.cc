// See store_pack.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/store_pack.h"

#include <zstd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <span>

namespace kvasir::tiered {
namespace {

// A record whose block is compressed: its checksum is over the compressed bytes.
constexpr std::array<char, 8> kCompressed = {'K', 'V', 'A', 'S', 'B', 'L', 'Z', '1'};
constexpr int kLevel = 1;         // K and V are noise below their exponents: more finds no more
constexpr uint32_t kToSkip = 15;  // blocks after one that did not pay
constexpr double kNewest = 0.25;  // weight of the newest rate
constexpr uint64_t kMostBlockBytes = uint64_t{1} << 30;  // of a record that nobody vouches for

std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// The block's bytes from zstd's into `to`, or, when it is null, into the void.
bool decompress(std::string_view packed, uint64_t block_bytes, std::byte* to) {
  std::unique_ptr<std::byte[]> scratch;
  if (!to) {
    if (block_bytes > kMostBlockBytes) return false;
    scratch.reset(new std::byte[block_bytes]);
    to = scratch.get();
  }
  return ZSTD_decompress(to, block_bytes, packed.data(), packed.size()) == block_bytes;
}

}  // namespace

Packer::Packer(Compress when)
    : when_(when), context_(when == Compress::kNever ? nullptr : ZSTD_createCCtx(), ZSTD_freeCCtx) {
  if (when != Compress::kNever && !context_) throw std::bad_alloc();
}

Packer::~Packer() = default;

void Packer::sent(uint64_t bytes, double seconds) {
  if (bytes == 0 || seconds <= 0) return;
  const double rate = static_cast<double>(bytes) / seconds;
  bytes_per_second_ =
      bytes_per_second_ == 0 ? rate : (1 - kNewest) * bytes_per_second_ + kNewest * rate;
}

// Into record_, behind the header. False when the block is to go as it is.
bool Packer::compress(const StoreLayout& layout, const std::byte* from) {
  if (when_ == Compress::kNever) return false;
  if (when_ == Compress::kAuto && (bytes_per_second_ == 0 || n_to_skip_ > 0)) {
    if (n_to_skip_ > 0) --n_to_skip_;
    return false;
  }
  const auto begin = std::chrono::steady_clock::now();
  record_.resize(sizeof(StoreHeader) + ZSTD_compressBound(layout.block_bytes));
  const size_t n =
      ZSTD_compressCCtx(context_.get(), record_.data() + sizeof(StoreHeader),
                        record_.size() - sizeof(StoreHeader), from, layout.block_bytes, kLevel);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  bool pays = ZSTD_isError(n) == 0 && n < layout.block_bytes;
  if (pays && when_ == Compress::kAuto)
    pays = static_cast<double>(layout.block_bytes - n) > took.count() * bytes_per_second_;
  if (!pays && when_ == Compress::kAuto) n_to_skip_ = kToSkip;
  if (pays) record_.resize(sizeof(StoreHeader) + n);
  return pays;
}

const std::string& Packer::pack(const StoreName& name, const StoreLayout& layout,
                                const std::byte* from) {
  StoreHeader header;
  header.name = name;
  header.layout = layout;
  if (compress(layout, from)) {
    header.magic = kCompressed;
  } else {
    record_.resize(sizeof header + layout.block_bytes);
    std::memcpy(record_.data() + sizeof header, from, layout.block_bytes);
  }
  header.checksum =
      record_checksum(header, bytes_of(std::string_view(record_).substr(sizeof header)));
  std::memcpy(record_.data(), &header, sizeof header);
  return record_;
}

std::optional<StoreHeader> peek(std::string_view record) {
  StoreHeader header;
  if (record.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, record.data(), sizeof header);
  if (header.magic != kCompressed && header.magic != StoreHeader::kMagic) return std::nullopt;
  return header;
}

std::optional<StoreHeader> unpack(std::string_view record, const StoreName& name,
                                  const StoreLayout* layout, std::byte* to, std::string& why) {
  const auto refuse = [&](std::string text) {
    why = std::move(text);
    return std::nullopt;
  };
  if (record.size() < sizeof(StoreHeader)) return refuse("it is cut");
  const std::optional<StoreHeader> seen = peek(record);
  if (!seen) return refuse("it is of another format");
  const StoreHeader& header = *seen;
  const std::string_view bytes = record.substr(sizeof header);
  const bool is_compressed = header.magic == kCompressed;
  if (!is_compressed && bytes.size() != header.layout.block_bytes)
    return refuse("it is cut, or longer than it was");
  if (std::string wrong = wrong_header(header, name, layout); !wrong.empty())
    return refuse(std::move(wrong));
  if (record_checksum(header, bytes_of(bytes)) != header.checksum)
    return refuse("its checksum is wrong");
  if (is_compressed && !decompress(bytes, header.layout.block_bytes, to))
    return refuse("its block does not unpack");
  if (!is_compressed && to) std::memcpy(to, bytes.data(), bytes.size());
  return header;
}

}  // namespace kvasir::tiered
