// What kvasir.cuda does beside the cases of every backend: blocks and views on the device, pieces
// and waves of a prompt, what it refuses. On the emulation, where every access is checked.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/ext/draft/stream.h>

#include "kernels/cuda/emulation/hopper.h"
#include "kernels/cuda/emulation/memory.h"
#include "tests/plugins/cuda/on_device.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr const char* kBackend = KVASIR_TEST_BACKEND;

AttentionResult run_bound(AttentionCase& c, const OptionValues& options = {}) {
  FakeHost host(1);
  Attention backend(host, kBackend, options);
  backend.bind(c.geometry);
  return run(backend, c);
}

AttentionResult run_reference(AttentionCase& c) {
  FakeHost host(1);
  Attention reference(host, "reference");
  reference.bind(c.geometry);
  AttentionResult expected = run(reference, c);
  REQUIRE_MESSAGE(expected.status == KVASIR_OK, expected.text);
  return expected;
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

// Three tokens of a prompt or one that is decoded, over f16. has_hopper: the device, once all is
// bound.
AttentionResult run_with_instructions(const char* instructions, bool is_prompt, bool has_hopper) {
  AttentionCase c(4, 2, 64, 64);
  c.geometry.may_round = 1;
  c.formats = {c.formats[0]};
  c.geometry.n_formats = 1;
  c.geometry.formats = c.formats.data();
  const size_t part = c.add_part({150, 151, 152});
  const auto items = c.add_tokens(part, 0, 153, 0);
  c.add_ranges_of_all_heads(part, 0, is_prompt ? 3 : 1, items);
  FakeHost host(1);
  Attention backend(host, kBackend, {{"instructions", instructions}});
  backend.bind(c.geometry);
  cuda::emulation::has_hopper() = has_hopper;
  AttentionResult result = run(backend, c);
  cuda::emulation::has_hopper() = true;
  return result;
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

  TEST_CASE("what a decoded token launches is one graph when it comes again, with new numbers") {
    const auto add = [](AttentionCase& c, uint32_t n, OnDevice& device) {
      const size_t part = c.add_part({n - 1, n - 1});
      const auto items = c.add_tokens(part, 0, n, 0);
      c.add_ranges_of_all_heads(part, 0, 1, items);
      c.add_ranges_of_all_heads(part, 1, 1, items);
      move_blocks(c, device);
    };
    AttentionCase c(6, 2, 32, 32), longer(6, 2, 32, 32);
    OnDevice device;
    add(c, 300, device);
    add(longer, 600, device);
    FakeHost host(1);
    Attention backend(host, kBackend);
    backend.bind(c.geometry);
    struct Made {
      uint64_t kernels, graphs;
      bool operator==(const Made&) const = default;
    };
    const auto made_by = [&](AttentionCase& some) {
      // Other queries each time, over the same blocks.
      auto* q = static_cast<float*>(some.parts[0].q.data);
      for (uint64_t i = 0; i < 2 * 6 * 32; ++i) q[i] = -0.75f * q[i] + 0.01f;
      const AttentionResult expected = run_bound(some);
      const cuda::Launches before = cuda::launches();
      const AttentionResult result = run(backend, some);
      const cuda::Launches after = cuda::launches();
      REQUIRE_MESSAGE(result.status == KVASIR_OK, result.text);
      CHECK(result.o == expected.o);
      CHECK(result.lse == expected.lse);
      return Made{after.kernels - before.kernels, after.graphs - before.graphs};
    };
    CHECK(made_by(c) == Made{2, 0});
    for (int i = 0; i < 3; ++i) CHECK(made_by(c) == Made{0, 1});
    CHECK(made_by(longer) == Made{2, 0});
    CHECK(made_by(longer) == Made{0, 1});
    const auto* user = static_cast<const kvasir_stream_user*>(
        backend->base.get_extension(backend.self(), KVASIR_EXT_STREAM_USER));
    REQUIRE(user);
    const cuda::Stream stream = cuda::make_stream();
    const auto lend = [&](cuda::Stream to) {
      return user->set_stream(backend.self(), reinterpret_cast<uintptr_t>(to.handle),
                              backend.err());
    };
    REQUIRE(lend(stream) == KVASIR_OK);  // those of another stream are gone
    CHECK(made_by(longer) == Made{2, 0});
    CHECK(made_by(longer) == Made{0, 1});
    REQUIRE(lend({}) == KVASIR_OK);
    cuda::destroy_stream(stream);
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
    const AttentionResult expected = run_reference(c);
    cuda::emulation::set_memory(uint64_t{96} << 10);
    const AttentionResult actual = run_bound(c);
    cuda::emulation::set_memory(uint64_t{16} << 30);
    REQUIRE_MESSAGE(actual.status == KVASIR_OK, actual.text);
    check_same(actual.o, expected.o, 1e-5f);
    check_same(actual.lse, expected.lse, 1e-5f);
  }

  TEST_CASE("ranges of a part share none, some or all of their items on the device") {
    for (const bool has_list : {false, true}) {
      CAPTURE(has_list);
      AttentionCase c(4, 2, 16, 16);
      const size_t part = c.add_part({160, 161, 162, 163});
      c.add_tokens(part, 0, 160, 0);
      if (has_list) c.set_items(part, {7, 0, 9, 3, 5, 1, 2, 8, 6, 4});
      c.add_range(part, 0, 0, 1, 2, 5);
      c.add_range(part, 1, 0, 1, 6, 9);   // others
      c.add_range(part, 0, 1, 1, 4, 8);   // some of both
      c.add_range(part, 1, 1, 1, 4, 8);   // the same
      c.add_range(part, 0, 2, 1, 5, 7);   // fewer
      c.add_range(part, 1, 2, 1, 0, 10);  // more
      c.add_range(part, 0, 3, 1, 3, 3);   // none
      c.add_range(part, 1, 3, 1, 0, 1);
      const AttentionResult expected = run_reference(c);
      OnDevice device;
      move_blocks(c, device);
      const AttentionResult actual = run_bound(c);
      REQUIRE_MESSAGE(actual.status == KVASIR_OK, actual.text);
      check_same(actual.o, expected.o, 1e-5f);
      check_same(actual.lse, expected.lse, 1e-5f);
    }
  }

  TEST_CASE("a lease of one kv head is refused in a range of another one over the same items") {
    AttentionCase c(4, 2, 16, 16);
    const size_t part = c.add_part({40});
    c.add_ranges_of_all_heads(part, 0, 1, c.add_tokens(part, 0, 40, 0));
    OnDevice device;
    move_blocks(c, device);
    c.leases[part][1].kv_head = 0;
    const AttentionResult r = run_bound(c);
    CHECK(r.status == KVASIR_ERR_INVALID);
    CHECK(r.text == "a lease of kv head 0 in a range of kv head 1");
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
    // 16 heads of 262 floats per query, with what waves leave: a MiB holds 62 queries.
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

  TEST_CASE("what lies in host memory travels in waves that fit, and gives the bits of one") {
    const auto build = [](AttentionCase& c) {  // 1,100 keys of 2 KiB for each of two heads
      const std::vector<uint32_t> positions = {1090, 1091, 1099, 700};
      const size_t blocks = c.add_part(positions),
                   tokens = c.add_part(positions, KVASIR_UNIT_TOKEN);
      const auto all = c.add_tokens(blocks, 0, 1100, 1);
      c.add_ranges_of_all_heads(blocks, 0, 2, all);
      c.add_ranges_of_all_heads(blocks, 2, 1, all);
      c.add_tokens(tokens, 0, 1100, 1);
      std::vector<uint32_t> items;
      for (uint32_t t = 0; t < 1100; ++t)
        if (t % 7 != 3) items.push_back(t);
      const auto n = items.size();
      c.parts[tokens].log_weight = c.floats(n);
      c.parts[tokens].weight_width = 1;
      c.set_items(tokens, std::move(items));
      c.add_range(tokens, 1, 3, 1, 5, n);
    };
    FakeHost host(1);
    const auto told = [&](int64_t carry_mib, uint64_t memory) {
      AttentionCase c(4, 2, 256, 256);
      build(c);
      Attention backend(host, kBackend, {{"carry_mib", carry_mib}});
      backend.bind(c.geometry);
      cuda::emulation::set_memory(memory);
      AttentionResult r = run(backend, c);
      std::vector<float> m;
      if (r.status == KVASIR_OK) m = mass(backend, c, r.lse, 2);
      cuda::emulation::set_memory(uint64_t{16} << 30);
      return std::pair(r, m);
    };
    const auto [whole, mass_of_whole] = told(256, uint64_t{16} << 30);
    REQUIRE_MESSAGE(whole.status == KVASIR_OK, whole.text);
    constexpr uint64_t kLittle = uint64_t{1536} << 10;  // a MiB of rows, and what is beside it
    const auto [waves, mass_of_waves] = told(1, kLittle);
    REQUIRE_MESSAGE(waves.status == KVASIR_OK, waves.text);
    CHECK(waves.o == whole.o);
    CHECK(waves.lse == whole.lse);
    CHECK(mass_of_waves == mass_of_whole);
    CHECK(told(256, kLittle).first.status == KVASIR_ERR_OUT_OF_MEMORY);
  }

  TEST_CASE("blocks whose rows lie one after the other travel from where they are") {
    AttentionCase rows(4, 2, 64, 32), c(4, 2, 64, 32);
    for (AttentionCase* one : {&rows, &c}) {
      const size_t part = one->add_part({299, 300, 301});
      one->add_ranges_of_all_heads(part, 0, 3, one->add_tokens(part, 0, 302, 4));  // q8_0
    }
    kvasir_kv_format& f = c.formats[4];  // [kv_head][token], as dram has it
    std::swap(f.k_head_stride, f.k_token_stride);
    std::swap(f.v_head_stride, f.v_token_stride);
    f.k_token_stride = rows.formats[4].k_head_stride;
    f.v_token_stride = rows.formats[4].v_head_stride;
    f.k_head_stride = c.geometry.block_size * f.k_token_stride;
    f.v_head_stride = c.geometry.block_size * f.v_token_stride;
    for (kvasir_lease& lease : c.leases[0]) {
      const auto turn = [&](void*& at, uint64_t row) {
        const auto* from = static_cast<const std::byte*>(at);
        std::vector<std::byte>& to = c.memory.emplace_back(row * 2 * c.geometry.block_size);
        for (uint32_t head = 0; head < 2; ++head)
          for (uint32_t t = 0; t < c.geometry.block_size; ++t)
            std::copy_n(from + (2 * t + head) * row, row,
                        to.data() + (head * c.geometry.block_size + t) * row);
        at = to.data();
      };
      turn(lease.k, f.k_token_stride);
      turn(lease.v, f.v_token_stride);
    }
    const AttentionResult expected = run_bound(rows), actual = run_bound(c);
    REQUIRE_MESSAGE(actual.status == KVASIR_OK, actual.text);
    CHECK(actual.o == expected.o);
    CHECK(actual.lse == expected.lse);
  }

  TEST_CASE("a query beyond f16 is computed in f32 where its keys travel in waves, too") {
    const auto run_with = [&](int64_t carry_mib) {
      AttentionCase c(2, 1, 256, 256);
      c.geometry.may_round = 1;
      c.geometry.softmax_scale = 1e-6f;
      c.formats = {c.formats[0]};
      c.geometry.n_formats = 1;
      c.geometry.formats = c.formats.data();
      const size_t part = c.add_part({1497, 1498, 1499});
      c.add_ranges_of_all_heads(part, 0, 3, c.add_tokens(part, 0, 1500));
      auto* q = static_cast<float*>(c.parts[part].q.data);
      for (size_t i = 512; i < 1024; ++i) q[i] *= 1e5f;  // of the second query
      return run_bound(c, {{"carry_mib", carry_mib}});
    };
    const AttentionResult whole = run_with(256), waves = run_with(1);
    REQUIRE_MESSAGE(waves.status == KVASIR_OK, waves.text);
    CHECK(std::equal(whole.o.begin(), whole.o.begin() + 512, waves.o.begin()));
    check_same(waves.o, whole.o, 1e-5f);
    check_same(waves.lse, whole.lse, 1e-5f);
  }

  TEST_CASE("the plan counts what travels, up to the option") {
    AttentionCase c(4, 2, 128, 128);
    c.formats = {c.formats[0]};
    c.geometry.n_formats = 1;
    c.geometry.formats = c.formats.data();
    c.geometry.max_sequences = 1;
    FakeHost host(1);
    const auto planned = [&](uint64_t keys, int64_t carry_mib) {
      Attention backend(host, kBackend, {{"carry_mib", carry_mib}});
      backend.bind(c.geometry);
      const kvasir_attn_shape shape{sizeof shape, 1, keys};
      kvasir_attn_plan plan{sizeof plan, 0, 0};
      REQUIRE(backend->plan(backend.self(), &shape, &plan, backend.err()) == KVASIR_OK);
      return plan.scratch_bytes;
    };
    CHECK(planned(1024, 256) - planned(512, 256) > 512 * 2 * 512);
    CHECK(planned(1 << 20, 3) - planned(1 << 20, 2) == 1 << 20);
    c.formats[0].mem_kind = KVASIR_MEM_DEVICE;
    CHECK(planned(1 << 20, 3) == planned(1 << 20, 2));
  }

  TEST_CASE("prompts are multiplied in f16 or bf16 where that may be, and no more") {
    for (const uint32_t format : {0u, 2u}) {  // f16, bf16
      const auto run_with = [&](bool may_round, const OptionValues& options, bool is_mixed) {
        AttentionCase c(4, 2, 32, 32);
        c.geometry.may_round = may_round;
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
      const AttentionResult exact = run_with(false, {}, false);
      const AttentionResult half = run_with(true, {}, false);
      CHECK(!std::equal(exact.o.begin(), exact.o.begin() + prompt, half.o.begin()));
      check_same(half.o, exact.o, format == 0 ? 4e-3f : 3e-2f);
      CHECK(std::equal(exact.o.begin() + prompt, exact.o.end(), half.o.begin() + prompt));
      CHECK(run_with(true, {{"arithmetic", "f32"}}, false).o == exact.o);
      const AttentionResult mixed = run_with(true, {}, true);  // formats of all types
      CHECK(mixed.o == run_with(false, {}, true).o);
    }
  }

  TEST_CASE("the instructions of Hopper give what the portable ones do") {
    for (const bool is_prompt : {true, false}) {
      const AttentionResult portable = run_with_instructions("portable", is_prompt, true);
      const AttentionResult hopper = run_with_instructions("hopper", is_prompt, true);
      REQUIRE_MESSAGE(portable.status == KVASIR_OK, portable.text);
      REQUIRE_MESSAGE(hopper.status == KVASIR_OK, hopper.text);
      check_same(hopper.o, portable.o, 4e-3f);
      check_same(hopper.lse, portable.lse, 4e-3f);
      // Those of the option are those that run; decoded tokens need none of Hopper.
      CHECK(run_with_instructions("portable", is_prompt, false).status == KVASIR_OK);
      const AttentionResult elsewhere = run_with_instructions("hopper", is_prompt, false);
      CHECK((elsewhere.text.find("9.0") != std::string::npos) == is_prompt);
    }
  }

  TEST_CASE("the instructions of Hopper are refused on another device") {
    FakeHost host(1);
    AttentionCase c(4, 2, 64, 64);
    cuda::emulation::has_hopper() = false;
    Attention hopper(host, kBackend, {{"instructions", "hopper"}});
    CHECK(hopper->base.validate(hopper.self(), &c.geometry, hopper.err()) ==
          KVASIR_ERR_UNSUPPORTED);
    CHECK(hopper.text() ==
          "the instructions of Hopper need compute capability 9.0, the emulated device has 8.0: "
          "take instructions = \"portable\" for kvasir.cuda");
    for (const char* others : {"portable", "auto"}) {
      Attention portable(host, kBackend, {{"instructions", others}});
      CHECK(portable->base.validate(portable.self(), &c.geometry, portable.err()) == KVASIR_OK);
    }
    cuda::emulation::has_hopper() = true;
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
