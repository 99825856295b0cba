// What kvasir.cuda does beside the cases of every backend: blocks and views on the device, pieces
// and waves of a prompt, what it refuses. On the emulation, where every access is checked.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/emulation/memory.h"
#include "kernels/cuda/runtime.h"
#include "tests/plugins/attention/attention_case.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr const char* kBackend = KVASIR_TEST_BACKEND;

// Copies of host memory on the device, each an allocation of its own.
class OnDevice {
 public:
  OnDevice() = default;
  ~OnDevice() {
    for (void* data : data_) cuda::free_memory(data);
  }
  OnDevice(const OnDevice&) = delete;
  void* copy(const void* from, uint64_t bytes) {
    void* data = data_.emplace_back(cuda::allocate_memory(bytes));
    cuda::copy_to_device(data, from, bytes, {});
    return data;
  }
  void move(kvasir_view& view) {
    uint64_t bytes = sizeof(float);
    for (uint32_t d = 0; d < view.rank; ++d) bytes *= view.shape[d];
    view.data = copy(view.data, bytes);
    view.mem_kind = KVASIR_MEM_DEVICE;
  }

 private:
  std::vector<void*> data_;
};

// K and V of all leases; the case's formats must be of the device, too.
void move_blocks(AttentionCase& c, OnDevice& device) {
  for (auto& leases : c.leases) {
    for (kvasir_lease& lease : leases) {
      const kvasir_kv_format& f = c.formats[lease.format];
      lease.k = device.copy(lease.k, f.k_token_stride * c.geometry.block_size);
      lease.v = device.copy(lease.v, f.v_token_stride * c.geometry.block_size);
    }
  }
  for (kvasir_kv_format& f : c.formats) f.mem_kind = KVASIR_MEM_DEVICE;
}

AttentionResult run_bound(AttentionCase& c, const OptionValues& options = {}) {
  FakeHost host(1);
  Attention backend(host, kBackend, options);
  backend.bind(c.geometry);
  return run(backend, c);
}

// A decoded token and a piece of a prompt, in blocks and in tokens with weights.
void add_some_of_all(AttentionCase& c) {
  const size_t blocks = c.add_part({70, 300});
  c.parts[blocks].dist_max = 250;
  c.add_ranges_of_all_heads(blocks, 0, 2, c.add_tokens(blocks, 0, 280, 0));
  const size_t tokens = c.add_part({70, 300}, KVASIR_UNIT_TOKEN);
  c.add_tokens(tokens, 20, 40, 1);
  c.set_items(tokens, {0, 3, 17, 20, 39});
  c.parts[tokens].log_weight = c.floats(5);
  c.parts[tokens].weight_width = 1;
  c.add_range(tokens, 0, 0, 1, 0, 3);
  c.add_range(tokens, 1, 1, 1, 2, 5);
}

}  // namespace

