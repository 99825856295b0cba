// Random schedules of an engine: prompts in pieces, forks, cuts, pauses, prompts read together,
// cancelled sequences and faults, over every strategy. Who survives has what it would have got
// alone.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "tests/core/serving/replay.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kMaxStep = 48, kMaxSequences = 6, kVocab = 300;

// A sequence on its way, and all that was done to it.
struct Player {
  SequenceId seq = 0;
  StrategyId strategy = 0;
  std::vector<Op> ops{};
  Logits out{};
  std::vector<TokenId> tokens{};  // of the step at hand
  std::vector<float> logits = std::vector<float>(kVocab);
  SequenceId reads_with = 0;  // the sequence that reads its prompt
};

struct Coverage {
  uint32_t forks = 0, cuts = 0, cancels = 0, faults = 0, followed = 0, pieces = 0, decoded = 0,
           turns = 0, survivors = 0;
};

class Schedule {
 public:
  Schedule(const Entry& first, const Entry& second, uint32_t seed, Coverage& seen)
      : dice_(seed), entries_{&first, &second}, bench_(8, 2, first.head_dim), seen_(seen) {
    EngineOptions options;
    options.max_sequences = kMaxSequences;
    options.max_step_tokens = kMaxStep;
    engine_ = bench_.engine(strategy_of(first), options);
    engine_->add_strategy(bench_.pipeline(strategy_of(second)));
    const char* places[] = {"select", "observe", "evict_plan", "update"};
    engine_->add_strategy(bench_.pipeline(bench_.strategy(
        "[cache]\nblock_size = 8\nsink_tokens = 4\nwindow_tokens = 8\non_fault = 'fail'\n"
        "[selector]\nplugin = 'kvasir.test.bad_selector'\nfault = 'error'\nunit = 'token'\n"
        "where = '" +
        std::string(places[dice_.below(4)]) + "'\nfrom_call = " + std::to_string(dice_.below(60)) +
        "\n")));
  }

  void run(uint32_t n_actions) {
    for (uint32_t i = 0; i < n_actions; ++i) act();
  }

  void check(Soloists& alone) {
    std::string log;
    for (const std::string& line : bench_.log)
      if (line.find("bad_selector") == line.npos) log += line + "\n";
    CAPTURE(log);
    for (const Player& player : players_) {
      if (player.strategy == kFaulty) continue;
      const Entry& entry = *entries_[player.strategy];
      CAPTURE(entry.name);
      check_as_alone(player.out, alone.play(entry, player.ops), kCompany);
      ++seen_.survivors;
    }
  }

 private:
  static constexpr StrategyId kFaulty = 2;

  void act() {
    const uint32_t what = dice_.below(20);
    if (players_.size() < 2 || (what == 0 && players_.size() < kMaxSequences)) return open();
    Player& player = players_[dice_.below(static_cast<uint32_t>(players_.size()))];
    if (what == 1 && players_.size() < kMaxSequences) return fork(player);
    if (what == 2) return cut(player);
    if (what == 3 && dice_.one_in(2)) return cancel(player);
    if (what == 4) return end_or_begin_prompt(player);
    step();
  }

  Player* find(SequenceId seq) {
    for (Player& player : players_)
      if (player.seq == seq) return &player;
    return nullptr;
  }
  // Those that read with it, or it with, go on by themselves.
  void part(Player& player) {
    for (Player& other : players_)
      if (other.reads_with == player.seq) other.reads_with = 0;
    player.reads_with = 0;
  }

  void begin_prompt(Player& player, uint32_t n) {
    engine_->begin_prompt(player.seq, n);
    player.ops.push_back({Op::Kind::kBeginPrompt, n, {}});
  }

  void open() {
    const StrategyId strategy = dice_.one_in(6) ? kFaulty : dice_.below(2);
    players_.push_back({.seq = engine_->open(strategy), .strategy = strategy});
    if (dice_.one_in(5)) return;  // no prompt
    const uint32_t n = dice_.between(1, 60);
    begin_prompt(players_.back(), n);
    const StrategyId other = 1 - std::min(strategy, 1u);
    if (strategy == kFaulty || players_.size() == kMaxSequences || !dice_.one_in(2) ||
        !engine_->can_follow(strategy, other))
      return;
    const SequenceId leader = players_.back().seq;
    players_.push_back({.seq = engine_->open(other), .strategy = other});
    players_.back().reads_with = leader;
    begin_prompt(players_.back(), n);
  }

  void fork(Player& player) {
    Player child = player;
    child.seq = engine_->fork(player.seq);
    child.reads_with = 0;
    players_.push_back(std::move(child));
    ++seen_.forks;
  }

