// See duel.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/harness/duel.h"

#include <set>

namespace kvasir::oracle {
namespace {

using test::Bench;
using test::RecordedRow;
using test::RecordedRun;
using test::Recording;

std::string toml_of(const Case& of, const Strategy& strategy) {
  return "[cache]\nblock_size = " + std::to_string(of.cache.block_size) +
         "\nsink_tokens = " + std::to_string(of.cache.sink_tokens) +
         "\nwindow_tokens = " + std::to_string(of.cache.window_tokens) + "\nwindow_mode = '" +
         (of.cache.window_from_prompt ? "prompt" : "rolling") +
         "'\nwindow_flush_tokens = " + std::to_string(of.cache.window_flush_tokens) +
         "\nchunk_size = " + std::to_string(of.chunk_size) + "\non_fault = 'fail'\n" +
         strategy.cache_keys + strategy.tables +
         "\n[attention]\nplugin = 'kvasir.test.recording_attention'\ninner = '" KVASIR_BINARY_DIR
         "/plugins/cpu.so'\n";
}

std::string list(const Indices& of) {
  std::string out = "{";
  for (size_t i = 0; i < of.size() && i < 40; ++i)
    out.append(i ? " " : "").append(std::to_string(of[i]));
  return out.append(of.size() > 40 ? " …}" : "}");
}

// One sequence on both sides.
struct Side {
  SequenceId id = 0;
  Track track;
  std::unique_ptr<Follower> follower;
};

class Duel {
 public:
  Duel(const Case& of, const Strategy& strategy, std::unique_ptr<Follower> follower, Report& report)
      : case_(of),
        strategy_(strategy),
        report_(report),
        world_(of.shape, of.seed),
        model_(world_.model(kMaxContext,
                            [this](uint32_t layer, auto, const float* o) {
                              output_[layer] = o;
                              if (decoding_) compare_outputs(layer);
                            })),
        output_(of.shape.n_layers) {
    EngineOptions options;
    options.max_context = kMaxContext;
    options.max_sequences = 4;
    options.seed = of.seed;
    engine_ = bench_.engine(model_, toml_of(of, strategy), options);
    test::recording_of(*engine_).armed = 1;
    sides_.push_back({engine_->open(), Track(world_), std::move(follower)});
  }

  // Empty, or the first thing that is wrong.
  std::string run() {
    for (const Action& action : case_.script) {
      act(action);
      if (!why_.empty()) return why_;
    }
    for (const Side& side : sides_) engine_->close(side.id);
    const uint64_t fallbacks =
        engine_->prefill_engagement().fallbacks + engine_->decode_engagement().fallbacks;
    if (fallbacks > 0) return std::to_string(fallbacks) + " fallbacks";
    return {};
  }

 private:
  static constexpr uint32_t kMaxContext = 4608;

  int32_t fresh_token() { return next_token_++; }

  void act(const Action& action) {
    Side& side = sides_[action.sequence];
    Reach& reach = report_.reach;
    switch (action.kind) {
      case Action::Kind::kPrompt:
        reach.second_prompts += side.track.size() > 0 ? 1 : 0;
        return prompt(side, action.n);
      case Action::Kind::kDecode:
        return decode_and_count(side, action.n);
      case Action::Kind::kFork:
        ++reach.forks;
        sides_.push_back({engine_->fork(side.id), side.track, side.follower->clone()});
        return;
      case Action::Kind::kTruncate:
        return truncate(side, action.n);
    }
  }

  void decode_and_count(const Side& side, uint32_t n) {
    const uint32_t before = side.track.size();
    for (uint32_t i = 0; i < n && why_.empty(); ++i) decode();
    if (!why_.empty()) return;
    Reach& reach = report_.reach;
    reach.runs += n >= Reach::kRun ? 1 : 0;
    reach.runs_from_nothing += n >= Reach::kRun && before == 0 ? 1 : 0;
    if (is_counted_) return;
    is_counted_ = true;
    const Reach::Shape shape{case_.shape.heads.group(), case_.shape.heads.head_dim,
                             case_.cache.block_size};
    ++reach.cases;
    reach.contexts.insert(before);
    reach.shapes.insert(shape);
    if (before >= Reach::kLong) reach.long_shapes.insert(shape);
  }

