// The result of a query does not depend on how its prompt was cut into pieces, on the queries and
// ranges beside it, or on the number of workers: bit for bit, for both backends and every SIMD
// target.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/attention/attention_case.h"
#include "tests/support/effort.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir::test;

// A prompt whose last queries are asked for, and what is special about its range.
struct Prompt {
  uint32_t n_tokens, n_queries;
  uint32_t format = 1;  // of AttentionCase; 100: another one for every third block
  bool holes = false;   // token unit, every fifth token gone
  uint32_t weight_width = 0;
  float softcap = 0.0f;
  uint32_t dist_min = 0, dist_max = UINT32_MAX;
  uint32_t n_q_heads = 6, n_kv_heads = 2, head_dim = 32;
  bool may_round = false;
};

// The whole call; pieces of it share its memory.
struct Whole : AttentionCase {
  Prompt p;
  explicit Whole(const Prompt& prompt)
      : AttentionCase(prompt.n_q_heads, prompt.n_kv_heads, prompt.head_dim, prompt.head_dim),
        p(prompt) {
    geometry.softcap = p.softcap;
    geometry.may_round = p.may_round;
    std::vector<uint32_t> positions(p.n_queries);
    std::iota(positions.begin(), positions.end(), p.n_tokens - p.n_queries);
    add_part(positions, p.holes ? KVASIR_UNIT_TOKEN : KVASIR_UNIT_BLOCK);
    const uint32_t b = geometry.block_size;
    for (uint32_t t = 0; t < p.n_tokens; t += b) {
      const uint32_t mixed = t / b % 3 == 0 ? 1 : 0;
      leases[0].push_back(
          lease(t, std::min(b, p.n_tokens - t), p.format == 100 ? mixed : p.format));
    }
    if (p.holes) {
      std::vector<uint32_t> items;
      for (uint32_t t = 0; t < p.n_tokens; ++t)
        if (t % 5 != 3 || t + p.n_queries >= p.n_tokens) items.push_back(t);
      set_items(0, items);
    }
    parts[0].dist_min = p.dist_min;
    parts[0].dist_max = p.dist_max;
    parts[0].weight_width = p.weight_width;
    if (p.weight_width) parts[0].log_weight = floats(size_t{p.n_tokens} * p.weight_width);
  }

  // (o, lse) of queries [begin, end) as one piece: with the keys there are by then.
  AttentionResult piece(Attention& backend, uint32_t begin, uint32_t end, uint32_t flags) const {
    const uint32_t kv_len = p.n_tokens - p.n_queries + end, b = geometry.block_size;
    std::vector<kvasir_lease> there(leases[0].begin(), leases[0].begin() + (kv_len + b - 1) / b);
    there.back().n_tokens = (kv_len - 1) % b + 1;
    kvasir_attn_part part = parts[0];
    part.leases = there.data();
    part.n_leases = static_cast<uint32_t>(there.size());
    uint64_t n_items = there.size();
    if (p.holes) {
      const auto& items = numbers.back();
      n_items = std::lower_bound(items.begin(), items.end(), kv_len) - items.begin();
    }
    part.q.data = static_cast<std::byte*>(part.q.data) + begin * part.q.stride[0];
    part.q.shape[0] = end - begin;
    part.q_pos.data = static_cast<uint32_t*>(part.q_pos.data) + begin;
    part.q_pos.shape[0] = end - begin;
    std::vector<kvasir_attn_range> list;
    for (uint32_t head = 0; head < p.n_kv_heads; ++head)
      list.push_back({head, 0, end - begin, flags, 0, n_items});
    part.ranges = list.data();
    part.n_ranges = p.n_kv_heads;
    const kvasir_attn_in in{sizeof in, 0, 1, sizeof part, &part};
    AttentionResult r;
    r.o.assign(size_t{end - begin} * p.n_q_heads * p.head_dim, kUntouched);
    r.lse.assign(size_t{end - begin} * p.n_q_heads, kUntouched);
    kvasir_attn_out out{sizeof out, 0,
                        kvasir::sdk::host_view(r.o.data(), {end - begin, p.n_q_heads, p.head_dim}),
                        kvasir::sdk::host_view(r.lse.data(), {end - begin, p.n_q_heads}), 0};
    kvasir_step step{};
    step.struct_size = sizeof step;
    step.seq_size = sizeof(kvasir_step_seq);
    r.status = backend->run(backend.self(), &step, &in, &out, backend.err());
    REQUIRE_MESSAGE(r.status == KVASIR_OK, backend.text());
    return r;
  }