  void cut(Player& player) {
    const uint32_t kv_len = engine_->kv_len(player.seq);
    if (kv_len == 0) return;
    const uint32_t keep =
        dice_.one_in(2) ? kv_len - 1 - dice_.below(std::min(kv_len, 4u)) : dice_.below(kv_len);
    try {
      engine_->truncate(player.seq, keep);
    } catch (const Error&) {
      return;  // evicted tokens do not come back: nothing has changed
    }
    player.ops.push_back({Op::Kind::kCut, keep, {}});
    part(player);
    ++seen_.cuts;
  }

  void cancel(Player& player) {
    part(player);
    engine_->close(player.seq);
    players_.erase(players_.begin() + (&player - players_.data()));
    ++seen_.cancels;
  }

  void end_or_begin_prompt(Player& player) {
    if (engine_->prompt_left(player.seq) == 0) {
      begin_prompt(player, dice_.between(1, 30));
      ++seen_.turns;
      return;
    }
    engine_->end_prompt(player.seq);
    player.ops.push_back({Op::Kind::kEndPrompt, 0, {}});
    part(player);
  }

  // Some of the sequences, in any order; the others are paused.
  void step() {
    std::vector<Player*> playing;
    std::vector<StepItem> items;
    std::vector<std::vector<SequenceId>> followers(players_.size());
    std::vector<size_t> order(players_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), dice_.bits);
    uint32_t budget = dice_.between(1, kMaxStep);
    for (const size_t i : order) {
      Player& player = players_[i];
      if (budget == 0 || player.reads_with != 0 || dice_.one_in(4)) continue;
      const uint32_t left = engine_->prompt_left(player.seq);
      const uint32_t n = left == 0 ? 1 : dice_.between(1, std::min(left, budget));
      budget -= n;
      player.tokens.resize(n);
      for (TokenId& token : player.tokens) token = static_cast<TokenId>(dice_.below(kVocab));
      for (const Player& other : players_)
        if (other.reads_with == player.seq) followers[i].push_back(other.seq);
      items.push_back({.seq = player.seq,
                       .tokens = player.tokens,
                       .logits = player.logits,
                       .followers = followers[i]});
      playing.push_back(&player);
      (left == 0 ? seen_.decoded : seen_.pieces) += 1;
    }
    if (!items.empty()) take(engine_->step(items), items, playing);
  }

  void take(const std::vector<ItemResult>& results, const std::vector<StepItem>& items,
            const std::vector<Player*>& playing) {
    std::vector<SequenceId> lost;
    for (size_t i = 0; i < results.size(); ++i) {
      CAPTURE(results[i].text());
      if (results[i].error) {
        CHECK(playing[i]->strategy == kFaulty);
        CHECK(results[i].is_lost);
        lost.push_back(playing[i]->seq);
        continue;
      }
      add(*playing[i], *playing[i]);
      for (size_t f = 0; f < items[i].followers.size(); ++f) {
        REQUIRE(results[i].follower_errors[f] == nullptr);
        Player& follower = *find(items[i].followers[f]);
        add(follower, *playing[i]);
        if (engine_->prompt_left(follower.seq) == 0) follower.reads_with = 0;
        ++seen_.followed;
      }
    }
    for (const SequenceId seq : lost) {
      cancel(*find(seq));
      ++seen_.faults;
    }
  }

  static void add(Player& player, const Player& from) {
    player.ops.push_back({Op::Kind::kTokens, 0, from.tokens});
    player.out.push_back(from.logits);
  }

  Dice dice_;
  std::vector<const Entry*> entries_;
  Bench bench_;
  Coverage& seen_;
  std::unique_ptr<Engine> engine_;
  std::vector<Player> players_;
};

}  // namespace

TEST_SUITE_BEGIN("core/serving/random_steps");

TEST_CASE("random schedules over all strategies: each sequence is as if it were alone") {
  const uint32_t n_schedules = few_cases() ? 60 : 1000;
  Coverage seen;
  Soloists alone(kMaxStep);
  for (const uint32_t seed : seeds(n_schedules)) {
    CAPTURE(seed);
    // Every entry comes as the first in turn; the second is any that runs over the same model.
    const Entry& first = entries()[seed % entries().size()];
    const std::vector<const Entry*> others = entries_of(first.head_dim);
    Dice dice(seed);
    Schedule schedule(first, *others[dice.below(static_cast<uint32_t>(others.size()))], seed, seen);
    schedule.run(dice.between(10, 40));
    schedule.check(alone);
  }
  if (std::getenv("KVASIR_TEST_SEED")) return;
  for (const uint32_t n : {seen.forks, seen.cuts, seen.cancels, seen.faults, seen.followed,
                           seen.pieces, seen.decoded, seen.turns, seen.survivors})
    CHECK(n >= n_schedules / 10);
}
