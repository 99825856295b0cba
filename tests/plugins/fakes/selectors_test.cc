// Fake selectors with state of their own, called slot by slot: infinigen, h2o, snapkv, magicpig.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <set>

#include "tests/support/c_abi.h"

namespace {

using namespace kvasir::test::c_abi;
using Selector = Plugin<kvasir_selector>;
const std::string kDir = KVASIR_FAKES_DIR;

kvasir_sel_limits limits_of(Selector& plugin) {
  kvasir_sel_limits limits{};
  limits.struct_size = sizeof limits;
  REQUIRE(plugin->limits(plugin.self(), &limits, plugin.err()) == KVASIR_OK);
  return limits;
}
kvasir_layout layout_of(Selector& plugin) {
  kvasir_layout layout{};
  layout.struct_size = sizeof layout;
  REQUIRE(plugin->layout(plugin.self(), &layout, plugin.err()) == KVASIR_OK);
  return layout;
}
void feed(Selector& plugin, kvasir_step& step, const Keys& keys, uint32_t flags) {
  std::vector<kvasir_update_item> items;
  for (uint32_t b = 0; b < keys.leases.size(); ++b)
    items.push_back({0, b, 0, keys.leases[b].n_tokens, keys.leases[b].n_tokens,
                     KVASIR_ITEM_NEW | flags, &keys.leases[b], nullptr});
  REQUIRE(plugin->update(plugin.self(), &step, items.data(), uint32_t(items.size()),
                         sizeof items[0], plugin.err()) == KVASIR_OK);
}

// Mass over tokens 0, 1, 2 … of `rows` rows, the same for each.
struct Mass {
  Mass(uint32_t n_rows, uint32_t reduce, std::vector<float> of_row) : per_row(std::move(of_row)) {
    for (uint32_t r = 0; r <= n_rows; ++r) offsets.push_back(r * per_row.size());
    for (uint32_t r = 0; r < n_rows; ++r)
      values.insert(values.end(), per_row.begin(), per_row.end());
    mass = {sizeof mass,    KVASIR_UNIT_TOKEN, reduce,       1, n_rows, 0,
            offsets.data(), nullptr,           values.data()};
  }
  std::vector<float> per_row, values;
  std::vector<uint64_t> offsets;
  kvasir_mass mass{};
};

struct Infinigen {
  Infinigen(const Options& options) : plugin(host, kDir + "fake_infinigen.so", options) {
    plugin.bind(g);
    plugin.open(1);
  }
  Host host;
  kvasir_kv_format f = format();
  kvasir_geometry g = geometry(f);
  Selector plugin;
};

TEST_CASE("infinigen: speculation is final and picks the tokens near the best partial logit") {
  const uint32_t dims = 3, cap = 5;
  const double alpha = 0.6;
  Infinigen fake({{"partial_dims", dims}, {"cap", cap}, {"alpha", alpha}});
  const Keys keys(fake.g, 22, 1);
  Slab slab(fake.g, layout_of(fake.plugin), 6);
  Step step(KVASIR_D1, 22, 2, 20);
  step.step.slab = slab.get();
  feed(fake.plugin, step.step, keys, 0);
  CHECK(slab.record(1, 3)[2 * dims + 1] == doctest::Approx(keys.key(1, 14, 1)));

  auto q = random_floats(4 * 8, 3), x = random_floats(32, 4);
  kvasir_sel_in in{};
  in.struct_size = sizeof in;
  in.q = query_view(fake.g, q);
  Result result(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_KV_HEAD, 2, 64);
  CHECK(fake.plugin->speculate(fake.plugin.self(), &step.step, 1, &in, &result.selection,
                               fake.plugin.err()) == KVASIR_ERR_INVALID);  // no x
  in.x = query_view(fake.g, x);
  in.x.rank = 2;
  REQUIRE(fake.plugin->speculate(fake.plugin.self(), &step.step, 1, &in, &result.selection,
                                 fake.plugin.err()) == KVASIR_OK);
  CHECK(result.selection.flags == KVASIR_SELECTION_FINAL);
  CHECK(violation(result.selection, 2, 2, 20) == "");
  for (uint32_t kv_head = 0; kv_head < 2; ++kv_head) {
    std::vector<std::pair<double, uint32_t>> logits;  // of the better query head, negated
    for (uint32_t t = 2; t < 20; ++t) {
      double best = -1e30;
      for (uint32_t h = kv_head * 2; h < kv_head * 2 + 2; ++h) {
        double dot = 0;
        for (uint32_t d = 0; d < dims; ++d) dot += double{q[h * 8 + d]} * keys.key(kv_head, t, d);
        best = std::max(best, dot * double{fake.g.softmax_scale});
      }
      logits.emplace_back(-best, t);
    }
    std::sort(logits.begin(), logits.end());
    std::set<uint32_t> expected;
    for (const auto& [negated, t] : logits)
      if (expected.size() < cap && -negated >= -logits[0].first - alpha) expected.insert(t);
    const auto row = result.row(kv_head);
    CHECK(std::set<uint32_t>(row.begin(), row.end()) == expected);
  }
}

TEST_CASE("infinigen: prompt queries add up per column, and the state forks, cuts and closes") {
  Infinigen fake({{"pool_limit", 4}});
  auto q = random_floats(3 * 4 * 8, 5);
  kvasir_sel_in in{};
  in.struct_size = sizeof in;
  in.q = query_view(fake.g, q);
  Step chunk(KVASIR_P2, 12, 0, 3, 2);
  chunk.row.q_begin = 1;  // rows 1 and 2 of the view
  REQUIRE(fake.plugin->prefill(fake.plugin.self(), &chunk.step, &in, fake.plugin.err()) == 0);
  double sum = 0;
  for (uint32_t row = 1; row < 3; ++row)
    for (uint32_t h = 2; h < 4; ++h) sum += std::abs(double{q[row * 32 + h * 8 + 5]});
  CHECK(fake.plugin.probe(0) == 2);
  CHECK(fake.plugin.probe(2 + 8 + 5) == doctest::Approx(sum));

  const uint64_t parent = 1, child = 9;
  const auto& base = fake.plugin.base();
  REQUIRE(base.seq_fork(base.self, &parent, &child, 1, fake.plugin.err()) == KVASIR_OK);
  REQUIRE(fake.plugin->prefill(fake.plugin.self(), &chunk.step, &in, fake.plugin.err()) == 0);
  CHECK(fake.plugin.probe(0) == 4);  // the parent went on
  CHECK(fake.plugin.probe(0, child) == 2);
  base.seq_close(base.self, &parent, 1);
  CHECK(std::isnan(fake.plugin.probe(0)));
  CHECK(fake.plugin.probe(0, child) == 2);
  CHECK(base.seq_fork(base.self, &parent, &child, 1, fake.plugin.err()) < 0);
  CHECK(fake.plugin.text() != "");
}

TEST_CASE("infinigen: tokens that were attended least are dropped, never more than the surplus") {
  Infinigen fake({{"pool_limit", 6}});
  const auto limits = limits_of(fake.plugin);
  CHECK(limits.plan_at == KVASIR_PLAN_AT_STEP_END);
  CHECK(limits.mass_level == KVASIR_MASS_ROWS);
  Step step(KVASIR_D5, 20, 4, 14);
  for (uint32_t n : {20u, 9u, 7u}) {  // token t is attended by the rounds that reach beyond it
    Mass rows(2, KVASIR_MASS_SUM_KV_HEAD, std::vector<float>(n));
    rows.mass.value = nullptr;
    REQUIRE(fake.plugin->observe(fake.plugin.self(), &step.step, &rows.mass, fake.plugin.err()) ==
            KVASIR_OK);
  }
  CHECK(fake.plugin.probe(1) == 2 * (20 + 9 + 7));
  const auto plan = [&] {
    Result result(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_KV_HEAD, 2, 32);
    REQUIRE(fake.plugin->evict_plan(fake.plugin.self(), &step.step, &result.selection,
                                    fake.plugin.err()) == KVASIR_OK);
    CHECK(result.selection.flags == KVASIR_SELECTION_DROP);
    CHECK(violation(result.selection, 2, 4, 14) == "");
    return result.row(1);
  };
  CHECK(plan() == std::vector<uint32_t>{9, 10, 11, 12});  // 4..6 three times, 7..8 twice, 9.. once
  const uint64_t seq = 1;
  const uint32_t kv_len = 8;
  const auto& base = fake.plugin.base();
  REQUIRE(base.seq_truncate(base.self, &seq, &kv_len, 1, fake.plugin.err()) == KVASIR_OK);
  CHECK(plan() == std::vector<uint32_t>{8, 9, 10, 11});  // token 8 was forgotten
}

TEST_CASE("h2o: mass accumulates in the slab; P5 lists the keepers, D5 the losers") {
  Host host;
  const auto f = format();
  const auto g = geometry(f);
  Selector plugin(host, kDir + "fake_h2o.so", {{"hh_size", 3}});
  plugin.bind(g);
  CHECK((plugin->select == nullptr));
  const auto limits = limits_of(plugin);
  CHECK(limits.flags == KVASIR_LIMIT_OBSERVE_WRITES_SLAB);
  CHECK(limits.mass_last_queries == UINT32_MAX);
  Slab slab(g, layout_of(plugin), 3);
  Step step(KVASIR_P3, 12, 2, 9);
  step.step.slab = slab.get();
  const Mass mass(2, KVASIR_MASS_SUM_KV_HEAD, {9, 9, 1, 4, 2, 4, 4, 0, 3, 9, 9, 9});
  for (int chunk = 0; chunk < 2; ++chunk)
    REQUIRE(plugin->observe(plugin.self(), &step.step, &mass.mass, plugin.err()) == KVASIR_OK);
  CHECK(slab.record(1, 2)[1] == 18.0f);
  const auto plan = [&](uint32_t moment) {
    step.step.moment = moment;
    Result result(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_KV_HEAD, 2, 32);
    REQUIRE(plugin->evict_plan(plugin.self(), &step.step, &result.selection, plugin.err()) == 0);
    CHECK(violation(result.selection, 2, 2, 9) == "");
    CHECK((result.selection.flags == KVASIR_SELECTION_DROP) == (moment == KVASIR_D5));
    CHECK(result.row(0) == result.row(1));
    return result.row(0);
  };
  CHECK(plan(KVASIR_P5) == std::vector<uint32_t>{3, 5, 6});
  CHECK(plan(KVASIR_D5) == std::vector<uint32_t>{2, 4, 7, 8});
  CHECK(plugin.probe(0) == 2);
}

TEST_CASE("snapkv: pooled votes of the last queries decide; few candidates are all kept") {
  Host host;
  const auto f = format();
  const auto g = geometry(f);
  for (uint32_t action : {0u, 1u}) {
    Selector plugin(host, kDir + "fake_snapkv.so",
                    {{"capacity", 3}, {"window", 2}, {"kernel", 3}, {"action", action}});
    plugin.bind(g);
    plugin.open(1);
    const auto limits = limits_of(plugin);
    CHECK(limits.action == (action == 0 ? KVASIR_ACTION_EVICT : KVASIR_ACTION_RESTRICT));
    CHECK(limits.mass_last_queries == 2);
    Step step(KVASIR_P3, 10, 0, 8, 2);
    const Mass mass(4, KVASIR_MASS_PER_Q_HEAD, {0, 0, 0, 0, 0, 6, 0, 0, 50, 50});
    REQUIRE(plugin->observe(plugin.self(), &step.step, &mass.mass, plugin.err()) == KVASIR_OK);
    CHECK(plugin.probe(1 + 5) == 4 * 6);  // two query heads in each of two groups
    step.step.moment = KVASIR_P5;
    Result result(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_KV_HEAD, 2, 16);
    REQUIRE(plugin->evict_plan(plugin.self(), &step.step, &result.selection, plugin.err()) == 0);
    CHECK(result.row(0) == std::vector<uint32_t>{4, 5, 6});
    CHECK(result.row(1) == std::vector<uint32_t>{4, 5, 6});

    step.row.unit_end = 3;
    Result all(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_KV_HEAD, 2, 16);
    REQUIRE(plugin->evict_plan(plugin.self(), &step.step, &all.selection, plugin.err()) == 0);
    CHECK(all.flag(0) == KVASIR_ROW_ALL);
    CHECK(all.row(0).empty());

    const uint64_t parent = 1, child = 2;
    const uint32_t kv_len = 5;
    const auto& base = plugin.base();
    REQUIRE(base.seq_fork(base.self, &parent, &child, 1, plugin.err()) == KVASIR_OK);
    REQUIRE(base.seq_truncate(base.self, &child, &kv_len, 1, plugin.err()) == KVASIR_OK);
    CHECK(plugin.probe(1 + 5, child) == 0);
    CHECK(plugin.probe(1 + 5) == 24);
    step.row.prompt_end = 30;  // a new prompt starts from no votes
    step.step.moment = KVASIR_P3;
    REQUIRE(plugin->observe(plugin.self(), &step.step, &mass.mass, plugin.err()) == KVASIR_OK);
    CHECK(plugin.probe(1 + 5) == 24);
    base.seq_close(base.self, &parent, 1);
    CHECK(plugin->observe(plugin.self(), &step.step, &mass.mass, plugin.err()) < 0);
  }
}

TEST_CASE(
    "magicpig: rows differ per query head, weights make the draw unbiased, a refused call "
    "draws the same again") {
  Host host;
  const auto f = format();
  auto g = geometry(f);
  g.max_context = 4096;
  Selector plugin(host, kDir + "fake_magicpig.so", {{"refuse_every", 2}});
  plugin.bind(g);
  const uint32_t kv_len = 2050, end = 2000;
  const Keys keys(g, kv_len, 1);
  Step step(KVASIR_D2, kv_len, 0, end);
  feed(plugin, step.step, keys, KVASIR_ITEM_PROMPT_END);
  CHECK(plugin.probe(0) == double(keys.leases.size()));

  kvasir_sel_in in{};
  in.struct_size = sizeof in;
  Result first(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_Q_HEAD, 4, 4 * end);
  CHECK(plugin->select(plugin.self(), &step.step, &in, &first.selection, plugin.err()) ==
        KVASIR_ERR_INVALID);  // no leases
  const uint64_t offsets[] = {0, keys.leases.size()};
  in.leases = keys.leases.data();
  in.lease_offsets = offsets;
  REQUIRE(plugin->select(plugin.self(), &step.step, &in, &first.selection, plugin.err()) == 0);
  CHECK(violation(first.selection, 4, 0, end) == "");
  CHECK(first.row(0) != first.row(1));
  for (uint32_t h = 0; h < 4; ++h) {
    double weight = 0;
    for (float w : first.weights(h)) weight += std::exp(double{w});
    CHECK(weight == doctest::Approx(end).epsilon(0.15));  // sum of 1/u estimates the count
  }
  Result small(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_Q_HEAD, 4, 4 * end);
  REQUIRE(plugin->select(plugin.self(), &step.step, &in, &small.selection, plugin.err()) ==
          KVASIR_ERR_CAPACITY);
  CHECK(small.selection.needed > small.selection.capacity);
  Result again(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_Q_HEAD, 4, small.selection.needed);
  REQUIRE(plugin->select(plugin.self(), &step.step, &in, &again.selection, plugin.err()) == 0);
  CHECK(again.row(3) == first.row(3));
  CHECK(plugin.probe(1) == 2);
  CHECK(plugin.probe(2) == 1);

  Result tight(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_Q_HEAD, 4, 10);  // really too small
  REQUIRE(plugin->select(plugin.self(), &step.step, &in, &tight.selection, plugin.err()) ==
          KVASIR_ERR_CAPACITY);
  CHECK(tight.selection.needed ==
        first.row(0).size() + first.row(1).size() + first.row(2).size() + first.row(3).size());
}

}  // namespace
