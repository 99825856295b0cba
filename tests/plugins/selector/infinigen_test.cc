// infinigen: with all columns it is exact, with few it takes those it says; its index follows the
// sequence through chunks, forks, cuts and refreshes; its files and saved states are not trusted.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/ext/draft/skew.h>
#include <kvasir/ext/draft/state.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <set>

#include "tests/plugins/selector/key_scene.h"
#include "tests/plugins/selector/prescribed_run.h"
#include "tests/support/effort.h"
#include "tests/support/readme.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;
using Selector = PluginInstance<kvasir_selector>;
using Columns = std::vector<uint32_t>;

constexpr uint32_t kSink = 2, kWindow = 5, kDim = Prescribed::kDim;
constexpr uint64_t kHash = 0x1234;
const std::string kCache =
    "[cache]\nblock_size = 8\nsink_tokens = 2\nwindow_tokens = 5\ndense_layers = [0]\n";

std::string infinigen(const std::string& options) {
  return "[selector]\nplugin = 'kvasir.infinigen'\n" + options;
}

struct Choice {
  std::vector<std::vector<uint32_t>> tokens;  // per kv head, forced parts included
  double margin = 1e9;                        // how far the scores are from another choice
};

// What the rule says for the query at position n - 1: per kv head the largest partial logit of its
// group; how many tokens a head has within alpha of its best, on average; that many of each.
Choice choose(const Prescribed& given, uint32_t layer, uint32_t n, double alpha, size_t cap,
              const std::function<bool(uint32_t kv_head, uint32_t d)>& in_use) {
  Choice out;
  std::vector<std::vector<std::pair<double, uint32_t>>> scored(2);
  size_t total = 0;
  for (uint32_t kv = 0; kv < 2; ++kv) {
    Columns columns;
    std::vector<double> q[2], k;  // in these columns
    for (uint32_t d = 0; d < kDim; ++d)
      if (in_use(kv, d)) columns.push_back(d);
    for (uint32_t g = 0; g < 2; ++g)
      for (const uint32_t d : columns)
        q[g].push_back(given.q(layer, static_cast<int32_t>(n) - 1, 2 * kv + g, d));
    for (uint32_t t = kSink; t + kWindow < n; ++t) {
      k.clear();
      for (const uint32_t d : columns) k.push_back(given.k(layer, static_cast<int32_t>(t), kv, d));
      double best = -1e30;
      for (const std::vector<double>& head : q)
        best = std::max(best, std::inner_product(head.begin(), head.end(), k.begin(), 0.0) / 4);
      scored[kv].emplace_back(-best, t);
    }
    std::sort(scored[kv].begin(), scored[kv].end());
    for (const auto& [score, t] : scored[kv]) {
      total += score < scored[kv][0].first + alpha;
      out.margin = std::min(out.margin, std::abs(score - scored[kv][0].first - alpha));
    }
  }
  const size_t count = std::max<size_t>(1, std::min(total / 2, cap));
  for (uint32_t kv = 0; kv < 2; ++kv) {
    std::vector<uint32_t> tokens = up_to(kSink);
    for (size_t i = 0; i < std::min(count, scored[kv].size()); ++i)
      tokens.push_back(scored[kv][i].second);
    if (count < scored[kv].size())
      out.margin = std::min(out.margin, scored[kv][count].first - scored[kv][count - 1].first);
    for (uint32_t t = n - kWindow; t < n; ++t) tokens.push_back(t);
    std::sort(tokens.begin(), tokens.end());
    out.tokens.push_back(tokens);
  }
  return out;
}
bool all_columns(uint32_t, uint32_t) { return true; }

// One more token; what each sparse layer and kv head attended to.
std::vector<std::vector<uint32_t>> step(Engine& engine, SequenceId seq) {
  Recording& book = recording_of(engine);
  book.runs.clear();
  book.armed = 1;
  Prescribed::decode(engine, seq);
  book.armed = 0;
  std::vector<std::vector<uint32_t>> out;
  for (uint32_t layer = 1; layer < 3; ++layer)
    for (uint32_t kv = 0; kv < 2; ++kv) out.push_back(attended(book.runs[layer], seq, kv));
  return out;
}

// Of column c of the skew file: no two of a head's are equal, and those of q and k rank otherwise.
double file_sum(uint32_t layer, uint32_t kv_head, bool of_keys, uint32_t c) {
  return 1 + (c * (of_keys ? 5 : 7) + 3 * layer + 5 * kv_head + (of_keys ? 4 : 0)) % kDim;
}

