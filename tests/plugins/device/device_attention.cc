// Attention on the test device: the arithmetic is that of `inner`, everything it reads and writes
// lies on the device.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/shared/element_type.h"
#include "tests/plugins/device/device_memory.h"
#include "tests/plugins/device/inner_plugin.h"
#include "tests/plugins/fakes/fake.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr const char* kInner[] = {"reference", "cpu"};
constexpr kvasir_option_schema kOptions[] = {
    sdk::enum_option({.key = "inner", .help = "whose arithmetic"}, kInner, 0)};

class DeviceAttention {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_ATTENTION,
                     .id = "kvasir.test.device_attention",
                     .version = "0.1.0",
                     .name = "Attention on the test device",
                     .vendor = "Kvasir's tests",
                     .license = "Apache-2.0",
                     .summary = "test material",
                     .options = kOptions,
                     .provides = KVASIR_PROVIDE_MASS | KVASIR_PROVIDE_LOG_WEIGHT |
                                 KVASIR_PROVIDE_HEAD_LOG_WEIGHT | KVASIR_PROVIDE_TOKEN_ITEMS |
                                 KVASIR_PROVIDE_DISTANCE,
                     .dtypes = sdk::kElementTypes,
                     .mem_kinds_read = kDeviceOnly,
                     .mem_kinds_write = kDeviceOnly});

  DeviceAttention(const sdk::Host& host, const sdk::Options& options)
      : inner_(host.raw(), kInner[options.choice("inner")]) {}

  void bind(const kvasir_geometry& geometry) { inner_.bind(geometry); }
  void plan(const kvasir_attn_shape& shape, kvasir_attn_plan& out) {
    inner_.check(inner_->plan(inner_.self(), &shape, &out, inner_.err()));
  }
  void run(const sdk::Step& step, const kvasir_attn_in& in, kvasir_attn_out& out) {
    const DeviceMemory::Access access;
    const std::vector<kvasir_attn_part> parts = parts_of(in);
    const kvasir_attn_in inner_in{sizeof inner_in, in.flags, in.n_parts, sizeof parts[0],
                                  parts.data()};
    kvasir_attn_out inner_out{sizeof inner_out, 0, inside(out.o, "o"), inside(out.lse, "lse"), 0};
    inner_.check(inner_->run(inner_.self(), &step.raw(), &inner_in, &inner_out, inner_.err()));
    out.keys_skipped = inner_out.keys_skipped;
  }
  void mass(const sdk::Step& step, const kvasir_attn_in& in, const kvasir_attn_mass& out) {
    const DeviceMemory::Access access;
    const std::vector<kvasir_attn_part> parts = parts_of(in);
    const kvasir_attn_in inner_in{sizeof inner_in, in.flags, in.n_parts, sizeof parts[0],
                                  parts.data()};
    kvasir_attn_mass inner_out = out;
    inner_out.lse = inside(out.lse, "lse");
    inner_out.value = inside(out.value, "mass");
    inner_.check(inner_->mass(inner_.self(), &step.raw(), &inner_in, &inner_out, inner_.err()));
  }

 private:
  static std::vector<kvasir_attn_part> parts_of(const kvasir_attn_in& in) {
    std::vector<kvasir_attn_part> parts;
    for (const kvasir_attn_part& part : sdk::Strided(in.parts, in.n_parts, in.part_size)) {
      parts.push_back(part);
      parts.back().q = inside(part.q, "q");
      parts.back().q_pos = inside(part.q_pos, "q_pos");
      for (const auto& lease : sdk::Strided(part.leases, part.n_leases, part.lease_size))
        check_lease(lease);
    }
    return parts;
  }

  InnerPlugin<kvasir_attention> inner_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_ATTENTION, "kvasir.test.device_attention", "0.1.0", DeviceAttention)
