// See panel_product.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/panel_product.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "kernels/cuda/emulation/hopper.h"

namespace kvasir::cuda::emulation {
namespace {

constexpr uint32_t kRowBytes = 2 * kPanelWidth, kEightRows = 8 * kRowBytes, kDepth = 16;

// An operand as the tensor cores find it: pieces of 16 bytes by their addresses.
class Panel {
 public:
  Panel(Pointer<const uint16_t> begin, uint32_t most_columns, Product product)
      : begin_(begin), product_(product) {
    const auto at = reinterpret_cast<uintptr_t>(begin.raw());
    if (at % kEightRows % (2 * kDepth) == 0 && at % kEightRows <= 2 * most_columns) return;
    throw Fault(FaultKind::kBounds, "a product's panel begins " + std::to_string(at % kEightRows) +
                                        " bytes behind a multiple of 1024");
  }

  // Bits 4 to 6 of an address are exchanged by bits 7 to 9.
  const std::byte* piece(uint32_t row, uint32_t column) const {
    const auto line =
        reinterpret_cast<uintptr_t>(begin_.raw()) + row * kRowBytes + column / 8 * sizeof(Bytes16);
    return reinterpret_cast<const std::byte*>(line ^ (line >> 7 & 7) << 4);
  }
  float element(uint32_t row, uint32_t column) const {
    uint16_t bits;
    std::memcpy(&bits, piece(row, column) + 2 * (column % 8), sizeof bits);
    return product_ == Product::kBF16 ? bits_to_float(uint32_t{bits} << 16) : half_to_float(bits);
  }

  // Of the running thread, in the name of its warp: the pieces may be read, and are remembered.
  void read(uint32_t first_row, uint32_t n_rows, uint32_t n_columns, PendingProducts& of) const {
    for (uint32_t row = first_row; row < first_row + n_rows; ++row) {
      for (uint32_t column = 0; column < n_columns; column += 8) {
        const std::byte* at = piece(row, column);
        begin_.region()->check(at, sizeof(Bytes16), alignof(Bytes16), Touch::kRead);
        begin_.region()->check_fenced(at, sizeof(Bytes16));
        PendingProducts::Piece& kept = of.open.pieces.emplace_back();
        kept.at = at;
        std::memcpy(kept.bytes.data(), at, sizeof(Bytes16));
      }
    }
  }

