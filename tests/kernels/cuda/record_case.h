// Blocks of keys in the device's memory and the records that are made of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/block_records.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/rows.h"

namespace kvasir::test {

template <class T>
uint64_t address_of(const DeviceArray<T>& array) {
  return reinterpret_cast<uint64_t>(array.data());
}

class RecordCase {
 public:
  RecordCase(uint32_t head_dim, cuda::RecordKind kind, cuda::KvType record)
      : dim_(head_dim), kind_(kind), record_(record) {}

  // n random keys, with a gap of NaN between them.
  void add(uint32_t n, kernels::ElementType type, float scale) {
    const size_t stride = row_stride(type, dim_, 3);
    const auto seed = static_cast<uint32_t>(100 + blocks_.size());
    add_bytes(store_rows(random_floats(size_t{n} * dim_, scale, seed), dim_, stride, type), stride,
              n, type);
  }
  void add_floats(const std::vector<float>& keys) {
    std::vector<uint8_t> bytes(keys.size() * sizeof(float));
    std::memcpy(bytes.data(), keys.data(), bytes.size());
    const size_t stride = dim_ * sizeof(float);
    add_bytes(std::move(bytes), stride, keys.size() / dim_, kernels::ElementType::kF32);
  }

  void build(cuda::KvType key_type) {
    std::vector<DeviceArray<uint8_t>*> keys;
    for (const Block& block : blocks_) keys.push_back(new DeviceArray<uint8_t>(block.bytes));
    const DeviceArray<uint8_t> records(
        std::vector<uint8_t>(blocks_.size() * record_stride() + kGap, kUntouched));
    std::vector<cuda::RecordBlock> list;
    for (size_t b = 0; b < blocks_.size(); ++b)
      list.push_back({address_of(*keys[b]), blocks_[b].rows.token_stride,
                      address_of(records) + kGap + b * record_stride(),
                      static_cast<uint32_t>(blocks_[b].rows.n),
                      static_cast<cuda::KvType>(blocks_[b].rows.type)});
    const DeviceArray<cuda::RecordBlock> sent(list);
    cuda::build_records(
        {address_of(sent), static_cast<uint32_t>(list.size()), dim_, key_type, kind_, record_}, {});
    built_ = records.values();
    for (const DeviceArray<uint8_t>* array : keys) delete array;
  }

  size_t n_blocks() const { return blocks_.size(); }
  kernels::KeyRows rows(size_t block) const {
    kernels::KeyRows rows = blocks_[block].rows;
    rows.k = blocks_[block].bytes.data();
    return rows;
  }
  size_t record_bytes() const { return width() * (record_ == cuda::KvType::kF16 ? 2 : 4); }
  const uint8_t* stored(size_t block) const {
    return built_.data() + kGap + block * record_stride();
  }
  std::vector<double> record(size_t block) const {
    std::vector<double> out;
    for (size_t i = 0; i < width(); ++i)
      out.push_back(kernels::reference::element(stored(block), i,
                                                static_cast<kernels::ElementType>(record_)));
    return out;
  }
  bool gaps_are_untouched() const {
    for (size_t i = 0; i < built_.size(); ++i) {
      const bool is_gap = i < kGap || (i - kGap) % record_stride() >= record_bytes();
      if (is_gap && built_[i] != kUntouched) return false;
    }
    return true;
  }

 private:
  static constexpr uint8_t kUntouched = 0xe7;
  static constexpr size_t kGap = 4;  // records begin at multiples of 4 alone
  struct Block {
    std::vector<uint8_t> bytes;
    kernels::KeyRows rows;
  };

  size_t width() const { return kind_ == cuda::RecordKind::kMinMax ? 2 * dim_ : dim_; }
  size_t record_stride() const { return (record_bytes() + 3) / 4 * 4 + kGap; }
  void add_bytes(std::vector<uint8_t> bytes, size_t stride, size_t n, kernels::ElementType type) {
    blocks_.push_back({std::move(bytes), {nullptr, stride, n, dim_, type}});
  }

  uint32_t dim_;
  cuda::RecordKind kind_;
  cuda::KvType record_;
  std::vector<Block> blocks_;
  std::vector<uint8_t> built_;
};

}  // namespace kvasir::test
