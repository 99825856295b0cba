// A backend against kvasir.reference through the C ABI, and both against what the headers promise:
// kvasir.cpu on every SIMD target, or the plugin file that KVASIR_TEST_BACKEND names.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_decode.h"
#include "kernels/attention_prefill_bf16.h"
#include "kernels/simd_target.h"
#include "tests/plugins/attention/attention_case.h"
#include "tests/support/effort.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir::test;

#ifdef KVASIR_TEST_BACKEND
constexpr const char* kBackend = KVASIR_TEST_BACKEND;
constexpr bool kIsCpu = false;
#else
constexpr const char* kBackend = "cpu";
constexpr bool kIsCpu = true;
#endif

constexpr float kTolerance = 1e-5f;        // f32 sums against double, see the kernels' tests
constexpr float kBf16Tolerance = 0x1p-6f;  // Q, K, V and P rounded by 2^-8 each, and logits near 1
constexpr float kIntegerTolerance = 0x1p-5f;  // P times a scale of V by 2^-8 of the largest of 32
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

std::vector<uint32_t> ascending(uint32_t n, uint32_t first) {
  std::vector<uint32_t> out(n);
  std::iota(out.begin(), out.end(), first);
  return out;
}

template <class Check>
void for_each_target(const Check& check) {
  if (kIsCpu) return for_each_simd_target(check);
  check();
}

// run() and mass() of both backends agree, whatever the number of workers and of memory nodes.
void check_backends(AttentionCase& c) {
  FakeHost lone;
  Attention reference(lone, "reference");
  reference.bind(c.geometry);
  const AttentionResult expected = run(reference, c);
  REQUIRE_MESSAGE(expected.status == KVASIR_OK, expected.text);
  const uint32_t group = c.geometry.n_q_heads / c.geometry.n_kv_heads;
  const auto mass_per_head = mass(reference, c, expected.lse, group);
  const auto mass_sum = mass(reference, c, expected.lse, 1);
  using Nodes = std::vector<int32_t>;
  for (const auto& [workers, nodes] :
       {std::pair{0u, Nodes{}}, {1u, Nodes{}}, {3u, Nodes{}}, {3u, Nodes{2, 0, 2}}}) {
    if (!kIsCpu && workers > 0) break;  // it uses none
    FakeHost host(workers, nodes);
    Attention backend(host, kBackend);
    backend.bind(c.geometry);
    for_each_target([&] {
      const AttentionResult actual = run(backend, c);
      REQUIRE_MESSAGE(actual.status == KVASIR_OK, actual.text);
      check_same(actual.o, expected.o, kTolerance);
      check_same(actual.lse, expected.lse, kTolerance);
      check_same(mass(backend, c, expected.lse, group), mass_per_head, kTolerance);
      check_same(mass(backend, c, expected.lse, 1), mass_sum, kTolerance);
    });
  }
}

// One call of kvasir.cpu.
AttentionResult run_cpu(AttentionCase& c, bool may_round, const OptionValues& options = {}) {
  FakeHost host(3);
  Attention cpu(host, "cpu", options);
  kvasir_geometry geometry = c.geometry;
  geometry.may_round = may_round;
  cpu.bind(geometry);
  AttentionResult result = run(cpu, c);
  REQUIRE_MESSAGE(result.status == KVASIR_OK, result.text);
  return result;
}

// Sequences of these lengths, one decoded token each, over their own blocks.
void add_decode_batch(AttentionCase& c, const std::vector<uint32_t>& lengths) {
  std::vector<uint32_t> positions;
  for (const uint32_t n : lengths) positions.push_back(n - 1);
  const size_t part = c.add_part(positions);
  for (uint32_t i = 0; i < lengths.size(); ++i) {
    c.add_ranges_of_all_heads(part, i, 1,
                              c.add_tokens(part, 0, lengths[i], i % c.geometry.n_formats));
  }
}

}  // namespace