  // The same, put together from pieces whose sizes repeat.
  AttentionResult in_pieces(Attention& backend, const std::vector<uint32_t>& sizes,
                            uint32_t flags) const {
    AttentionResult all;
    for (uint32_t begin = 0, i = 0; begin < p.n_queries; ++i) {
      const uint32_t end = std::min(p.n_queries, begin + sizes[i % sizes.size()]);
      const AttentionResult r = piece(backend, begin, end, flags);
      all.o.insert(all.o.end(), r.o.begin(), r.o.end());
      all.lse.insert(all.lse.end(), r.lse.begin(), r.lse.end());
      begin = end;
    }
    return all;
  }
};

// Emulated, one division by one worker: the processor's instructions are what that is for.
void check_pieces(const Prompt& prompt, const char* backend = "cpu",
                  uint32_t flags = KVASIR_ATTN_RANGE_PREFILL) {
  const Whole whole(prompt);
  FakeHost lone(1), company(3);
  Attention one(lone, backend), three(company, backend);
  one.bind(whole.geometry);
  three.bind(whole.geometry);
  for_each_simd_target([&] {
    const AttentionResult want = whole.piece(three, 0, prompt.n_queries, flags);
    for (const auto& sizes : std::vector<std::vector<uint32_t>>{
             {prompt.n_queries}, {1}, {2}, {3}, {7}, {16}, {31}, {5, 1, 12, 2, 40}}) {
      if (few_cases() && sizes[0] != prompt.n_queries && sizes[0] != 1 && sizes[0] != 5) continue;
      if (emulated() && sizes[0] != 5) continue;
      CAPTURE(sizes[0]);
      for (Attention* workers : {&one, &three}) {
        if (emulated() && workers == &three) continue;
        const AttentionResult got = whole.in_pieces(*workers, sizes, flags);
        CHECK(got.o == want.o);
        CHECK(got.lse == want.lse);
      }
    }
  });
}

}  // namespace

