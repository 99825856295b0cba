// See tensor.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/tensor.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvasir::cuda {
namespace emulation {
namespace {

// What a lane brings to a product; it waits while others read.
struct Fragments {
  const uint32_t* a;
  const uint32_t* b;
};

float half_of(uint32_t pair, bool is_upper, Product product) {
  const uint32_t bits = is_upper ? pair >> 16 : pair & 0xffffu;
  return product == Product::kBF16 ? bits_to_float(bits << 16) : half_to_float(bits);
}

float tf32_of(uint32_t bits) {
  if (bits & 0x1fffu) {
    throw Fault(FaultKind::kWarp,
                "a number that was not rounded to tf32 is given to a tensor product");
  }
  return bits_to_float(bits);
}

// Row `row` of A and column `column` of B, by the tables of kernels/cuda/tensor.h.
class Matrices {
 public:
  using Line = std::array<float, 16>;  // over k
  Matrices(const Block& block, Product product) : product_(product) {
    std::ranges::transform(block.exchanged(), lanes_.begin(), from_bits<const Fragments*>);
  }
  uint32_t n_k() const { return product_ == Product::kTf32 ? 8 : 16; }
  Line a(uint32_t row) const {
    return line(row % 8,
                [&](const Fragments& f, uint32_t upper_k) { return f.a[row / 8 + 2 * upper_k]; });
  }
  Line b(uint32_t column) const {
    return line(column, [](const Fragments& f, uint32_t upper_k) { return f.b[upper_k]; });
  }

 private:
  template <class Register>
  Line line(uint32_t g, Register&& register_of) const {
    Line out{};
    for (uint32_t k = 0; k < n_k(); ++k) {
      if (product_ == Product::kTf32) {
        out[k] = tf32_of(register_of(*lanes_[4 * g + k % 4], k / 4));
      } else {
        const uint32_t pair = register_of(*lanes_[4 * g + k % 8 / 2], k / 8);
        out[k] = half_of(pair, k % 2 != 0, product_);
      }
    }
    return out;
  }

  std::array<const Fragments*, kWarpLanes> lanes_;
  Product product_;
};

uint32_t round_to_half(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 16 & 0x8000u;
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7fffu;
  if (magnitude >= 65520.0f) return sign | 0x7c00u;
  if (magnitude < 0x1p-14f)  // the distance of neighbours is 2^-24
    return sign | static_cast<uint32_t>(std::nearbyint(magnitude * 0x1p24f));
  const uint32_t rounded = (bits & 0x7fffffffu) + 0xfffu + (bits >> 13 & 1u);
  return sign | ((rounded - (112u << 23)) >> 13);
}
uint32_t round_to_bfloat(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return 0x7fffu;
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

}  // namespace

void multiply(Product product, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
              Site site) {
  Block& block = *Block::running();
  const Fragments mine{a, b};
  block.meet(Meeting::kExchange, kAllLanes, to_bits(&mine), site);
  const Matrices all(block, product);
  const uint32_t lane = block.thread() % kWarpLanes;
  const Matrices::Line rows[] = {all.a(lane / 4), all.a(lane / 4 + 8)};
  const Matrices::Line columns[] = {all.b(2 * (lane % 4)), all.b(2 * (lane % 4) + 1)};
  float sums[4];
  for (uint32_t i = 0; i < 4; ++i) {
    double sum = d[i];
    for (uint32_t k = 0; k < all.n_k(); ++k)
      sum += double{rows[i / 2][k]} * double{columns[i % 2][k]};
    sums[i] = static_cast<float>(sum);
  }
  block.meet(Meeting::kExchange, kAllLanes, 0, site);  // everyone has read all registers
  for (uint32_t i = 0; i < 4; ++i) d[i] = sums[i];
}

void load_matrices(uint32_t (&out)[4], Pointer<const uint16_t> row, bool is_transposed, Site site) {
  Block& block = *Block::running();
  row.check(sizeof(Bytes16), alignof(Bytes16), Touch::kRead);
  block.meet(Meeting::kExchange, kAllLanes, to_bits(row.raw()), site);
  const uint32_t lane = block.thread() % kWarpLanes, g = lane / 4, t = lane % 4;
  for (uint32_t m = 0; m < 4; ++m) {
    uint32_t halves[2];
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t of = is_transposed ? 2 * t + i : g, at = is_transposed ? g : 2 * t + i;
      const auto* from = from_bits<const uint16_t*>(block.exchanged(8 * m + of));
      halves[i] = Pointer<const uint16_t>(from + at, row.region()).read<uint16_t>();
    }
    out[m] = halves[0] | halves[1] << 16;
  }
}

}  // namespace emulation

uint32_t pack_f16(float low, float high) {
  return emulation::round_to_half(low) | emulation::round_to_half(high) << 16;
}
uint32_t pack_bf16(float low, float high) {
  return emulation::round_to_bfloat(low) | emulation::round_to_bfloat(high) << 16;
}

}  // namespace kvasir::cuda