TEST_SUITE("plugins/attention") {
  TEST_CASE("decode of a batch of unlike lengths and element types") {
    for (const auto& [q_heads, kv_heads, head_dim] :
         {std::tuple{6u, 2u, 24u}, {1u, 1u, 8u}, {8u, 1u, 64u}, {4u, 4u, 36u}}) {
      AttentionCase c(q_heads, kv_heads, head_dim, head_dim);
      add_decode_batch(c, {1, 15, 16, 17, 700});
      check_backends(c);
    }
  }

  TEST_CASE("long ranges cut by keys when there are fewer kv heads than workers") {
    AttentionCase c(2, 1, 16, 16);
    add_decode_batch(c, {9000, 40});
    check_backends(c);
  }

  TEST_CASE(
      "where attention may round, prompts are multiplied in bf16 over f16 and bf16, decoded tokens "
      "in integers over q8_0 and q4_0, and no more" *
      doctest::skip(!kIsCpu)) {
    const auto is_half = [](uint32_t format) { return format == 0 || format == 2; };
    const auto has_groups = [](uint32_t format) { return format >= 4; };
    for (uint32_t format = 0; format < 6; ++format) {
      if (emulated() && format % 3 != 0) continue;
      for (const uint32_t flags : {0u, KVASIR_ATTN_RANGE_PREFILL}) {
        CAPTURE(format);
        CAPTURE(flags);
        AttentionCase c(6, 2, 64, 64);
        c.geometry.softmax_scale = 0.125f;
        const size_t part = c.add_part(ascending(37, 100));
        c.add_ranges_of_all_heads(part, 0, 37, c.add_tokens(part, 0, 137, format), flags);
        for_each_simd_target([&] {
          kvasir::kernels::AttentionShape f16;
          f16.k_type = f16.v_type = kvasir::kernels::ElementType::kF16;
          const bool rounds =
              flags ? kvasir::kernels::has_attention_prefill_bf16(f16) &&
                          kvasir::kernels::bf16_is_faster() && is_half(format)
                    : has_groups(format) && kvasir::kernels::attention_decode_weight_steps(
                                                kvasir::kernels::ElementType::kQ8_0) > 0;
          const AttentionResult f32 = run_cpu(c, false);
          const AttentionResult rounded = run_cpu(c, true);
          CHECK((f32.o != rounded.o) == rounds);
          check_same(rounded.o, f32.o, has_groups(format) ? kIntegerTolerance : kBf16Tolerance);
          check_same(rounded.lse, f32.lse, kBf16Tolerance);
          const AttentionResult forced = run_cpu(c, true, {{"arithmetic", "f32"}});
          CHECK(forced.o == f32.o);
          CHECK(forced.lse == f32.lse);
        });
      }
    }
  }

  TEST_CASE("prefill sees exactly the keys at or before its position") {
    AttentionCase c;
    const size_t part = c.add_part(ascending(60, 100));
    c.add_ranges_of_all_heads(part, 0, 50, c.add_tokens(part, 0, 150));
    c.add_ranges_of_all_heads(part, 50, 3, c.add_tokens(part, 60, 150, 2));  // few queries
    c.add_ranges_of_all_heads(part, 53, 7, c.add_tokens(part, 40, 116, 1));
    check_backends(c);
    for (const uint32_t format : {3u, 4u}) {
      if (emulated() && format == 3) continue;
      AttentionCase groups(4, 2, 64, 96);
      const size_t only = groups.add_part(ascending(40, 100));
      groups.add_ranges_of_all_heads(only, 0, 40, groups.add_tokens(only, 0, 150, format));
      check_backends(groups);
    }
  }

  TEST_CASE("token items with a weight per item, or per item and query head") {
    for (const uint32_t width : {0u, 1u, 3u}) {
      AttentionCase c;
      const size_t part = c.add_part({500, 80}, KVASIR_UNIT_TOKEN);
      c.add_tokens(part, 0, 90);
      c.set_items(part, {0, 1, 5, 17, 33, 34, 47, 48, 79, 85, 3, 4, 88});
      c.add_range(part, 0, 0, 1, 0, 10);
      c.add_range(part, 1, 0, 1, 10, 13);
      c.add_range(part, 0, 1, 1, 2, 10);
      c.add_range(part, 1, 1, 1, 5, 5);  // nothing
      float* weights = c.floats(13 * std::max(1u, width));
      weights[2] = kMinusInfinity;
      if (width) c.parts[part].log_weight = weights;
      c.parts[part].weight_width = width;
      check_backends(c);
    }
  }

  TEST_CASE("block items with a weight per block and query head, blocks in any selection") {
    AttentionCase c;
    const size_t part = c.add_part({300});
    c.add_tokens(part, 0, 200);
    c.set_items(part, {0, 2, 3, 9, 12});
    c.add_range(part, 0, 0, 1, 0, 5);
    c.add_range(part, 1, 0, 1, 1, 3);
    float* weights = c.floats(15);
    weights[3] = weights[4] = weights[5] = kMinusInfinity;
    weights[9] = kMinusInfinity;
    c.parts[part].log_weight = weights;
    c.parts[part].weight_width = 3;
    check_backends(c);
  }

  TEST_CASE("parts with their own queries and distances make one softmax") {
    AttentionCase c;
    const auto positions = ascending(40, 200);
    const size_t near = c.add_part(positions);
    c.parts[near].dist_max = 64;
    c.add_ranges_of_all_heads(near, 0, 40, c.add_tokens(near, 100, 140));
    const size_t far = c.add_part(positions);
    c.parts[far].dist_min = 64;
    c.add_ranges_of_all_heads(far, 0, 40, c.add_tokens(far, 0, 210, 2));
    const size_t some = c.add_part(positions);
    c.add_range(some, 1, 30, 8, 0, 2);
    c.add_tokens(some, 0, 32, 1);
    check_backends(c);
  }

  TEST_CASE("single queries obey the distances to the token, in blocks and in lists") {
    for (const auto& [near, far] :
         {std::pair{0u, 1u}, {1u, 33u}, {16u, 48u}, {300u, UINT32_MAX}, {7u, 8u}, {100u, 50u}}) {
      AttentionCase c;
      const std::vector<uint32_t> positions = {120, 64, 5};
      const size_t blocks = c.add_part(positions);
      c.parts[blocks].dist_min = near;
      c.parts[blocks].dist_max = far;
      const auto keys = c.add_tokens(blocks, 30, 100);
      for (uint32_t q = 0; q < 3; ++q) c.add_ranges_of_all_heads(blocks, q, 1, keys);
      const size_t list = c.add_part(positions, KVASIR_UNIT_TOKEN);
      c.parts[list].dist_min = near;
      c.parts[list].dist_max = far;
      c.add_tokens(list, 10, 100, 1);
      c.set_items(list, {0, 7, 8, 47, 48, 53, 54, 55, 94, 99});
      for (uint32_t q = 0; q < 3; ++q) c.add_ranges_of_all_heads(list, q, 1, {0, 10});
      check_backends(c);
    }
  }

  TEST_CASE("a later part may name pairs that no earlier one did; others stay untouched") {
    AttentionCase c;
    const auto positions = ascending(6, 50);
    const size_t first = c.add_part(positions);
    c.add_range(first, 0, 1, 2, 0, 3);
    c.add_tokens(first, 0, 40);
    const size_t second = c.add_part(positions);
    c.add_range(second, 0, 0, 5, 0, 2);
    c.add_tokens(second, 40, 20);
    check_backends(c);
    FakeHost host(2);
    Attention backend(host, kBackend);
    backend.bind(c.geometry);
    const AttentionResult r = run(backend, c);
    for (uint32_t q = 0; q < 6; ++q) {
      for (uint32_t head = 0; head < 6; ++head) {
        CHECK((r.lse[q * 6 + head] == kUntouched) == (head >= 3 || q == 5));
      }
    }
  }

  TEST_CASE("positions in any order inside a block, and element types mixed in one range") {
    for (const uint32_t n_q : {1u, 12u}) {
      AttentionCase c(6, 2, 64, 32);
      const size_t part = c.add_part(ascending(n_q, 70));
      c.add_tokens(part, 0, 16, 0);
      c.add_tokens(part, 16, 16, 3);
      c.add_tokens(part, 32, 16, 1);
      c.add_tokens(part, 48, 16, 4);
      c.add_tokens(part, 64, 20, 2);
      c.add_tokens(part, 84, 5, 0);
      auto table = ascending(16, 60);
      std::shuffle(table.begin(), table.end(), c.random);
      c.leases[part][4].token_pos = c.numbers.emplace_back(table).data();
      c.add_ranges_of_all_heads(part, 0, n_q, {0, c.leases[part].size()});
      check_backends(c);
    }
  }

  TEST_CASE("a lease of one head starts at that head") {
    AttentionCase c;
    const size_t part = c.add_part({20});
    c.add_tokens(part, 0, 16);
    c.add_tokens(part, 0, 16);
    c.leases[part][1].kv_head = 1;
    c.add_range(part, 0, 0, 1, 0, 1);
    c.add_range(part, 1, 0, 1, 1, 2);
    check_backends(c);
  }

  TEST_CASE("softcap enters run and mass alike") {
    AttentionCase c;
    c.geometry.softcap = 2.0f;
    add_decode_batch(c, {200});
    check_backends(c);
  }

  TEST_CASE("the mass over everything attended sums to one per query head") {
    AttentionCase c;
    add_decode_batch(c, {333});
    FakeHost host(2);
    Attention backend(host, kBackend);
    backend.bind(c.geometry);
    const AttentionResult r = run(backend, c);
    const auto value = mass(backend, c, r.lse, 3);
    for (uint32_t head = 0; head < 6; ++head) {
      double sum = 0;
      for (size_t key = 0; key < 333; ++key) sum += value[(head / 3 * 333 + key) * 3 + head % 3];
      CHECK(sum == doctest::Approx(1.0).epsilon(1e-5));
    }
  }

  TEST_CASE("a sequence gets the same bits alone and in company") {
    const auto build = [](AttentionCase& c, bool company) {
      const size_t part = c.add_part({8999, 39});
      const auto own = c.add_tokens(part, 0, 9000);
      c.add_ranges_of_all_heads(part, 0, 1, own);
      if (company) c.add_ranges_of_all_heads(part, 1, 1, c.add_tokens(part, 0, 40));
    };
    AttentionCase alone(2, 1, 16, 16);
    AttentionCase company(2, 1, 16, 16);
    build(alone, false);
    build(company, true);
    FakeHost host(3);
    Attention backend(host, kBackend);
    backend.bind(alone.geometry);
    const AttentionResult a = run(backend, alone);
    const AttentionResult b = run(backend, company);
    CHECK(std::equal(a.o.begin(), a.o.begin() + 2 * 16, b.o.begin()));
    CHECK(a.lse[0] == b.lse[0]);
    CHECK(a.lse[1] == b.lse[1]);
  }

  TEST_CASE("heads have the same bits together and each in a call of its own") {
    // All blocks, equal lists, a list of its own for one head, blocks of another element type.
    for (const char* lists : {"none", "equal", "unlike", "mixed types"}) {
      CAPTURE(lists);
      const std::string kind = lists;
      if (emulated() && (kind == "none" || kind == "equal")) continue;
      const auto build = [&](AttentionCase& c, std::optional<uint32_t> only) {
        const size_t part = c.add_part({8999});
        const auto all = c.add_tokens(part, 0, 9000);
        const uint64_t n = all.second;
        std::vector<uint32_t> items;
        for (uint32_t head = 0; head < 3; ++head)
          for (uint32_t i = 0; i < n; ++i)
            items.push_back(kind == "unlike" && head == 1 ? i / 2 : i);
        if (kind == "equal" || kind == "unlike") c.set_items(part, items);
        if (kind == "mixed types")
          for (size_t i = 0; i < n; i += 5) {
            kvasir_lease& lease = c.leases[part][i];
            lease = c.lease(lease.pos_begin, lease.n_tokens, 0);
          }
        for (uint32_t head = 0; head < 3; ++head) {
          const uint64_t begin = kind == "equal" || kind == "unlike" ? head * n : 0;
          if (!only || *only == head) c.add_range(part, head, 0, 1, begin, begin + n);
        }
      };
      for (const uint32_t workers : {1u, 3u}) {
        CAPTURE(workers);
        FakeHost host(workers);
        AttentionCase together(6, 3, 16, 16);
        build(together, std::nullopt);
        Attention backend(host, kBackend);
        backend.bind(together.geometry);
        const AttentionResult all = run(backend, together);
        REQUIRE_MESSAGE(all.status == KVASIR_OK, all.text);
        for (uint32_t head = 0; head < 3; ++head) {
          AttentionCase alone(6, 3, 16, 16);
          build(alone, head);
          const AttentionResult one = run(backend, alone);
          const size_t at = head * 2 * 16;
          CHECK(std::equal(&one.o[at], &one.o[at] + 2 * 16, &all.o[at]));
          CHECK(std::equal(&one.lse[head * 2], &one.lse[head * 2] + 2, &all.lse[head * 2]));
        }
      }
    }
  }

  TEST_CASE("what cannot be attended is refused with a sentence, not read") {
    for (const char* name : {kBackend, "reference"}) {
      CAPTURE(name);
      FakeHost host(1);
      const auto refused = [&](AttentionCase& c, kvasir_status status) {
        Attention backend(host, name);
        backend.bind(c.geometry);
        const AttentionResult r = run(backend, c);
        CHECK(r.status == status);
        CHECK(r.text.size() > 20);
      };
      AttentionCase lost;
      add_decode_batch(lost, {40});
      lost.leases[0][1].state = KVASIR_LEASE_NOT_RESIDENT;
      lost.leases[0][1].k = nullptr;
      refused(lost, KVASIR_ERR_INVALID);

      AttentionCase unread;
      add_decode_batch(unread, {40});
      unread.formats[0].dtype_k = KVASIR_DTYPE_U8;
      refused(unread, KVASIR_ERR_UNSUPPORTED);

      AttentionCase beyond;
      add_decode_batch(beyond, {40});
      beyond.ranges[0][0].item_end = 4;
      refused(beyond, KVASIR_ERR_INVALID);

      AttentionCase token;
      const size_t part = token.add_part({99}, KVASIR_UNIT_TOKEN);
      token.add_tokens(part, 0, 20);
      token.set_items(part, {3, 25});
      token.add_range(part, 0, 0, 1, 0, 2);
      refused(token, KVASIR_ERR_INVALID);

      AttentionCase unknown;
      add_decode_batch(unknown, {40});
      unknown.leases[0][0].format = 5;
      refused(unknown, KVASIR_ERR_INVALID);
    }
  }

  TEST_CASE("the plan grows with the queries and is asked for after bind") {
    AttentionCase c;
    FakeHost host(2);
    Attention backend(host, kBackend);
    backend.bind(c.geometry);
    kvasir_attn_plan plan{sizeof plan, 0, 0};
    const kvasir_attn_shape one{sizeof one, 1, 4096};
    REQUIRE(backend->plan(backend.self(), &one, &plan, backend.err()) == KVASIR_OK);
    const uint64_t small = plan.scratch_bytes;
    CHECK(small > 0);
    const kvasir_attn_shape many{sizeof many, 4096, 4096};
    REQUIRE(backend->plan(backend.self(), &many, &plan, backend.err()) == KVASIR_OK);
    CHECK(plan.scratch_bytes > small);
  }
}