TEST_SUITE("plugins/attention/pieces") {
  TEST_CASE("a prompt in pieces of any size, for every element type") {
    for (uint32_t format = 0; format < 5; ++format) {
      if (emulated() && format % 3 != 0) continue;
      check_pieces({150, emulated() ? 50u : 150u, format});
    }
    check_pieces({150, 150, 100});  // of several types side by side
    check_pieces({333, 70, 0, false, 0, 0.0f, 0, UINT32_MAX, 8, 1, 64});
  }

  TEST_CASE("holes, weights, caps and distances") {
    const uint32_t n = emulated() ? 40 : 90;
    check_pieces({.n_tokens = 300, .n_queries = n, .holes = true, .weight_width = 3});
    check_pieces({.n_tokens = 300, .n_queries = n, .dist_min = 33, .dist_max = 200});
    if (emulated()) return;
    check_pieces({.n_tokens = 300, .n_queries = n, .format = 0, .holes = true});
    check_pieces({.n_tokens = 300, .n_queries = n, .weight_width = 1});
    check_pieces({.n_tokens = 300, .n_queries = n, .softcap = 2.0f});
    check_pieces({.n_tokens = 300, .n_queries = n, .dist_max = 40});
  }

  // Formats 0 and 2 are f16 and bf16, 100 mixes f16 with f32. Odd distances and lengths: keys that
  // are multiplied in pairs with others that some queries do not see, or that are not there yet.
  TEST_CASE("the same where products may be rounded") {
    const auto check = [](Prompt prompt) {
      prompt.may_round = true;
      for (const uint32_t format : {0u, 2u}) {
        if (prompt.format != 100) prompt.format = format;
        CAPTURE(format);
        CAPTURE(prompt.n_tokens);
        CAPTURE(prompt.n_queries);
        CAPTURE(prompt.dist_max);
        check_pieces(prompt);
      }
    };
    check({.n_tokens = 151, .n_queries = emulated() ? 40u : 151u});
    if (emulated()) return;
    check({.n_tokens = 150, .n_queries = 150, .format = 100});
    check({.n_tokens = 333, .n_queries = 70, .n_q_heads = 7, .n_kv_heads = 1, .head_dim = 64});
    check({.n_tokens = 300, .n_queries = 90, .holes = true, .weight_width = 3});
    check({.n_tokens = 301, .n_queries = 90, .softcap = 2.0f, .dist_max = 41});
    check({.n_tokens = 300, .n_queries = 90, .dist_min = 33, .dist_max = 200});
    check({.n_tokens = 8230, .n_queries = 59, .n_q_heads = 2, .n_kv_heads = 1});
  }

  // Queries at both sides of the borders of slices (8,192 keys of a prompt).
  TEST_CASE("long prompts, whose keys are cut into slices") {
    check_pieces({.n_tokens = 8230,
                  .n_queries = emulated() ? 45u : 60u,
                  .format = 0,
                  .n_q_heads = 2,
                  .n_kv_heads = 1});
    if (emulated()) return;
    check_pieces({.n_tokens = 16500,
                  .n_queries = 45,
                  .format = 0,
                  .holes = true,
                  .n_q_heads = 2,
                  .n_kv_heads = 1});
  }

  TEST_CASE("several decoded tokens of one range are each of them alone") {
    check_pieces({300, 30, 0, true, 3}, "cpu", 0);
    if (emulated()) return;
    check_pieces({150, 150, 0}, "cpu", 0);
    check_pieces({.n_tokens = 4110, .n_queries = 20, .n_q_heads = 2, .n_kv_heads = 1}, "cpu", 0);
    for (const uint32_t format : {4u, 5u}) {
      Prompt in_integers{.n_tokens = 300, .n_queries = 30, .format = format};
      in_integers.may_round = true;
      check_pieces(in_integers, "cpu", 0);
    }
  }

  TEST_CASE("the reference, too") {
    if (emulated()) return;  // no instruction is chosen there
    check_pieces({90, 90, 0}, "reference");
    check_pieces({.n_tokens = 90, .n_queries = 40, .holes = true, .softcap = 2.0f, .dist_max = 40},
                 "reference");
  }

  // Two parts name the same queries, as keys at constant positions do; slices in both.
  TEST_CASE("parts with slices of their own merge in one order for any number of workers") {
    AttentionCase c(2, 1, 16, 16);
    for (const uint32_t n_q : {1u, 20u}) {
      std::vector<uint32_t> positions(n_q);
      std::iota(positions.begin(), positions.end(), 18000);
      const size_t part = c.add_part(positions);
      c.add_ranges_of_all_heads(part, 0, n_q, c.add_tokens(part, 0, 18001 + n_q));
      c.parts[part].dist_min = 9000;
      const size_t near = c.add_part(positions);
      c.add_ranges_of_all_heads(near, 0, n_q, c.add_tokens(near, 0, 18001 + n_q));
      c.parts[near].dist_max = 9000;
      FakeHost lone(1), company(3), many(16);
      std::vector<AttentionResult> results;
      for (FakeHost* host : {&lone, &company, &many}) {
        Attention cpu(*host, "cpu");
        cpu.bind(c.geometry);
        results.push_back(run(cpu, c));
        REQUIRE_MESSAGE(results.back().status == KVASIR_OK, results.back().text);
        CHECK(results.back().o == results[0].o);
        CHECK(results.back().lse == results[0].lse);
      }
      c.parts.clear();
      c.ranges.clear();
      c.leases.clear();
    }
  }
}