TEST_SUITE("plugins/cuda") {
  TEST_CASE("K, V, queries and results on the device give the bits that they give on the host") {
    AttentionCase host_case(6, 2, 32, 32), c(6, 2, 32, 32);
    add_some_of_all(host_case);
    add_some_of_all(c);
    const AttentionResult expected = run_bound(host_case);
    REQUIRE_MESSAGE(expected.status == KVASIR_OK, expected.text);
    FakeHost host(1);
    Attention on_host(host, kBackend);
    on_host.bind(host_case.geometry);
    const std::vector<float> wanted_mass = mass(on_host, host_case, expected.lse, 3);

    OnDevice device;
    move_blocks(c, device);
    Attention backend(host, kBackend);
    backend.bind(c.geometry);
    AttentionResult moved = run(backend, c);  // blocks only
    CHECK(moved.o == expected.o);
    CHECK(moved.lse == expected.lse);

    for (kvasir_attn_part& part : c.parts) {
      device.move(part.q);
      device.move(part.q_pos);
    }
    const kvasir_attn_in in = c.input();
    std::vector<float> o(expected.o.size(), kUntouched), lse(expected.lse.size(), kUntouched);
    kvasir_attn_out out{sizeof out, 0, sdk::host_view(o.data(), {2, 6, 32}),
                        sdk::host_view(lse.data(), {2, 6}), 0};
    device.move(out.o);
    device.move(out.lse);
    kvasir_step step{};
    step.struct_size = sizeof step;
    REQUIRE_MESSAGE(backend->run(backend.self(), &step, &in, &out, backend.err()) == KVASIR_OK,
                    backend.text());
    cuda::copy_to_host(o.data(), out.o.data, o.size() * sizeof(float), {});
    cuda::copy_to_host(lse.data(), out.lse.data, lse.size() * sizeof(float), {});
    CHECK(o == expected.o);
    CHECK(lse == expected.lse);

    const auto offsets = key_offsets(c);
    std::vector<float> value(wanted_mass.size(), kUntouched);
    kvasir_attn_mass mass_out{sizeof mass_out, 3, offsets.data(), out.lse,
                              sdk::host_view(value.data(), {offsets.back(), 3})};
    device.move(mass_out.value);
    REQUIRE(backend->mass(backend.self(), &step, &in, &mass_out, backend.err()) == KVASIR_OK);
    cuda::copy_to_host(value.data(), mass_out.value.data, value.size() * sizeof(float), {});
    CHECK(value == wanted_mass);
  }

  TEST_CASE("of a long context those blocks travel that a list names, and no table of all") {
    AttentionCase c(4, 2, 16, 16);
    const size_t blocks = c.add_part({48000});
    c.add_tokens(blocks, 0, 48000);  // 3,000 blocks, of which a table for two heads has 240 KB
    c.set_items(blocks, {7, 0, 2999, 7});
    c.add_range(blocks, 0, 0, 1, 0, 3);
    c.add_range(blocks, 1, 0, 1, 1, 4);
    const size_t tokens = c.add_part({48000}, KVASIR_UNIT_TOKEN);
    c.add_tokens(tokens, 0, 48000);
    c.set_items(tokens, {47999, 16, 31, 16});
    c.add_range(tokens, 0, 0, 1, 0, 3);
    c.add_range(tokens, 1, 0, 1, 1, 4);
    FakeHost host(1);
    Attention reference(host, "reference");
    reference.bind(c.geometry);
    const AttentionResult expected = run(reference, c);
    REQUIRE_MESSAGE(expected.status == KVASIR_OK, expected.text);
    cuda::emulation::set_memory(uint64_t{96} << 10);
    const AttentionResult actual = run_bound(c);
    cuda::emulation::set_memory(uint64_t{16} << 30);
    REQUIRE_MESSAGE(actual.status == KVASIR_OK, actual.text);
    check_same(actual.o, expected.o, 1e-5f);
    check_same(actual.lse, expected.lse, 1e-5f);
  }

  TEST_CASE("a query of a prompt gets the same bits in pieces of any size, and in waves") {
    const uint32_t n_q = 70;
    const auto build = [](AttentionCase& c) {
      std::vector<uint32_t> positions(n_q);
      std::iota(positions.begin(), positions.end(), 240);
      const size_t part = c.add_part(positions);
      c.add_tokens(part, 0, 310, 0);
    };
    const auto whole_with = [&](const OptionValues& options) {
      AttentionCase c(16, 1, 256, 256);
      build(c);
      c.add_ranges_of_all_heads(0, 0, n_q, {0, c.leases[0].size()});
      return run_bound(c, options);
    };
    const AttentionResult whole = whole_with({});
    REQUIRE_MESSAGE(whole.status == KVASIR_OK, whole.text);
    // 16 heads of 257 floats per query: a MiB holds 63 queries.
    const AttentionResult waves = whole_with({{"partial_mib", int64_t{1}}});
    CHECK(waves.o == whole.o);
    CHECK(waves.lse == whole.lse);
    AttentionCase pieces(16, 1, 256, 256);
    build(pieces);
    uint32_t begin = 0;
    for (const uint32_t n : {1u, 20u, 2u, 47u}) {
      const uint64_t n_keys = 240 + begin + n;  // those that are there by then
      pieces.add_range(0, 0, begin, n, 0, (n_keys + 15) / 16, KVASIR_ATTN_RANGE_PREFILL);
      begin += n;
    }
    const AttentionResult cut = run_bound(pieces);
    CHECK(cut.o == whole.o);
    CHECK(cut.lse == whole.lse);
  }

  TEST_CASE("prompts are multiplied in f16 or bf16 where the model computes so, and no more") {
    for (const uint32_t format : {0u, 2u}) {  // f16, bf16
      const auto run_with = [&](uint32_t compute, const OptionValues& options, bool is_mixed) {
        AttentionCase c(4, 2, 32, 32);
        c.geometry.compute = compute;
        const size_t part = c.add_part({50, 51, 52, 53});
        const auto items = c.add_tokens(part, 0, 54, is_mixed ? format : 0);
        c.add_ranges_of_all_heads(part, 0, 3, items);
        c.add_ranges_of_all_heads(part, 3, 1, items);  // a decoded token
        if (!is_mixed) {
          c.formats = {c.formats[format]};
          c.geometry.n_formats = 1;
          c.geometry.formats = c.formats.data();
          for (size_t i = 0; i < c.leases[part].size(); ++i)  // the same numbers in this type
            c.leases[part][i] =
                c.lease(static_cast<uint32_t>(16 * i), c.leases[part][i].n_tokens, 0);
        }
        AttentionResult r = run_bound(c, options);
        REQUIRE_MESSAGE(r.status == KVASIR_OK, r.text);
        return r;
      };
      const size_t prompt = size_t{3} * 4 * 32;
      const AttentionResult exact = run_with(KVASIR_DTYPE_F32, {}, false);
      const AttentionResult half = run_with(KVASIR_DTYPE_BF16, {}, false);
      CHECK(!std::equal(exact.o.begin(), exact.o.begin() + prompt, half.o.begin()));
      check_same(half.o, exact.o, format == 0 ? 4e-3f : 3e-2f);
      CHECK(std::equal(exact.o.begin() + prompt, exact.o.end(), half.o.begin() + prompt));
      CHECK(run_with(KVASIR_DTYPE_BF16, {{"arithmetic", "f32"}}, false).o == exact.o);
      const AttentionResult mixed = run_with(KVASIR_DTYPE_BF16, {}, true);  // formats of all types
      CHECK(mixed.o == run_with(KVASIR_DTYPE_F32, {}, true).o);
    }
  }

  TEST_CASE("what a call took of the device is given back with the instance") {
    const uint64_t before = cuda::emulation::n_allocated();
    AttentionCase c;
    add_some_of_all(c);
    CHECK(run_bound(c).status == KVASIR_OK);
    CHECK(cuda::emulation::n_allocated() == before);
  }

  TEST_CASE("what it does not attend to is refused with the remedy") {
    FakeHost host(1);
    AttentionCase wide(2, 1, 288, 32);
    Attention backend(host, kBackend);
    CHECK(backend->base.validate(backend.self(), &wide.geometry, backend.err()) ==
          KVASIR_ERR_UNSUPPORTED);
    CHECK(backend.text() ==
          "heads of 288 elements, kvasir.cuda attends to at most 256: take [attention] plugin = "
          "\"cpu\" for this model");

    AttentionCase mixed;
    OnDevice device;
    const size_t part = mixed.add_part({40});
    mixed.add_tokens(part, 0, 20, 0);
    mixed.add_tokens(part, 20, 20, 1);
    mixed.add_ranges_of_all_heads(part, 0, 1, {0, 4});
    mixed.formats[1].mem_kind = KVASIR_MEM_DEVICE;
    const AttentionResult r = run_bound(mixed);
    CHECK(r.status == KVASIR_ERR_INVALID);
    CHECK(r.text == "a part whose leases lie in host and in device memory: make two of it");

    AttentionCase keys;
    const size_t only = keys.add_part({40});
    keys.add_ranges_of_all_heads(only, 0, 1, keys.add_tokens(only, 0, 20, 0));
    Attention bound(host, kBackend);
    bound.bind(keys.geometry);
    const kvasir_attn_in in = keys.input();
    const std::vector<uint64_t> offsets = {0, 19, 40};
    std::vector<float> lse(6), value(40);
    const kvasir_attn_mass out{sizeof out, 1, offsets.data(), sdk::host_view(lse.data(), {1, 6}),
                               sdk::host_view(value.data(), {40, 1})};
    kvasir_step step{};
    step.struct_size = sizeof step;
    CHECK(bound->mass(bound.self(), &step, &in, &out, bound.err()) == KVASIR_ERR_INVALID);
    CHECK(bound.text() == "mass: range 0 has 20 keys, its offsets say another number");
  }
}