 private:
  Pointer<const uint16_t> begin_;
  Product product_;
};

PendingProducts& open_products() {
  PendingProducts& products = Block::running()->products();
  if (!products.are_open)
    throw Fault(FaultKind::kWarp, "a product of panels is asked for without begin_products()");
  return products;
}

// The sums as they are so far; the registers hold NaN.
std::array<std::array<float, 4>, 8>& sums_of(PendingProducts& products, float (*d)[4]) {
  for (PendingProducts::Sums& sums : products.open.sums)
    if (sums.d == d) return sums.values;
  PendingProducts::Sums& sums = products.open.sums.emplace_back();
  sums.d = d;
  for (uint32_t n = 0; n < 8; ++n) {
    for (uint32_t i = 0; i < 4; ++i) {
      sums.values[n][i] = d[n][i];
      d[n][i] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  return sums.values;
}

// This thread's rows of A: g and g + 8 of its warp.
using Rows = std::array<std::array<float, kDepth>, 2>;

template <class ElementOfB>  // (k, column)
void add(PendingProducts& products, float (*d)[4], const Rows& a, const ElementOfB& b) {
  std::array<std::array<float, 4>, 8>& sums = sums_of(products, d);
  const uint32_t t = Block::running()->thread() % kWarpLanes % 4;
  for (uint32_t n = 0; n < 8; ++n) {
    for (uint32_t e = 0; e < 2; ++e) {
      const uint32_t column = 8 * n + 2 * t + e;
      double upper = sums[n][e], lower = sums[n][2 + e];
      for (uint32_t k = 0; k < kDepth; ++k) {
        const double x = b(k, column);
        upper += double{a[0][k]} * x;
        lower += double{a[1][k]} * x;
      }
      sums[n][e] = static_cast<float>(upper);
      sums[n][2 + e] = static_cast<float>(lower);
    }
  }
}

uint32_t warp_of_group() { return Block::running()->thread() % kGroupSize / kWarpLanes; }
bool is_first_lane() { return Block::running()->thread() % kWarpLanes == 0; }

// Columns 0 to 63 of D: B is the rows of one panel.
void multiply_panel_rows(Product product, float (*d)[4], Pointer<const uint16_t> a,
                         Pointer<const uint16_t> b, Site site) {
  PendingProducts& products = open_products();
  const Panel left(a, kPanelWidth - kDepth, product), right(b, kPanelWidth - kDepth, product);
  Block::running()->meet_group(to_bits(a.raw()) ^ std::rotl(to_bits(b.raw()), 32), site);
  const uint32_t first = 16 * warp_of_group(), g = Block::running()->thread() % kWarpLanes / 4;
  if (is_first_lane()) {
    left.read(first, 16, kDepth, products);
    right.read(0, kPanelWidth, kDepth, products);
  }
  Rows rows;
  for (uint32_t r = 0; r < 2; ++r)
    for (uint32_t k = 0; k < kDepth; ++k) rows[r][k] = left.element(first + g + 8 * r, k);
  add(products, d, rows, [&](uint32_t k, uint32_t column) { return right.element(column, k); });
}

}  // namespace

void begin_products() {
  need_hopper();
  Block::running()->products().are_open = true;
}

void commit_products() {
  PendingProducts& products = open_products();
  products.groups.push_back(std::exchange(products.open, {}));
  products.are_open = false;
}

void wait_for_products(uint32_t n_left, float (*d)[4], uint32_t n) {
  std::list<PendingProducts::Group>& groups = Block::running()->products().groups;
  for (; groups.size() > n_left; groups.pop_front()) {
    for (const PendingProducts::Piece& piece : groups.front().pieces) {
      if (std::memcmp(piece.at, piece.bytes.data(), piece.bytes.size()) == 0) continue;
      throw Fault(FaultKind::kRace, "a panel was written while products of it were under way" +
                                        Block::running()->since());
    }
    for (const PendingProducts::Sums& sums : groups.front().sums) {
      if (sums.d < d || sums.d + 8 > d + n)
        throw Fault(FaultKind::kWarp, "products are finished that sum into other registers");
      std::memcpy(sums.d, sums.values.data(), sizeof sums.values);
    }
  }
}

void multiply_rows(Product product, bool adds, float (*d)[4], Pointer<const uint16_t> a,
                   Pointer<const uint16_t> b, Site site) {
  for (uint32_t n = 0; n < 16 && !adds; ++n) std::fill_n(d[n], 4, 0.0f);
  multiply_panel_rows(product, d, a, b, site);
  multiply_panel_rows(product, d + 8, a, b + kPanelElements, site);
}

void multiply_columns(Product product, float (*d)[4], const uint32_t (&a)[4],
                      Pointer<const uint16_t> b, Site site) {
  PendingProducts& products = open_products();
  const Panel right(b, 0, product);
  Block& block = *Block::running();
  // Lanes of a row exchange what they hold of it.
  Rows rows;
  const uint32_t g = block.thread() % kWarpLanes / 4;
  for (uint32_t i = 0; i < 4; ++i) {
    block.meet(Meeting::kExchange, kAllLanes, a[i], site);
    for (uint32_t t = 0; t < 4; ++t) {
      const auto pair = static_cast<uint32_t>(block.exchanged(4 * g + t));
      for (uint32_t e = 0; e < 2; ++e) {
        const uint32_t bits = pair >> (16 * e) & 0xffffu;
        rows[i % 2][i / 2 * 8 + 2 * t + e] =
            product == Product::kBF16 ? bits_to_float(bits << 16) : half_to_float(bits);
      }
    }
  }
  block.meet_group(to_bits(b.raw()), site);
  if (is_first_lane()) right.read(0, kDepth, kPanelWidth, products);
  add(products, d, rows, [&](uint32_t k, uint32_t column) { return right.element(k, column); });
}

}  // namespace kvasir::cuda::emulation