  void truncate(Side& side, uint32_t n) {
    if (n >= side.track.size()) return;
    const Follower::Cut cut = side.follower->cut(side.track, n);
    std::string refusal;
    try {
      engine_->truncate(side.id, n);
    } catch (const Error& e) {
      refusal = e.what();
    }
    const std::string begin = "cannot truncate to " + std::to_string(n) + " tokens: ";
    if (cut == Follower::Cut::kRefused && refusal.empty())
      why_ = "a cut to " + std::to_string(n) + " is made, though tokens behind it were dropped";
    if (cut == Follower::Cut::kPossible && !refusal.empty()) why_ = refusal;
    if (!refusal.empty() && (refusal.find(begin) == std::string::npos ||
                             refusal.find("the strategy has evicted tokens") == std::string::npos))
      why_ = "a cut is refused with: " + refusal;
    if (!why_.empty()) return;
    Reach& reach = report_.reach;
    if (!refusal.empty()) {  // the sequence goes on as if nothing had been asked
      ++reach.refused_cuts;
      return;
    }
    uint32_t& counter = n == 0                        ? reach.cuts_to_nothing
                        : n < side.track.prompt_end() ? reach.cuts_in_prompt
                                                      : reach.cuts_in_answer;
    ++counter;
    side.track.truncate(n);
    side.follower->truncated(side.track);
  }

  void prompt(Side& side, uint32_t n) {
    std::vector<TokenId> ids(n);
    for (TokenId& id : ids) id = fresh_token();
    const uint32_t begin = side.track.size();
    for (const TokenId id : ids) side.track.append(id);
    side.track.set_prompt(begin, begin + n);
    Recording& book = test::recording_of(*engine_);
    book.runs.clear();
    engine_->prefill(side.id, ids, {});
    for (uint32_t r = 0; r < book.runs.size() && why_.empty(); ++r) {
      const RecordedRun& run = book.runs[r];
      uint32_t to = 0, n_q = 0;
      for (uint32_t i = 0; i < run.rows.size(); ++i)
        to = std::max(to, run.rows[i].kv_len), n_q = std::max(n_q, run.rows[i].n_q);
      if (side.follower->chooses_in_prefill())
        compare(side, run, to - n_q, to);
      else
        compare_prefill(side, run, to - n_q, to);
    }
    if (why_.empty()) side.follower->prompted(side.track);
  }

  void compare_prefill(const Side& side, const RecordedRun& run, uint32_t from, uint32_t to) {
    const auto tokens = tokens_by_head(run, side.id);
    for (uint32_t g = 0; g < tokens.size() && why_.empty(); ++g) {
      const Indices all = side.follower->expect_prefill(side.track, run.layer, g, from, to);
      if (tokens[g] != all)
        why_ = "prefill of layer " + std::to_string(run.layer) + ", kv head " + std::to_string(g) +
               ", chunk up to " + std::to_string(to) + " attends to " + list(tokens[g]) +
               ", not to " + list(all);
    }
  }

  // Whether the query at `pos` sees token t of the row.
  static bool sees(const RecordedRow& row, uint32_t pos, uint32_t t) {
    return t <= pos && pos - t >= row.dist_min && pos - t < row.dist_max;
  }
  // What at least one query of the run sees. A token may be near to some and far from others.
  std::vector<Indices> tokens_by_head(const RecordedRun& run, SequenceId id) const {
    std::vector<Indices> out(case_.shape.heads.n_kv_heads);
    for (uint32_t r = 0; r < run.rows.size(); ++r) {
      const RecordedRow& row = run.rows[r];
      if (row.seq != id) continue;
      for (uint32_t i = 0; i < row.token.size(); ++i) {
        const uint32_t t = row.token[i], first = std::max(t, row.kv_len - row.n_q);
        // Distances grow with the position: the first query that is far enough is the nearest.
        const uint32_t pos = std::max(first, t + row.dist_min);
        if (pos < row.kv_len && sees(row, pos, t)) out[row.kv_head].push_back(t);
      }
    }
    for (Indices& tokens : out) {
      std::sort(tokens.begin(), tokens.end());
      if (run.moment < KVASIR_D1 && strategy_.constant_distance > 0)
        tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    }
    return out;
  }

