// magicpig: draws happen as often as the formula of the paper says, weigh what it says, and make
// attention unbiased; tables, blocks hashed late, cuts and forks do not change that.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/ext/draft/state.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <numeric>
#include <set>

#include "plugins/selector/magicpig/hash.h"
#include "plugins/selector/magicpig/tables.h"
#include "tests/plugins/selector/key_scene.h"
#include "tests/support/effort.h"
#include "tests/support/readme.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;
using magicpig::Planes;
using magicpig::Segment;
using magicpig::TableLayout;
using Selector = PluginInstance<kvasir_selector>;

constexpr uint32_t kHeads = 4, kKvHeads = 2, kDim = 16, kBlock = 16;

kvasir_geometry geometry(uint64_t seed = 0) {
  kvasir_geometry g = small_geometry();
  g.n_layers = 1;
  g.n_q_heads = kHeads;
  g.n_kv_heads = kKvHeads;
  g.head_dim = g.v_dim = kDim;
  g.block_size = kBlock;
  g.max_context = 1 << 20;
  g.seed = seed;
  return g;
}

// Keys in a cone around a common vector, queries as in models: partly along some key.
struct Data {
  std::vector<float> keys, q;
};
Data cone(uint32_t n_tokens, uint32_t seed) {
  Data out{normal_floats(size_t{n_tokens} * kKvHeads * kDim, seed),
           normal_floats(size_t{kHeads} * kDim, seed + 1)};
  const auto centre = normal_floats(kKvHeads * kDim, seed + 2);
  for (size_t i = 0; i < out.keys.size(); ++i) {
    out.keys[i] += 3.0f * centre[i % centre.size()];
  }
  for (uint32_t h = 0; h < kHeads; ++h) {
    for (uint32_t d = 0; d < kDim; ++d) {
      const size_t token = 5 + 7 * h, kv = h / 2 * kDim + d;
      out.q[h * kDim + d] += out.keys[token * kKvHeads * kDim + kv] - 3.0f * centre[kv];
    }
  }
  return out;
}

void open(Selector& selector, const kvasir_geometry& g) {
  selector.bind(g);
  const uint64_t seq = 1;
  REQUIRE(selector->base.seq_open(selector.self(), &seq, 1, selector.err()) == KVASIR_OK);
}

// u of every candidate, from the definition: cosine with centred keys, clamped.
std::vector<double> probabilities(const KeyScene& scene, uint32_t q_head, uint32_t begin,
                                  uint32_t end, uint32_t k, uint32_t l) {
  const uint32_t kv_head = q_head / 2;
  std::vector<double> mean(kDim);
  for (uint32_t t = begin; t < end; ++t) {
    for (uint32_t d = 0; d < kDim; ++d)
      mean[d] += scene.key(t, kv_head)[d] / double{1.0 * end - begin};
  }
  std::vector<double> out;
  for (uint32_t t = begin; t < end; ++t) {
    double dot = 0, key2 = 0, q2 = 0;
    for (uint32_t d = 0; d < kDim; ++d) {
      const double c = scene.key(t, kv_head)[d] - mean[d], q = scene.query(q_head)[d];
      dot += c * q;
      key2 += c * c;
      q2 += q * q;
    }
    const double c = std::min(1.0, std::max(-1.0, dot / std::sqrt(key2 * q2)));
    const double p = std::pow(1 - std::acos(c) / std::numbers::pi, k);
    out.push_back(1 - std::pow(1 - p, l) - l * p * std::pow(1 - p, l - 1.0));
  }
  return out;
}