// A random rotation per layer and kv head, and these sums, in the file's format.
std::string skew_bytes(uint64_t model_hash = kHash) {
  std::vector<float> columns;
  for (uint32_t matrix = 0; matrix < 3 * 2; ++matrix) {
    const auto random = normal_floats(kDim * kDim, 100 + matrix);
    std::vector<std::vector<double>> orthonormal;
    for (uint32_t c = 0; c < kDim; ++c) {  // Gram and Schmidt
      std::vector<double> column(random.begin() + c * kDim, random.begin() + (c + 1) * kDim);
      for (const auto& other : orthonormal) {
        double dot = 0;
        for (uint32_t d = 0; d < kDim; ++d) dot += column[d] * other[d];
        for (uint32_t d = 0; d < kDim; ++d) column[d] -= dot * other[d];
      }
      double length = 0;
      for (const double x : column) length += x * x;
      for (double& x : column) x /= std::sqrt(length);
      orthonormal.push_back(column);
      for (const double x : column) columns.push_back(static_cast<float>(x));
    }
  }
  for (uint32_t head = 0; head < 3 * 2; ++head)
    for (uint32_t i = 0; i < 2 * kDim; ++i)
      columns.push_back(static_cast<float>(file_sum(head / 2, head % 2, i >= kDim, i % kDim)));
  kvasir_skew_header header{KVASIR_SKEW_MAGIC, KVASIR_SKEW_VERSION, 3, 2, kDim, model_hash, 0};
  header.checksum = XXH3_64bits(columns.data(), columns.size() * sizeof(float));
  std::string out(reinterpret_cast<const char*>(&header), sizeof header);
  out.append(reinterpret_cast<const char*>(columns.data()), columns.size() * sizeof(float));
  return out;
}
std::string write_file(const TempDir& dir, const std::string& bytes) {
  const std::string path = dir.path("a.skew");
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

kvasir_geometry run_geometry() {
  kvasir_geometry g = small_geometry();
  g.n_layers = 3;
  g.n_q_heads = 4;
  g.n_kv_heads = 2;
  g.head_dim = g.v_dim = kDim;
  g.block_size = 8;
  g.model_hash = kHash;
  return g;
}

// Queries and keys as the file's matrices turn them.
void skew(Prescribed& given, const std::string& bytes) {
  std::vector<float> a(3 * 2 * kDim * kDim);
  std::memcpy(a.data(), bytes.data() + sizeof(kvasir_skew_header), a.size() * sizeof(float));
  const auto fold = [a](const Prescribed::Value& value, uint32_t heads_per_kv) {
    return [a, value, heads_per_kv](uint32_t l, int32_t t, uint32_t h, uint32_t c) {
      const float* column = a.data() + ((l * 2 + h / heads_per_kv) * kDim + c) * kDim;
      double sum = 0;
      for (uint32_t d = 0; d < kDim; ++d) sum += double{value(l, t, h, d)} * double{column[d]};
      return static_cast<float>(sum);
    };
  };
  given.q = fold(given.q, 2);
  given.k = fold(given.k, 1);
}

TEST_SUITE("plugins/selector/infinigen") {
  TEST_CASE("with all columns the choice is that of the exact logits") {
    const TempDir dir;
    const std::string skew = "skew_file = '" + write_file(dir, skew_bytes()) + "'\n";
    for (const std::string& more : {std::string(), skew, skew + "speculate_ahead = 0\n",
                                    skew + "speculate_ahead = 2\n", std::string("budget = 0.1\n")})
      for (const uint32_t chunk : {1u, 7u, 100u}) {
        if (few_cases() && chunk != 7) continue;
        CAPTURE(more);
        CAPTURE(chunk);
        Prescribed given;
        const bool share = more.find("budget") != std::string::npos;
        const auto engine =
            given.engine(kCache + "chunk_size = " + std::to_string(chunk) + "\n" +
                             infinigen("partial_weight_ratio = 1.0\nalpha = 2.0\n" + more +
                                       (share ? "" : "budget_tokens = 11\n")) +
                             kRecording,
                         kHash);
        const auto seq = engine->open();
        Prescribed::prompt(*engine, seq, 90);
        uint32_t checked = 0;
        for (uint32_t n = 91; n < 151; ++n) {
          const auto got = step(*engine, seq);
          for (uint32_t layer = 1; layer < 3; ++layer) {
            const Choice want = choose(given, layer, n, 2.0,
                                       share ? static_cast<size_t>(0.1 * n) : 11, all_columns);
            if (want.margin < 5e-3) continue;  // records are f16
            ++checked;
            for (uint32_t kv = 0; kv < 2; ++kv) CHECK(got[(layer - 1) * 2 + kv] == want.tokens[kv]);
          }
        }
        CHECK(checked > 25);
        CHECK(engine->decode_engagement().fallbacks == 0);
        CHECK(engine->decode_engagement().bypassed == 0);
      }
  }

  TEST_CASE("without RoPE: skew folded into queries and keys needs no skew file") {
    const TempDir dir;
    const std::string bytes = skew_bytes();
    Prescribed plain, folded;
    skew(folded, bytes);
    const std::string few = "partial_weight_ratio = 0.25\nalpha = 2.0\nbudget_tokens = 11\n";
    const std::string skew = "skew_file = '" + write_file(dir, bytes) + "'\n";
    const auto by_file = plain.engine(kCache + infinigen(few + skew) + kRecording, kHash);
    const auto by_weights = folded.engine(kCache + infinigen(few) + kRecording, kHash);
    const auto unskewed = plain.engine(kCache + infinigen(few) + kRecording, kHash);
    std::vector<SequenceId> seqs;
    for (Engine* engine : {by_file.get(), by_weights.get(), unskewed.get()}) {
      seqs.push_back(engine->open());
      Prescribed::prompt(*engine, seqs.back(), 90);
    }
    uint32_t equal = 0, unlike = 0, n = 0;
    for (int i = 0; i < 60; ++i, n += 4) {
      const auto want = step(*by_file, seqs[0]), got = step(*by_weights, seqs[1]),
                 other = step(*unskewed, seqs[2]);
      for (size_t head = 0; head < 4; ++head) {
        equal += got[head] == want[head];
        unlike += other[head] != want[head];
      }
    }
    CHECK(equal >= n - 2);  // partial keys are f16: sums in another order round the other way
    CHECK(unlike > n / 2);
  }

  TEST_CASE("ratio 1, no threshold and a budget for all is dense, bit for bit") {
    std::vector<std::vector<float>> outputs;
    for (const std::string& selector :
         {std::string("[selector]\nplugin = 'kvasir.dense'\n"),
          infinigen("partial_weight_ratio = 1.0\nalpha = 1e30\nbudget_tokens = 4096\n")}) {
      Prescribed given;
      const auto engine = given.engine(kCache + selector);
      const auto seq = engine->open();
      Prescribed::prompt(*engine, seq, 70);
      for (int i = 0; i < 10; ++i) Prescribed::decode(*engine, seq);
      outputs.push_back(given.outputs);
    }
    CHECK(outputs[0] == outputs[1]);
  }

  TEST_CASE("without the bypass, all columns, no threshold and a budget for all give dense") {
    const TempDir dir;
    const std::string all = "partial_weight_ratio = 1.0\nalpha = 1e30\nbudget_tokens = 4096\n";
    Prescribed dense;
    const auto reference = dense.engine(kCache + "[selector]\nplugin = 'kvasir.dense'\n");
    const auto of_reference = reference->open();
    Prescribed::prompt(*reference, of_reference, 70);
    for (int i = 0; i < 10; ++i) Prescribed::decode(*reference, of_reference);
    for (const std::string& skew :
         {std::string(), "skew_file = '" + write_file(dir, skew_bytes()) + "'\n"}) {
      CAPTURE(skew);
      Prescribed given;
      const auto engine =
          given.engine(kCache + "bypass = false\n" + infinigen(all + skew) + kRecording, kHash);
      const auto seq = engine->open();
      Prescribed::prompt(*engine, seq, 70);
      for (uint32_t n = 71; n < 81; ++n)
        for (const auto& tokens : step(*engine, seq)) CHECK(tokens == up_to(n));
      CHECK(engine->decode_engagement().bypassed == 0);
      CHECK(max_difference(given.outputs, dense.outputs) < 1e-5);  // sums in another order
    }
  }

  TEST_CASE("few columns: those with the largest sums over the prompt, as each rule says") {
    // Columns differ by a factor, so that no sum depends on rounding.
    const auto factor = [](uint32_t kind, uint32_t d) {
      return 0.5f + 0.1f * static_cast<float>((d * 7 + kind * 5) % 16);
    };
    for (const std::string rule : {"q", "qk", "union"}) {
      CAPTURE(rule);
      Prescribed given;
      given.q = [&](uint32_t l, int32_t t, uint32_t h, uint32_t d) {
        return given_value(l, t, h, d, 0) * factor(0, d);
      };
      given.k = [&](uint32_t l, int32_t t, uint32_t h, uint32_t d) {
        return given_value(l, t, h, d, 1) * factor(1, d);
      };
      const auto engine =
          given.engine(kCache + "chunk_size = 33\n" +
                       infinigen("partial_weight_ratio = 0.27\nalpha = 2.0\nbudget_tokens = 9\n"
                                 "column_score = '" +
                                 rule + "'\n") +
                       kRecording);
      const auto seq = engine->open();
      Prescribed::prompt(*engine, seq, 90);
      // int(0.27 * 16) = 4 columns.
      std::vector<std::vector<Columns>> columns(3, std::vector<Columns>(2));
      for (uint32_t layer = 1; layer < 3; ++layer)
        for (uint32_t kv = 0; kv < 2; ++kv) {
          std::vector<double> q_sum(kDim), k_sum(kDim);
          for (int32_t t = 0; t < 90; ++t)
            for (uint32_t d = 0; d < kDim; ++d) {
              for (uint32_t h = 2 * kv; h < 2 * kv + 2; ++h)
                q_sum[d] += std::abs(given.q(layer, t, h, d));
              k_sum[d] += std::abs(given.k(layer, t, kv, d));
            }
          const auto best = [&](const std::vector<double>& sum) {
            Columns order = up_to(kDim);
            std::sort(order.begin(), order.end(),
                      [&](uint32_t a, uint32_t b) { return sum[a] > sum[b]; });
            order.resize(4);
            return order;
          };
          auto both = q_sum;
          for (uint32_t d = 0; d < kDim; ++d) both[d] += k_sum[d];
          columns[layer][kv] = best(rule == "qk" ? both : q_sum);
          if (rule == "union")
            for (const uint32_t c : best(k_sum)) columns[layer][kv].push_back(c);
        }
      uint32_t checked = 0;
      for (uint32_t n = 91; n < 151; ++n) {
        const auto got = step(*engine, seq);
        for (uint32_t layer = 1; layer < 3; ++layer) {
          const Choice want = choose(given, layer, n, 2.0, 9, [&](uint32_t kv, uint32_t d) {
            const Columns& c = columns[layer][kv];
            return std::find(c.begin(), c.end(), d) != c.end();
          });
          if (want.margin < 5e-3) continue;
          ++checked;
          for (uint32_t kv = 0; kv < 2; ++kv) CHECK(got[(layer - 1) * 2 + kv] == want.tokens[kv]);
        }
      }
      CHECK(checked > 25);
    }
  }

  TEST_CASE("columns chosen offline are those of the skew file, with a prompt and without") {
    const TempDir dir;
    const std::string bytes = skew_bytes();
    const std::string file = "columns = 'offline'\nskew_file = '" + write_file(dir, bytes) + "'\n";
    Prescribed skewed;
    skew(skewed, bytes);
    for (const std::string rule : {"q", "qk", "union"})
      for (const uint32_t n_prompt : {0u, 90u}) {
        if (few_cases() && (n_prompt > 0) == (rule == "union")) continue;
        CAPTURE(rule);
        CAPTURE(n_prompt);
        Prescribed given;
        const auto engine = given.engine(kCache + "chunk_size = 33\n" +
                                             infinigen("partial_weight_ratio = 0.27\nalpha = 2.0\n"
                                                       "budget_tokens = 9\ncolumn_score = '" +
                                                       rule + "'\n" + file) +
                                             kRecording,
                                         kHash);
        const auto seq = engine->open();
        if (n_prompt > 0) Prescribed::prompt(*engine, seq, n_prompt);
        // int(0.27 * 16) = 4 columns.
        const auto in_use = [&](uint32_t layer, uint32_t kv, uint32_t c) {
          const auto is_among_best = [&](const std::function<double(uint32_t)>& sum) {
            uint32_t before = 0;  // of equal ones, the lower
            for (uint32_t o = 0; o < kDim; ++o)
              before += sum(o) > sum(c) || (sum(o) == sum(c) && o < c);
            return before < 4;
          };
          const auto q = [&](uint32_t o) { return file_sum(layer, kv, false, o); };
          const auto k = [&](uint32_t o) { return file_sum(layer, kv, true, o); };
          if (rule == "qk") return is_among_best([&](uint32_t o) { return q(o) + k(o); });
          return is_among_best(q) || (rule == "union" && is_among_best(k));
        };
        uint32_t checked = 0;
        for (uint32_t n = n_prompt + 1; n < n_prompt + 61; ++n) {
          const auto got = step(*engine, seq);
          for (uint32_t layer = 1; layer < 3 && n > kSink + kWindow + 9; ++layer) {
            const Choice want = choose(skewed, layer, n, 2.0, 9, [&](uint32_t kv, uint32_t c) {
              return in_use(layer, kv, c);
            });
            if (want.margin < 5e-3) continue;
            ++checked;
            for (uint32_t kv = 0; kv < 2; ++kv) CHECK(got[(layer - 1) * 2 + kv] == want.tokens[kv]);
          }
        }
        CHECK(checked > 25);
        CHECK(engine->decode_engagement().fallbacks == 0);
      }
  }

  TEST_CASE("the columns can follow the queries while tokens are generated") {
    const auto phase = [](int32_t token) { return token < 90 ? 0u : 1u; };
    for (const bool refresh : {false, true}) {
      CAPTURE(refresh);
      Prescribed given;  // the prompt's queries live in the first four columns, later ones behind
      given.q = [&](uint32_t l, int32_t t, uint32_t h, uint32_t d) {
        return d / 4 == phase(t) ? given_value(l, t, h, d, 0) : 0.0f;
      };
      const auto engine =
          given.engine(kCache +
                       infinigen("partial_weight_ratio = 0.25\nalpha = 2.0\nbudget_tokens = 9\n" +
                                 std::string(refresh ? "refresh_every = 6\n" : "")) +
                       kRecording);
      const auto seq = engine->open();
      Prescribed::prompt(*engine, seq, 90);
      uint32_t same = 0, compared = 0;
      for (uint32_t n = 91; n < 151; ++n) {
        const auto got = step(*engine, seq);
        if (n <= 96) continue;  // the sixth generated token brings the first refresh
        for (uint32_t layer = 1; layer < 3; ++layer) {
          const Choice want = choose(given, layer, n, 2.0, 9, all_columns);
          if (want.margin < 5e-3) continue;
          for (uint32_t kv = 0; kv < 2; ++kv, ++compared)
            same += got[(layer - 1) * 2 + kv] == want.tokens[kv];
        }
      }
      REQUIRE(compared > 40);
      CHECK(same == (refresh ? compared : 0));
    }
  }

  TEST_CASE("int8 speculation chooses nearly what f16 does") {
    std::vector<std::vector<std::vector<uint32_t>>> got;
    for (const std::string type : {"f16", "int8"}) {
      Prescribed given;
      const auto engine = given.engine(kCache +
                                       infinigen("partial_weight_ratio = 0.5\nalpha = 2.0\n"
                                                 "budget_tokens = 20\npartial_type = '" +
                                                 type + "'\n") +
                                       kRecording);
      const auto seq = engine->open();
      Prescribed::prompt(*engine, seq, 200);
      std::vector<std::vector<uint32_t>> all;
      for (int i = 0; i < 20; ++i)
        for (auto& tokens : step(*engine, seq)) all.push_back(tokens);
      got.push_back(all);
    }
    size_t common = 0, total = 0;
    for (size_t i = 0; i < got[0].size(); ++i) {
      std::vector<uint32_t> both;
      std::set_intersection(got[0][i].begin(), got[0][i].end(), got[1][i].begin(), got[1][i].end(),
                            std::back_inserter(both));
      common += both.size();
      total += got[0][i].size();
    }
    CHECK(common > total * 95 / 100);
    CHECK(got[0] != got[1]);  // or the option would do nothing
  }

  TEST_CASE("a selected prefill uses the file's first columns, one query at a time all of them") {
    const TempDir dir;
    const std::string file = "skew_file = '" + write_file(dir, skew_bytes()) + "'\n";
    Prescribed given;
    const auto engine =
        given.engine(kCache + "chunk_size = 10\n" +
                         infinigen(file + "prefill_select_tokens = 1\nalpha = 2.0\n"
                                          "budget_tokens = 6\npartial_weight_ratio = 0.2\n"
                                          "partial_weight_ratio_prefill = 1.0\n") +
                         kRecording,
                     kHash);
    const auto seq = engine->open();
    Recording& book = recording_of(*engine);
    book.armed = 1;
    Prescribed::prompt(*engine, seq, 60);
    uint32_t checked = 0;
    for (uint32_t i = 0; i < book.runs.size(); ++i) {
      const RecordedRun& run = book.runs[i];
      if (run.layer == 0 || run.ranges.size() == 0) continue;
      const uint32_t n = run.ranges[0].kv_len;
      if (n <= kSink + kWindow + 6) continue;
      const Choice want = choose(given, run.layer, n, 2.0, 6, all_columns);
      if (want.margin < 5e-3) continue;
      ++checked;
      for (uint32_t kv = 0; kv < 2; ++kv) CHECK(attended(run, seq, kv) == want.tokens[kv]);
    }
    CHECK(checked > 60);
    book.armed = 0;
    // From the prompt's end on the index has what decode needs: still the first of its own order.
    for (int i = 0; i < 5; ++i)
      for (const auto& tokens : step(*engine, seq)) CHECK(tokens.size() <= kSink + kWindow + 6);
    CHECK(engine->decode_engagement().fallbacks == 0);
  }

  TEST_CASE("a sequence chooses the same alone and in a batch, forked and cut") {
    const std::string toml = kCache +
                             infinigen(
                                 "partial_weight_ratio = 0.3\nalpha = 2.0\n"
                                 "budget_tokens = 9\n") +
                             kRecording;
    Prescribed given;
    const auto plain = given.engine(toml);
    const auto alone = plain->open();
    Prescribed::prompt(*plain, alone, 80);
    std::vector<std::vector<std::vector<uint32_t>>> want;
    for (int i = 0; i < 30; ++i) want.push_back(step(*plain, alone));

    const auto engine = given.engine(toml);
    const auto a = engine->open(), other = engine->open();
    Prescribed::prompt(*engine, a, 80);
    Prescribed::prompt(*engine, other, 47);
    Recording& book = recording_of(*engine);
    for (size_t i = 0; i < 10; ++i) {
      book.runs.clear();
      book.armed = 1;
      Prescribed::decode(*engine, std::vector<SequenceId>{other, a});
      for (uint32_t layer = 1; layer < 3; ++layer)
        for (uint32_t kv = 0; kv < 2; ++kv)
          CHECK(attended(book.runs[layer], a, kv) == want[i][(layer - 1) * 2 + kv]);
    }
    const auto fork = engine->fork(a);
    for (int i = 0; i < 7; ++i) step(*engine, fork);
    for (size_t i = 10; i < 20; ++i) CHECK(step(*engine, a) == want[i]);
    engine->truncate(fork, 91);  // inside a block: 91 = 8 * 11 + 3
    for (size_t i = 11; i < 25; ++i) CHECK(step(*engine, fork) == want[i]);
    engine->close(a);
    for (size_t i = 25; i < 30; ++i) CHECK(step(*engine, fork) == want[i]);
    CHECK(engine->decode_engagement().fallbacks == 0);
  }

  TEST_CASE("a full pool loses each token once, the least used first") {
    for (const std::string policy : {"counter", "lru", "fifo"}) {
      CAPTURE(policy);
      Prescribed given;
      // One old token matters to every query.
      given.q = [](uint32_t l, int32_t t, uint32_t h, uint32_t d) {
        return d == 0 ? 12.0f : given_value(l, t, h, d, 0);
      };
      given.k = [](uint32_t l, int32_t t, uint32_t h, uint32_t d) {
        return d == 0 ? (t == 10 ? 4.0f : 0.0f) : given_value(l, t, h, d, 1);
      };
      const auto engine = given.engine(
          kCache + "bypass = false\n" +
          infinigen("partial_weight_ratio = 1.0\nalpha = 1.0\nbudget_tokens = 3\npool_limit = 20\n"
                    "eviction_policy = '" +
                    policy + "'\n") +
          kRecording);
      const auto seq = engine->open();
      Prescribed::prompt(*engine, seq, 40);
      for (uint32_t n = 41; n < 90; ++n) {
        const auto got = step(*engine, seq);
        const auto& tokens = got[0];
        const bool attends = std::find(tokens.begin(), tokens.end(), 10u) != tokens.end();
        CHECK((n == 41 || attends == (policy != "fifo")));
      }
      CHECK(engine->decode_engagement().fallbacks == 0);
      for (const std::string& line : given.bench.log)
        CHECK(line.find("no skew_file") != std::string::npos);
    }
  }

  TEST_CASE("there are as many victims as evictions, and the pool holds its limit") {
    Prescribed given;
    const auto engine = given.engine(
        kCache + "bypass = false\n" +
        infinigen("alpha = 1e30\nbudget_tokens = 4096\npool_limit = 20\n") + kRecording);
    const auto seq = engine->open();
    Prescribed::prompt(*engine, seq, 40);
    std::set<uint32_t> victims, before;
    uint32_t n_evictions = 0;
    for (uint32_t n = 41; n < 90; ++n) {
      const auto live = step(*engine, seq)[2];
      for (const uint32_t t : before)
        if (!std::binary_search(live.begin(), live.end(), t)) ++n_evictions, victims.insert(t);
      before.insert(live.begin(), live.end());
      for (const uint32_t t : victims) before.erase(t);
      if (n > 41) CHECK(live.size() == kSink + 20 + 1 + kWindow);  // one left the window since
    }
    CHECK(n_evictions == victims.size());
    CHECK(victims.size() == 89 - kSink - kWindow - 20 - 1);
  }

  TEST_CASE("a skew file that does not fit is refused with the reason") {
    const TempDir dir;
    const auto refusal = [&](std::string bytes, const std::string& reason) {
      CAPTURE(reason);
      FakeHost host;
      const std::string path = write_file(dir, bytes);
      Selector selector(host, "infinigen", {{"skew_file", path}});
      const kvasir_geometry g = run_geometry();
      CHECK(selector->base.bind(selector.self(), &g, selector.err()) == KVASIR_ERR_INVALID);
      CHECK_MESSAGE(selector.text().find(reason) != std::string::npos, selector.text());
      CHECK(selector.text().find(path) != std::string::npos);
      CHECK(selector.text().find("kvasir model skew") != std::string::npos);
    };
    const std::string good = skew_bytes();
    const auto patched = [&](size_t at, char value) {
      std::string bytes = good;
      bytes[at] = value;
      return bytes;
    };
    refusal("", "too short");
    refusal(good.substr(0, 39), "too short");
    refusal(patched(0, 'x'), "no skew file");
    refusal(patched(8, 1), "format version 1");
    refusal(patched(12, 4), "n_layers = 4");
    refusal(patched(16, 1), "n_kv_heads = 1");
    refusal(patched(20, 32), "head_dim = 32");
    refusal(skew_bytes(0x77), "0000000000000077");
    refusal(good.substr(0, good.size() - 1), "bytes, expected");
    refusal(good + "x", "bytes, expected");
    refusal(patched(100, 1), "damaged");
    const auto with_number = [&](size_t at, float value) {  // and the checksum that belongs to it
      std::string bytes = good;
      char* const numbers = bytes.data() + sizeof(kvasir_skew_header);
      std::memcpy(numbers + at * sizeof value, &value, sizeof value);
      const uint64_t sum = XXH3_64bits(numbers, bytes.size() - sizeof(kvasir_skew_header));
      std::memcpy(bytes.data() + offsetof(kvasir_skew_header, checksum), &sum, sizeof sum);
      return bytes;
    };
    refusal(with_number(0, 2.0f), "column 0 has not length 1");
    constexpr size_t kMatrices = 3 * 2 * kDim * kDim;
    refusal(with_number(kMatrices - 1, 2.0f), "column 95 has not length 1");
    for (const float wrong : {-1.0f, std::nanf(""), HUGE_VALF})
      refusal(with_number(kMatrices, wrong), "sum is negative or no number");
    FakeHost host;
    Selector missing(host, "infinigen", {{"skew_file", dir.path("none")}});
    const kvasir_geometry g = run_geometry();
    CHECK(missing->base.bind(missing.self(), &g, missing.err()) == KVASIR_ERR_INVALID);
    CHECK(missing.text().find("cannot be opened") != std::string::npos);
  }

  TEST_CASE("a saved sequence comes back; damaged bytes are refused") {
    FakeHost host;
    OptionValues options = {{"pool_limit", int64_t{9}},
                            {"refresh_every", int64_t{4}},
                            {"column_score", std::string("qk")}};
    SUBCASE("sums of columns") {}
    SUBCASE("sums of squares") {
      options.erase("column_score");
      options["skew_tokens"] = int64_t{8};
    }
    Selector selector(host, "infinigen", options);
    kvasir_geometry g = run_geometry();
    selector.bind(g);
    const auto* state = static_cast<const kvasir_state*>(
        selector->base.get_extension(selector.self(), KVASIR_EXT_STATE));
    REQUIRE(state);
    CHECK(selector->base.get_extension(selector.self(), "kvasir.state/2") == nullptr);
    const uint64_t seqs[] = {1, 2};
    REQUIRE(selector->base.seq_open(selector.self(), seqs, 2, selector.err()) == KVASIR_OK);
    KeyScene scene(g, normal_floats(40 * 2 * kDim, 1), normal_floats(4 * kDim, 2));
    scene.candidates(0, 40);
    kvasir_step_seq seq{};
    seq.id = 1, seq.unit_end = 30, seq.kv_len = 40;
    kvasir_step step{};
    seq.phase = KVASIR_PHASE_DECODE;
    step.moment = KVASIR_MOMENT_ATTENDED, step.n_seqs = 1, step.seq_size = sizeof seq,
    step.seqs = &seq;
    const uint64_t offsets[] = {0, 3, 5};
    const uint32_t index[] = {1, 4, 33, 2, 4};
    kvasir_mass mass{};
    mass.n_lists = 2, mass.list_offsets = offsets, mass.index = index;
    REQUIRE(selector->observe(selector.self(), &step, &mass, selector.err()) == KVASIR_OK);

    const auto save = [&](uint64_t id) {
      std::string bytes;
      REQUIRE(state->save(
                  selector.self(), id,
                  [](void* to, const void* from, uint64_t n) noexcept {
                    static_cast<std::string*>(to)->append(static_cast<const char*>(from), n);
                    return 0;
                  },
                  &bytes, selector.err()) == KVASIR_OK);
      return bytes;
    };
    const auto load = [&](const std::string& bytes) {
      return state->load(selector.self(), 2, bytes.data(), bytes.size(), selector.err());
    };
    const std::string bytes = save(1);
    CHECK(bytes != save(2));
    REQUIRE_MESSAGE(load(bytes) == KVASIR_OK, selector.text());
    CHECK(save(2) == bytes);
    for (size_t n = 0; n < bytes.size(); n += few_cases() ? 29 : 1) {
      REQUIRE(load(bytes.substr(0, n)) == KVASIR_ERR_INVALID);
      REQUIRE(!selector.text().empty());
    }
    CHECK(load(bytes + "x") == KVASIR_ERR_INVALID);
    std::mt19937 random(1);
    for (int i = 0; i < (few_cases() ? 100 : 3000);
         ++i) {  // whatever is accepted can be saved again
      std::string other = bytes;
      for (int k = 0; k < 3; ++k) other[random() % other.size()] = static_cast<char>(random());
      if (load(other) == KVASIR_OK) CHECK(save(2) == other);
    }
    CHECK(state->save(
              selector.self(), 1, [](void*, const void*, uint64_t) noexcept { return 1; }, nullptr,
              selector.err()) == KVASIR_ERR_CANCELLED);
  }

  TEST_CASE("a saved skew has the columns that are used, and no other is named") {
    FakeHost host;
    Selector selector(host, "infinigen", {{"skew_tokens", int64_t{8}}});
    kvasir_geometry g = run_geometry();
    const uint64_t dense[] = {3};  // layers 0 and 1: one is left
    g.dense_layers = dense;
    selector.bind(g);
    const auto* state = static_cast<const kvasir_state*>(
        selector->base.get_extension(selector.self(), KVASIR_EXT_STATE));
    const uint64_t seq = 1;
    REQUIRE(selector->base.seq_open(selector.self(), &seq, 1, selector.err()) == KVASIR_OK);
    constexpr uint32_t kColumns = kDim / 5;
    const auto load = [&](size_t n_skew, float value, uint16_t last_column) {
      std::string bytes;
      const auto put = [&](const auto& x) {
        bytes.append(reinterpret_cast<const char*>(&x), sizeof x);
      };
      put(uint64_t{0x326e656769666e69});
      for (const uint32_t x : {g.n_layers, g.n_kv_heads, g.head_dim, kColumns}) put(x);
      for (uint32_t layer = 0; layer < g.n_layers; ++layer) {
        put(uint32_t{0});  // counted
        for (uint32_t head = 0; layer == 2 && head < g.n_kv_heads; ++head) {
          put(uint64_t{kDim * (kDim + 1) / 2});
          for (uint32_t i = 0; i < kDim * (kDim + 1) / 2; ++i) put(-1.0);
          put(uint64_t{0}), put(uint64_t{0});  // of keys, since a refresh
          put(uint64_t{n_skew});
          for (size_t i = 0; i < n_skew; ++i) put(value);
          put(uint64_t{kColumns});
          for (uint16_t c = 0; c < kColumns; ++c) put(c + 1u < kColumns ? c : last_column);
          put(uint64_t{0});  // the pool
        }
      }
      return state->load(selector.self(), 1, bytes.data(), bytes.size(), selector.err());
    };
    REQUIRE_MESSAGE(load(kColumns * kDim, 1.0f, kColumns - 1) == KVASIR_OK, selector.text());
    CHECK(load(0, 1.0f, kDim - 1) == KVASIR_OK);  // none: any column of the keys themselves
    CHECK(load(kColumns * kDim, 1.0f, kColumns) == KVASIR_ERR_INVALID);
    CHECK(load(kColumns * kDim - 1, 1.0f, kColumns - 1) == KVASIR_ERR_INVALID);
    CHECK(load(kColumns * kDim, std::nanf(""), kColumns - 1) == KVASIR_ERR_INVALID);
  }

  TEST_CASE("without a skew it says so, once, and how to have one") {
    const TempDir dir;
    const auto said = [](const OptionValues& options) {
      FakeHost host(1);  // workers, without which it has no log
      Selector selector(host, "infinigen", options);
      const kvasir_geometry g = run_geometry();
      selector.bind(g);
      return host.lines();
    };
    const auto log = said({});
    REQUIRE(log.size() == 1);
    for (const char* word : {"no skew_file", "skew_tokens", "kvasir model skew"})
      CHECK(log[0].find(word) != std::string::npos);
    CHECK(said({{"skew_tokens", int64_t{64}}}).empty());
    CHECK(said({{"skew_file", write_file(dir, skew_bytes())}}).empty());
  }

  TEST_CASE("options that contradict each other are refused by name") {
    FakeHost host;
    CHECK(are_alternatives(host, "infinigen", {"skew_file", "skew_tokens"}));
    Selector two_orders(host, "infinigen",
                        {{"skew_tokens", int64_t{64}}, {"column_score", std::string("qk")}});
    CHECK(two_orders.status() == KVASIR_ERR_INVALID);
    CHECK(two_orders.text().find("column_score") != std::string::npos);
    CHECK(are_alternatives(host, "infinigen", {"budget_tokens", "budget"}));
    Selector unrotated(host, "infinigen");
    kvasir_geometry g = run_geometry();
    g.k_state = KVASIR_K_UNROTATED;
    CHECK(unrotated->base.validate(unrotated.self(), &g, unrotated.err()) == KVASIR_ERR_INVALID);
    Selector no_file(host, "infinigen", {{"prefill_select_tokens", int64_t{5}}});
    g = run_geometry();
    CHECK(no_file->base.bind(no_file.self(), &g, no_file.err()) == KVASIR_ERR_INVALID);
    CHECK(no_file.text().find("skew_file") != std::string::npos);
    const std::string offline = "offline";
    Selector no_columns(host, "infinigen", {{"columns", offline}});
    CHECK(no_columns.status() == KVASIR_ERR_INVALID);
    CHECK(no_columns.text().find("needs a skew_file") != std::string::npos);
    Selector two_minds(host, "infinigen",
                       {{"columns", offline}, {"skew_file", "x"}, {"refresh_every", int64_t{5}}});
    CHECK(two_minds.status() == KVASIR_ERR_INVALID);
    CHECK(two_minds.text().find("refresh_every") != std::string::npos);
  }

  TEST_CASE("records take the bytes per token that the README says") {
    const auto bytes = [](const std::string& type, double ratio) {
      FakeHost host;
      Selector selector(host, "infinigen",
                        {{"partial_type", type}, {"partial_weight_ratio", ratio}});
      kvasir_geometry g = run_geometry();
      g.head_dim = 128;
      g.block_size = 128;
      selector.bind(g);
      kvasir_layout layout{};
      REQUIRE(selector->layout(selector.self(), &layout, selector.err()) == KVASIR_OK);
      return layout.record_bytes / 128;
    };
    CHECK(bytes("f16", 0.2) == 50);
    CHECK(bytes("f16", 1.0) == 256);
    CHECK(bytes("int8", 0.2) == 32);
    check_claim("selector/infinigen",
                "`2 * ratio * head_dim` bytes per token, layer and kv head (50 at 0.2 of 128, "
                "measured: 50; int8: 32)");
  }
}

}  // namespace