  std::vector<std::vector<Vector>> weights_by_head(const RecordedRun& run, SequenceId id,
                                                   const std::vector<Indices>& tokens) const {
    const uint32_t group = case_.shape.heads.group();
    std::vector<std::vector<Vector>> out;
    for (const Indices& of : tokens) out.emplace_back(of.size(), Vector(group, 0.0));
    for (uint32_t r = 0; r < run.rows.size(); ++r) {
      const RecordedRow& row = run.rows[r];
      if (row.seq != id || row.weight_width == 0) continue;
      const Indices& of = tokens[row.kv_head];
      for (uint32_t i = 0; i < row.token.size(); ++i) {
        const auto at = std::lower_bound(of.begin(), of.end(), row.token[i]) - of.begin();
        for (uint32_t h = 0; h < group; ++h)
          out[row.kv_head][static_cast<size_t>(at)][h] =
              double{row.weight[i * row.weight_width + (row.weight_width > 1 ? h : 0)]};
      }
    }
    return out;
  }

  void decode() {
    std::vector<Engine::DecodeItem> items;
    for (Side& side : sides_) {
      items.push_back({side.id, fresh_token()});
      side.track.append(items.back().token);
    }
    std::vector<float> logits(items.size());
    Recording& book = test::recording_of(*engine_);
    book.runs.clear();
    decoding_ = true;
    engine_->decode(items, logits);
    decoding_ = false;
    for (uint32_t r = 0; r < book.runs.size(); ++r)
      for (Side& side : sides_)
        if (why_.empty()) compare(side, book.runs[r], side.track.size() - 1, side.track.size());
    report_.steps += sides_.size();
  }

  // The queries [from, to) share a choice.
  void compare(Side& side, const RecordedRun& run, uint32_t from, uint32_t to) {
    const bool in_prefill = run.moment < KVASIR_D1;
    Follower::Attended attended;
    attended.tokens = tokens_by_head(run, side.id);
    attended.weight = weights_by_head(run, side.id, attended.tokens);
    for (uint32_t g = 0; g < attended.tokens.size() && why_.empty(); ++g) {
      Expected expected = in_prefill
                              ? side.follower->expect_slice(side.track, run.layer, g, from, to)
                              : side.follower->expect(side.track, run.layer, g);
      attended.units.push_back(units_of(expected, attended.tokens[g], to));
      const uint64_t n = attended.units.back().size();
      if (n >= expected.n_low && n <= expected.n_high) expected.choice.n = n;
      Verdict verdict;
      if (why_.empty() && expected.any_subset)
        verdict.admissible = without(attended.units.back(), expected.choice.candidates).empty();
      else if (why_.empty())
        verdict = judge(expected.choice, attended.units.back(), strategy_.tolerance);
      if (!verdict.admissible)
        why_ = "layer " + std::to_string(run.layer) + ", kv head " + std::to_string(g) +
               ", length " + std::to_string(to) + ": " + verdict.why + why_ + "; attended " +
               list(attended.tokens[g]) + ", chosen " + list(attended.units.back()) +
               ", expected " + list(expected.choice.chosen()) + " with forced [0, " +
               std::to_string(expected.forced.sink_end) + ") and [" +
               std::to_string(expected.forced.window_begin) + ", …)";
      report_.choices += expected.choice.n < expected.choice.candidates.size() ? 1 : 0;
      report_.swapped += verdict.swapped;
      report_.worst_swap = std::max(report_.worst_swap, verdict.worst);
    }
    if (!why_.empty()) return;
    if (in_prefill)
      side.follower->attended_slice(side.track, run.layer, from, to, attended);
    else
      side.follower->attended(side.track, run.layer, attended);
  }

  // What was attended beside the forced tokens, in units; complains about torn blocks.
  Indices units_of(const Expected& expected, const Indices& tokens, uint32_t n) {
    const Indices forced = with_forced(expected.forced, {}, n);
    if (!without(forced, tokens).empty())
      why_ = " forced tokens " + list(without(forced, tokens)) + " are not attended";
    if (std::set<uint32_t>(tokens.begin(), tokens.end()).size() != tokens.size())
      why_ = " some token is attended twice";
    Indices units;
    for (const uint32_t t : without(tokens, forced))
      if (units.empty() || units.back() != t / expected.unit_tokens)
        units.push_back(t / expected.unit_tokens);
    if (tokens_of(units, expected.unit_tokens, n) != without(tokens, forced))
      why_ = " a block is attended in part";
    return units;
  }