TEST_SUITE("plugins/selector/magicpig") {
  TEST_CASE("planes are standard normal and codes are the signs of products with them") {
    constexpr uint32_t kBits = 9, kTables = 31;
    const Planes planes(7, 0, kBits, kTables, kDim);
    double sum = 0, square = 0, n = 0;
    for (uint32_t l = 0; l < kTables; ++l) {
      for (uint32_t b = 0; b < kBits; ++b) {
        for (uint32_t d = 0; d < kDim; ++d, ++n) {
          sum += planes.plane(l, b, d);
          square += std::pow(planes.plane(l, b, d), 2);
        }
      }
    }
    CHECK(std::abs(sum / n) < 4 / std::sqrt(n));
    CHECK(std::abs(square / n - 1) < 4 * std::sqrt(2 / n));
    const auto x = normal_floats(11 * (kDim + 3), 5);
    std::vector<uint16_t> code(11 * kTables);
    std::vector<float> work;
    planes.codes(x.data(), kDim + 3, 11, code.data(), work);
    for (uint32_t i = 0; i < 11; ++i) {
      for (uint32_t l = 0; l < kTables; ++l) {
        for (uint32_t b = 0; b < kBits; ++b) {
          double y = 0;
          for (uint32_t d = 0; d < kDim; ++d)
            y += double{x[i * (kDim + 3) + d]} * planes.plane(l, b, d);
          if (std::abs(y) > 1e-4) CHECK((code[i * kTables + l] >> b & 1) == (y > 0));
        }
      }
    }
    CHECK(Planes(8, 0, kBits, kTables, kDim).plane(0, 0, 0) != planes.plane(0, 0, 0));
  }

  TEST_CASE("what is drawn are agreements of the planes of the README, shared or per head") {
    constexpr uint32_t kTokens = 90, kBegin = 4, kEnd = 80, kBits = 3, kTables = 7, kLayers = 33;
    constexpr uint64_t kSeed = 99;
    const auto uniform = [](uint64_t i) {  // in (0, 1), from 1
      uint64_t x = kSeed + i * 0x9e3779b97f4a7c15;
      x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
      x = (x ^ x >> 27) * 0x94d049bb133111eb;
      return (static_cast<double>((x ^ x >> 31) >> 11) + 0.5) / 9007199254740992.0;
    };
    const auto normal = [&](uint64_t i) {  // from 0
      const double length = std::sqrt(-2 * std::log(uniform(i - i % 2 + 1)));
      const double angle = 2 * std::numbers::pi * uniform(i - i % 2 + 2);
      return length * (i % 2 ? std::sin(angle) : std::cos(angle));
    };
    std::map<uint64_t, std::vector<double>> sets;
    const auto codes = [&](uint64_t set, const std::vector<double>& x) {
      std::vector<double>& planes = sets[set];
      for (uint64_t i = planes.size(); i < kBits * kTables * kDim; ++i)
        planes.push_back(normal(set * kBits * kTables * kDim + i));
      std::vector<uint32_t> out(kTables);
      for (uint64_t p = 0; p < kBits * kTables; ++p) {
        double y = 0;
        for (uint32_t d = 0; d < kDim; ++d) y += x[d] * planes[p * kDim + d];
        REQUIRE(std::abs(y) > 1e-5);  // else f32 may see the other side
        out[p / kBits] |= uint32_t{y > 0} << p % kBits;
      }
      return out;
    };
    const Data data = cone(kTokens, 71);
    kvasir_geometry g = geometry();
    g.n_layers = kLayers;
    KeyScene scene(g, data.keys, data.q);
    scene.candidates(kBegin, kEnd);
    std::set<std::vector<uint32_t>> unlike;
    for (const bool per_head : {false, true}) {
      FakeHost host;
      Selector selector(host, "magicpig",
                        {{"K", int64_t{kBits}},
                         {"L", int64_t{kTables}},
                         {"seed", static_cast<int64_t>(kSeed)},
                         {"planes", std::string(per_head ? "per_head" : "shared")}});
      open(selector, scene.geometry());
      for (const uint32_t layer : {0u, 1u, 15u, 16u, 31u, 32u}) {
        CAPTURE(layer);
        scene.layer = layer;
        REQUIRE(scene.prompt_end(selector) == KVASIR_OK);
        SelectionBuffer out(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_Q_HEAD, kHeads, kHeads * kTokens);
        REQUIRE(scene.select(selector, out.selection) == KVASIR_OK);
        for (uint32_t h = 0; h < kHeads; ++h) {
          const uint32_t kv_head = h / 2;
          const uint64_t set = per_head ? layer / 16 * kKvHeads + kv_head : 0;
          const auto query = codes(set, {scene.query(h), scene.query(h) + kDim});
          std::vector<double> mean(kDim);
          for (uint32_t t = kBegin; t < kEnd; ++t)
            for (uint32_t d = 0; d < kDim; ++d)
              mean[d] += scene.key(t, kv_head)[d] / double{kEnd - kBegin};
          std::vector<uint32_t> want;
          for (uint32_t t = kBegin; t < kEnd; ++t) {
            std::vector<double> key(scene.key(t, kv_head), scene.key(t, kv_head) + kDim);
            for (uint32_t d = 0; d < kDim; ++d) key[d] -= mean[d];
            const auto code = codes(set, key);
            int same = 0;
            for (uint32_t l = 0; l < kTables; ++l) same += code[l] == query[l];
            if (same >= 2) want.push_back(t);
          }
          CHECK(out.list(h) == want);
          if (h == 0) unlike.insert(want);
        }
      }
    }
    CHECK(unlike.size() == 3);  // planes of layers 0 to 15, of 16 to 31, of 32
  }

  TEST_CASE("tables count agreement as comparing all codes does, whole, cut and joined") {
    constexpr uint32_t kTables = 12;
    std::mt19937 random(3);
    for (const uint32_t bits : {2u, 6u}) {
      for (const auto layout : {TableLayout::kCompact, TableLayout::kCsr}) {
        for (const uint32_t n : {1u, 5u, 400u}) {
          CAPTURE(bits);
          CAPTURE(n);
          std::vector<uint32_t> tokens;
          for (uint32_t t = 1000; tokens.size() < n; t += 1 + static_cast<uint32_t>(random() % 3))
            tokens.push_back(t);
          std::vector<uint16_t> code(n * kTables), query(kTables);
          for (auto& c : code) c = static_cast<uint16_t>(random() % (1u << bits));
          for (auto& c : query) c = static_cast<uint16_t>(random() % (1u << bits));
          const auto norm = normal_floats(n, 1);
          const Segment whole(layout, bits, kTables, tokens, code, norm);
          const auto check = [&](const Segment& segment, size_t count) {
            CHECK(segment.begin() == tokens[0]);
            CHECK(segment.end() == tokens[count - 1] + 1);
            std::vector<uint8_t> hits(segment.end() - segment.begin()), want(hits.size());
            const uint64_t n_bytes = segment.count(query.data(), hits.data());
            uint64_t n_ids = 0;
            for (size_t i = 0; i < count; ++i) {
              int same = 0;
              for (uint32_t l = 0; l < kTables; ++l) same += code[i * kTables + l] == query[l];
              n_ids += static_cast<uint64_t>(same);
              want[tokens[i] - tokens[0]] = static_cast<uint8_t>(std::min(same, 2));
              CHECK(segment.norm(tokens[i]) == norm[i]);
            }
            CHECK(hits == want);
            CHECK(n_bytes == n_ids * (layout == TableLayout::kCsr ? 4 : 2));
          };
          check(whole, n);
          if (n == 1) {
            CHECK(whole.cut(1000) == nullptr);
            continue;
          }
          const size_t half = n / 2;
          check(*whole.cut(tokens[half]), half);
          check(*whole.cut(tokens[half - 1] + 1), half);
          const Segment behind(layout, bits, kTables, std::span(tokens).subspan(half),
                               std::span(code).subspan(half * kTables),
                               std::span(norm).subspan(half));
          check(*whole.cut(tokens[half])->joined(behind), n);
        }
      }
    }
  }

  TEST_CASE("tables take the bytes per token that the README says") {
    constexpr uint32_t kTables = 150, kBits = 10, kTokens = 32768;
    std::vector<uint32_t> tokens(kTokens);
    std::iota(tokens.begin(), tokens.end(), 0u);
    const std::vector<uint16_t> code(size_t{kTokens} * kTables, 3);
    const std::vector<float> norm(kTokens, 1.0f);
    const auto per_token = [&](TableLayout layout, uint32_t n) {
      const Segment segment(layout, kBits, kTables, std::span(tokens).first(n),
                            std::span(code).first(size_t{n} * kTables), std::span(norm).first(n));
      return static_cast<double>(segment.bytes()) / n;
    };
    // ids, bounds of 2^K + 1 codes, one norm; K and V of f16 at head_dim 128 are 512 bytes.
    CHECK(per_token(TableLayout::kCompact, kTokens) ==
          doctest::Approx(300 + 18.8 + 4).epsilon(.01));
    CHECK(per_token(TableLayout::kCsr, kTokens) == doctest::Approx(600 + 18.8 + 4).epsilon(.01));
    CHECK(per_token(TableLayout::kCompact, 256) == doctest::Approx(300 + 300 + 4).epsilon(.01));
    check_claim("selector/magicpig", "**323 bytes** (measured 323), `csr` **623** (623)");
    check_claim("selector/magicpig", "at most 4 L + 4 = 604 (256 tokens)");
  }

  TEST_CASE("a saved sequence takes the bytes per hashed token that the README says") {
    const auto saved = [](uint32_t n_hashed) {
      const Data data = cone(n_hashed, 3);
      FakeHost host;
      KeyScene scene(geometry(), data.keys, data.q);
      scene.candidates(0, n_hashed);
      Selector selector(host, "magicpig", {{"K", int64_t{10}}, {"L", int64_t{150}}});
      open(selector, scene.geometry());
      REQUIRE(scene.prompt_end(selector) == KVASIR_OK);
      const auto* state = static_cast<const kvasir_state*>(
          selector->base.get_extension(selector.self(), KVASIR_EXT_STATE));
      REQUIRE(state);
      uint64_t bytes = 0;
      REQUIRE(state->save(
                  selector.self(), 1,
                  [](void* to, const void*, uint64_t n) noexcept {
                    *static_cast<uint64_t*>(to) += n;
                    return 0;
                  },
                  &bytes, selector.err()) == KVASIR_OK);
      return bytes;
    };
    CHECK(saved(256) - saved(128) == 128 * kKvHeads * 308);
    check_claim("selector/magicpig",
                "`2 L + 8` bytes per hashed token, layer and kv head (308 at L = 150)");
  }

  TEST_CASE("tokens are drawn as often as u says, and weigh -ln(u + 1e-4)") {
    constexpr uint32_t kTokens = 64, kBegin = 4, kEnd = 56, kRuns = 600;
    for (const auto& [k, l] : {std::pair{4u, 6u}, std::pair{7u, 40u}}) {
      if (few_cases() && k != 4) continue;
      CAPTURE(k);
      const Data data = cone(kTokens, 11);
      std::map<std::pair<uint32_t, uint32_t>, uint32_t> drawn;
      FakeHost host;
      for (uint32_t seed = 0; seed < kRuns; ++seed) {
        KeyScene scene(geometry(seed * 77 + 1), data.keys, data.q);
        scene.candidates(kBegin, kEnd);
        Selector selector(host, "magicpig", {{"K", int64_t{k}}, {"L", int64_t{l}}});
        open(selector, scene.geometry());
        REQUIRE(scene.prompt_end(selector) == KVASIR_OK);
        SelectionBuffer out(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_Q_HEAD, kHeads, kHeads * kTokens);
        REQUIRE_MESSAGE(scene.select(selector, out.selection) == KVASIR_OK, selector.text());
        CHECK(out.selection.weight_width == 1);
        for (uint32_t h = 0; h < kHeads; ++h) {
          const auto u = probabilities(scene, h, kBegin, kEnd, k, l);
          const auto list = out.list(h);
          const auto weight = out.weights(h);
          for (size_t i = 0; i < list.size(); ++i) {
            ++drawn[{h, list[i]}];
            REQUIRE(list[i] >= kBegin);
            REQUIRE(list[i] < kEnd);
            CHECK(std::abs(weight[i] + std::log(u[list[i] - kBegin] + 1e-4)) < 1e-3);
          }
        }
      }
      const KeyScene scene(geometry(), data.keys, data.q);
      double chi2 = 0, n = 0;
      for (uint32_t h = 0; h < kHeads; ++h) {
        const auto u = probabilities(scene, h, kBegin, kEnd, k, l);
        for (uint32_t t = kBegin; t < kEnd; ++t) {
          const double expected = u[t - kBegin] * kRuns, spread = expected * (1 - u[t - kBegin]);
          const double got = drawn.count({h, t}) ? drawn.at({h, t}) : 0;
          CHECK(std::abs(got - expected) < 5 * std::sqrt(spread) + 1);
          if (spread < 5) continue;
          chi2 += (got - expected) * (got - expected) / spread;
          ++n;
        }
      }
      REQUIRE(n > 50);
      CHECK(chi2 / n < 1.5);  // mean 1; tokens of one run share planes, so the spread is wider
      CHECK(chi2 / n > 0.6);
    }
  }

  TEST_CASE("the mean over many seeds is full attention") {
    constexpr uint32_t kTokens = 80;
    const uint32_t n_runs = few_cases() ? 300 : 1500;
    const Data data = cone(kTokens, 21);
    FakeHost host;
    std::vector<double> mass(kHeads), exact(kHeads);
    for (uint32_t seed = 0; seed < n_runs; ++seed) {
      KeyScene scene(geometry(seed * 13 + 5), data.keys, data.q);
      scene.candidates(0, kTokens);
      Selector selector(host, "magicpig", {{"K", int64_t{4}}, {"L", int64_t{12}}});
      open(selector, scene.geometry());
      REQUIRE(scene.prompt_end(selector) == KVASIR_OK);
      SelectionBuffer out(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_Q_HEAD, kHeads, kHeads * kTokens);
      REQUIRE(scene.select(selector, out.selection) == KVASIR_OK);
      for (uint32_t h = 0; h < kHeads; ++h) {
        const auto list = out.list(h);
        const auto weight = out.weights(h);
        for (size_t i = 0; i < list.size(); ++i) {
          mass[h] += std::exp(scene.dot(list[i], h) / 16 + double{weight[i]}) / n_runs;
        }
        if (seed != 0) continue;
        for (uint32_t t = 0; t < kTokens; ++t) exact[h] += std::exp(scene.dot(t, h) / 16);
      }
    }
    const double tolerance = 0.03 * std::sqrt(1500.0 / n_runs);
    for (uint32_t h = 0; h < kHeads; ++h)
      CHECK(mass[h] == doctest::Approx(exact[h]).epsilon(tolerance));
  }

  TEST_CASE("K = 0 attends to everything, unweighted") {
    FakeHost host;
    const Data data = cone(40, 2);
    KeyScene scene(geometry(), data.keys, data.q);
    scene.candidates(4, 30);
    Selector selector(host, "magicpig", {{"K", int64_t{0}}});
    open(selector, scene.geometry());
    REQUIRE(scene.prompt_end(selector) == KVASIR_OK);
    SelectionBuffer out(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_Q_HEAD, kHeads, 0);
    REQUIRE(scene.select(selector, out.selection) == KVASIR_OK);
    CHECK(out.selection.weight_width == 0);
    for (uint32_t h = 0; h < kHeads; ++h) CHECK(out.list_flags[h] == KVASIR_LIST_ALL);
  }

  TEST_CASE("a draw may be empty, and unlike heads have unlike lists") {
    FakeHost host;
    Data data = cone(64, 31);
    for (uint32_t d = 0; d < kDim; ++d) data.q[d] = 0.0f;  // no direction: every bit is 0
    KeyScene scene(geometry(3), data.keys, data.q);
    scene.candidates(0, 64);
    Selector selector(host, "magicpig", {{"K", int64_t{16}}, {"L", int64_t{2}}});
    open(selector, scene.geometry());
    REQUIRE(scene.prompt_end(selector) == KVASIR_OK);
    SelectionBuffer out(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_Q_HEAD, kHeads, kHeads * 64);
    REQUIRE(scene.select(selector, out.selection) == KVASIR_OK);
    CHECK(out.list(0).empty());
    CHECK(out.list_flags[0] == KVASIR_LIST_LISTED);
  }

  TEST_CASE("the larger buffer gets the same draw; layouts and threads do not matter") {
    const Data data = cone(500, 41);
    std::vector<std::vector<uint32_t>> first;
    for (const std::string layout : {"compact", "csr"}) {
      for (const uint32_t workers : {0u, 3u}) {
        FakeHost host(workers);
        KeyScene scene(geometry(9), data.keys, data.q);
        scene.candidates(4, 480);
        Selector selector(host, "magicpig",
                          {{"K", int64_t{5}}, {"L", int64_t{20}}, {"table_layout", layout}});
        open(selector, scene.geometry());
        REQUIRE(scene.prompt_end(selector) == KVASIR_OK);
        SelectionBuffer small(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_Q_HEAD, kHeads, 3);
        REQUIRE(scene.select(selector, small.selection) == KVASIR_ERR_CAPACITY);
        CHECK(small.list_offsets == std::vector<uint64_t>(kHeads + 1, 0xdead));
        SelectionBuffer out(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_Q_HEAD, kHeads, small.selection.needed);
        REQUIRE(scene.select(selector, out.selection) == KVASIR_OK);
        CHECK(out.list_offsets[kHeads] == small.selection.needed);
        std::vector<std::vector<uint32_t>> lists;
        for (uint32_t h = 0; h < kHeads; ++h) lists.push_back(out.list(h));
        if (first.empty()) first = lists;
        CHECK(lists == first);
        SelectionBuffer again(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_Q_HEAD, kHeads, 2000);
        REQUIRE(scene.select(selector, again.selection) == KVASIR_OK);
        for (uint32_t h = 0; h < kHeads; ++h) CHECK(again.list(h) == first[h]);
      }
    }
  }

  TEST_CASE("more than 64K tokens are several segments of one draw") {
    // The same 997 keys again and again: where one is drawn, all of them are.
    constexpr uint32_t kTokens = 66001, kKeys = 997, kBegin = 4, kEnd = kTokens - 10;
    Data data = cone(kKeys, 51);
    const std::vector<float> keys = data.keys;
    for (size_t i = keys.size(); i < size_t{kTokens} * kKvHeads * kDim; ++i)
      data.keys.push_back(keys[i % keys.size()]);
    std::vector<std::vector<uint32_t>> first;
    for (const std::string layout : {"compact", "csr"}) {
      FakeHost host;
      KeyScene scene(geometry(9), data.keys, data.q);
      scene.candidates(kBegin, kEnd);
      Selector selector(host, "magicpig",
                        {{"K", int64_t{4}}, {"L", int64_t{3}}, {"table_layout", layout}});
      open(selector, scene.geometry());
      REQUIRE(scene.prompt_end(selector) == KVASIR_OK);
      SelectionBuffer out(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_Q_HEAD, kHeads, kHeads * kTokens);
      REQUIRE(scene.select(selector, out.selection) == KVASIR_OK);
      std::vector<std::vector<uint32_t>> lists;
      for (uint32_t h = 0; h < kHeads; ++h) lists.push_back(out.list(h));
      CHECK(lists[0].back() > 65600);
      for (const std::vector<uint32_t>& list : lists) {
        std::vector<uint32_t> want;
        for (uint32_t t = kBegin; t < kEnd; ++t) {
          const uint32_t like = (t - kBegin) % kKeys + kBegin;
          if (std::binary_search(list.begin(), list.end(), like)) want.push_back(t);
        }
        CHECK(!want.empty());
        CHECK(list == want);
      }
      if (first.empty()) first = lists;
      CHECK(lists == first);
    }
  }

  TEST_CASE("a budget thins the group's union and weighs what is left the more") {
    const Data data = cone(500, 61);
    FakeHost host;
    KeyScene scene(geometry(9), data.keys, data.q);
    scene.candidates(4, 480);
    const OptionValues options = {{"K", int64_t{4}}, {"L", int64_t{20}}};
    auto limited = options;
    limited["budget_tokens"] = int64_t{40};
    Selector all(host, "magicpig", options), few(host, "magicpig", limited);
    SelectionBuffer a(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_Q_HEAD, kHeads, 4000);
    SelectionBuffer b(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_Q_HEAD, kHeads, 4000);
    for (auto [selector, out] : {std::pair{&all, &a}, std::pair{&few, &b}}) {
      open(*selector, scene.geometry());
      REQUIRE(scene.prompt_end(*selector) == KVASIR_OK);
      REQUIRE(scene.select(*selector, out->selection) == KVASIR_OK);
    }
    for (uint32_t kv_head = 0; kv_head < kKvHeads; ++kv_head) {
      std::set<uint32_t> before, after;
      for (uint32_t h = 2 * kv_head; h < 2 * kv_head + 2; ++h) {
        for (const uint32_t t : a.list(h)) before.insert(t);
        for (const uint32_t t : b.list(h)) after.insert(t);
      }
      REQUIRE(before.size() > 60);
      CHECK(after.size() == 40);
      const auto more = std::log(static_cast<double>(before.size()) / 40);
      for (uint32_t h = 2 * kv_head; h < 2 * kv_head + 2; ++h) {
        const auto lists = a.list(h), kept = b.list(h);
        const auto weights = a.weights(h), lighter = b.weights(h);
        for (size_t i = 0; i < kept.size(); ++i) {
          const auto at = std::find(lists.begin(), lists.end(), kept[i]) - lists.begin();
          REQUIRE(at < static_cast<ptrdiff_t>(lists.size()));
          CHECK(std::abs(lighter[i] - weights[static_cast<size_t>(at)] - more) < 1e-5);
        }
      }
    }
  }
}

}  // namespace
