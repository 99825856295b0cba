// See duel.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/harness/duel.h"

#include <set>

#include "tests/support/larger_or_nan.h"

namespace kvasir::oracle {
namespace {

using test::Bench;
using test::RecordedRun;
using test::Recording;

std::string toml_of(const Case& of, const Strategy& strategy) {
  return "[cache]\nblock_size = " + std::to_string(of.cache.block_size) +
         "\nsink_tokens = " + std::to_string(of.cache.sink_tokens) +
         "\nwindow_tokens = " + std::to_string(of.cache.window_tokens) + "\nwindow_mode = '" +
         (of.cache.window_from_prompt ? "prompt" : "rolling") +
         "'\nwindow_flush_tokens = " + std::to_string(of.cache.window_flush_tokens) +
         "\nchunk_size = " + std::to_string(of.chunk_size) + "\non_fault = 'fail'\npositions = '" +
         (strategy.placing.by_slot ? "slot" : "true") + "'\n" + strategy.cache_keys +
         strategy.tables +
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
      for (uint32_t i = 0; i < run.ranges.size(); ++i)
        to = std::max(to, run.ranges[i].kv_len), n_q = std::max(n_q, run.ranges[i].n_q);
      if (side.follower->chooses_in_prefill())
        compare(side, run, to - n_q, to);
      else
        compare_prefill(side, run, to - n_q, to);
    }
    if (why_.empty()) side.follower->prompted(side.track);
  }

  std::vector<Indices> tokens_of_run(const Side& side, const RecordedRun& run) const {
    const bool both = run.in_prefill && strategy_.placing.constant_distance > 0;
    return tokens_by_head(run, side.id, case_.shape.heads.n_kv_heads, both);
  }

  void compare_prefill(const Side& side, const RecordedRun& run, uint32_t from, uint32_t to) {
    const auto tokens = tokens_of_run(side, run);
    for (uint32_t g = 0; g < tokens.size() && why_.empty(); ++g) {
      const Indices all = side.follower->expect_prefill(side.track, run.layer, g, from, to);
      if (tokens[g] != all)
        why_ = "prefill of layer " + std::to_string(run.layer) + ", kv head " + std::to_string(g) +
               ", chunk up to " + std::to_string(to) + " attends to " + list(tokens[g]) +
               ", not to " + list(all);
    }
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
    const bool in_prefill = run.in_prefill;
    Follower::Attended attended;
    attended.tokens = tokens_of_run(side, run);
    attended.weight = weights_by_head(run, side.id, attended.tokens, case_.shape.heads.group());
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
    const Heads& heads = case_.shape.heads;
    for (size_t s = 0; s < sides_.size(); ++s)
      report_.worst_output = test::larger_or_nan(
          report_.worst_output,
          output_error(book.runs.back(), sides_[s].id, sides_[s].track, strategy_.placing,
                       output_[layer] + s * heads.n_q_heads * heads.head_dim));
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
  const uint64_t before = report.choices;
  try {
    why = Duel(of, strategy, std::move(follower), report).run();
  } catch (const Error& e) {
    why = e.what();
  }
  for (const std::string& option : strategy.options)
    report.option_choices[option] += report.choices - before;
  CHECK_MESSAGE(why.empty(), of.text(), "\n", strategy.tables, why);
}

}  // namespace kvasir::oracle