  // The runtime's output against attention in double over what it attended to.
  void compare_outputs(uint32_t layer) {
    const Recording& book = test::recording_of(*engine_);
    const RecordedRun& run = book.runs[book.runs.size() - 1];
    const Heads& heads = case_.shape.heads;
    for (size_t s = 0; s < sides_.size(); ++s) {
      const Track& track = sides_[s].track;
      for (uint32_t h = 0; h < heads.n_q_heads; ++h) {
        const uint32_t g = heads.kv_head(h);
        const uint32_t pos = track.size() - 1, far = strategy_.constant_distance;
        const Vector q = track.q(layer, h, pos);
        const Vector q_far = track.q_at(layer, h, pos, far > 0 ? far - 1 : pos);
        Vector logit;
        Rows v;
        for (uint32_t r = 0; r < run.rows.size(); ++r) {
          const RecordedRow& row = run.rows[r];
          if (row.seq != sides_[s].id || row.kv_head != g) continue;
          const bool is_far = far > 0 && row.dist_min == far;
          for (uint32_t i = 0; i < row.token.size(); ++i) {
            if (!sees(row, pos, row.token[i])) continue;
            const uint32_t width = row.weight_width;
            const double weight =
                width ? double{row.weight[i * width + (width > 1 ? h % heads.group() : 0)]} : 0.0;
            const double product = is_far ? dot(q_far, track.k_raw(layer, g)[row.token[i]])
                                          : dot(q, track.k(layer, g)[row.token[i]]);
            logit.push_back(track.scale() * product + weight);
            v.push_back(track.v(layer, g)[row.token[i]]);
          }
        }
        const Partial exact = attend(logit, v, heads.head_dim);
        const float* o = output_[layer] + (s * heads.n_q_heads + h) * heads.head_dim;
        for (uint32_t d = 0; d < heads.head_dim; ++d)
          report_.worst_output =
              std::max(report_.worst_output, std::abs(exact.o[d] - double{o[d]}));
      }
    }
  }

  const Case& case_;
  const Strategy& strategy_;
  Report& report_;
  World world_;
  PrescribedModel model_;
  std::vector<const float*> output_;
  Bench bench_;
  std::unique_ptr<Engine> engine_;
  std::vector<Side> sides_;
  int32_t next_token_ = 1;
  bool decoding_ = false;
  bool is_counted_ = false;  // in the report's reach
  std::string why_;
};

}  // namespace

Indices Follower::expect_prefill(const Track&, uint32_t, uint32_t, uint32_t, uint32_t to) {
  return range(0, to);
}

Expected Follower::expect_slice(const Track&, uint32_t, uint32_t, uint32_t, uint32_t) {
  return {{0, 0}, 1, {}};  // everything
}

void duel(const Case& of, const Strategy& strategy, std::unique_ptr<Follower> follower,
          Report& report) {
  std::string why;
  try {
    why = Duel(of, strategy, std::move(follower), report).run();
  } catch (const Error& e) {
    why = e.what();
  }
  CHECK_MESSAGE(why.empty(), of.text(), "\n", strategy.tables, why);
}

std::string Report::text() const {
  return std::to_string(reach.cases) + " cases, " + std::to_string(steps) + " steps, " +
         std::to_string(choices) + " real choices, " + std::to_string(swapped) +
         " swaps at near-ties (worst " + std::to_string(worst_swap) +
         " of the scale), outputs within " + std::to_string(worst_output);
}

void check_reach(const Report& report, const std::string& name, const Demand& demand) {
  MESSAGE(name, " reach: ", report.reach.text());
  const std::string missing = report.reach.shortfall(demand);
  if (!are_cases_reduced()) CHECK_MESSAGE(missing.empty(), "not reached: ", missing);
}

void conclude(const Report& report, const std::string& name, const Demand& demand) {
  MESSAGE(name, ": ", report.text());
  check_reach(report, name, demand);
  CHECK(report.choices > report.reach.cases);
  CHECK(report.swapped * 50 <= report.choices);  // items; a choice has hundreds
  CHECK(report.worst_output < 1e-4);
}

}  // namespace kvasir::oracle
