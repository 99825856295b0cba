// What update() is told: every token new once, every block sealed once and final once, candidate
// blocks once at the end of each prompt; all of it again after a cut.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/runtime/support.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kBlock = 8, kSink = 4, kWindow = 20;

std::string toml(uint32_t chunk, uint32_t layout, const std::string& unit) {
  return "[cache]\nblock_size = 8\nsink_tokens = 4\nwindow_tokens = 20\ndense_layers = [2]\n"
         "chunk_size = " +
         std::to_string(chunk) + "\n[selector]\nplugin = 'kvasir.test.told'\nunit = '" + unit +
         "'\nlayout_flags = " + std::to_string(layout) + "\n";
}

// What update() said about one layer, added up; a part of it may not come twice.
struct Told {
  std::vector<uint32_t> new_tokens, sealed, final, prompt_end;
  explicit Told(const Calls& book, uint32_t layer) {
    for (uint32_t i = 0; i < book.size(); ++i) {
      const RecordedCall& call = book[i];
      CHECK((call.function != RecordedCall::kUpdate || call.layer != 2));  // dense: nothing to tell
      if (call.function != RecordedCall::kUpdate || call.layer != layer) continue;
      for (const auto& item : call.items) add(item);
    }
  }
  void add(const kvasir_update_item& item) {
    CHECK(item.seq == 0);
    CHECK(item.n_tokens <= kBlock);
    CHECK(item.first_new + item.n_new <= item.n_tokens);
    for (uint32_t t = 0; t < item.n_new; ++t)
      new_tokens.push_back(item.block * kBlock + item.first_new + t);
    CHECK((item.n_new > 0) == ((item.flags & KVASIR_ITEM_NEW) != 0));
    if (item.flags & KVASIR_ITEM_SEALED) CHECK(item.n_tokens == kBlock);
    if (item.flags & KVASIR_ITEM_SEALED) sealed.push_back(item.block);
    if (item.flags & KVASIR_ITEM_FINAL) final.push_back(item.block);
    if (item.flags & KVASIR_ITEM_PROMPT_END) prompt_end.push_back(item.block);
  }
};

}  // namespace

TEST_SUITE_BEGIN("core/runtime/update");

TEST_CASE("each token, seal and exit from the window is told once, in order") {
  constexpr uint32_t kPrompt = 61, kSteps = 30, kTurn = 37;
  for (const std::string unit : {"block", "token"})
    for (const uint32_t chunk : {1u, 7u, 8u, 24u, 100u})
      for (const bool sealed_only : {false, true}) {
        CAPTURE(unit);
        CAPTURE(chunk);
        CAPTURE(sealed_only);
        Bench bench(8, 2);
        const auto engine =
            bench.engine(toml(chunk,
                              KVASIR_LAYOUT_WANT_FINAL | KVASIR_LAYOUT_WANT_PROMPT_END |
                                  (sealed_only ? KVASIR_LAYOUT_SEALED_ONLY : 0),
                              unit));
        Calls& book = calls_of(*engine);
        const auto seq = engine->open();
        const auto check = [&](uint32_t begin, uint32_t end, bool prompt) {
          for (const uint32_t layer : {0u, 1u}) {
            CAPTURE(end);
            const Told told(book, layer);
            CHECK(told.new_tokens == (sealed_only
                                          ? between(begin / kBlock * kBlock, end / kBlock * kBlock)
                                          : between(begin, end)));
            CHECK(told.sealed == between(begin / kBlock, end / kBlock));
            // Blocks before the window of the token that comes next: no selector sees a candidate
            // that is not final.
            const auto left = [](uint32_t n) {
              return n + 1 > kWindow ? (n + 1 - kWindow) / kBlock : 0;
            };
            CHECK(told.final == between(left(begin), left(end)));
            // Blocks that hold a candidate; tokens reach into those of sink and window.
            const uint32_t last = end - kWindow;
            CHECK(told.prompt_end == (!prompt ? std::vector<uint32_t>{}
                                      : unit == "block"
                                          ? between((kSink + kBlock - 1) / kBlock, last / kBlock)
                                          : between(kSink / kBlock, (last + kBlock - 1) / kBlock)));
          }
          book.clear();
        };
        prefill(*engine, seq, some_tokens(kPrompt));
        check(0, kPrompt, true);
        for (uint32_t i = 0; i < kSteps; ++i) decode(*engine, seq, 1);
        check(kPrompt, kPrompt + kSteps, false);
        prefill(*engine, seq, some_tokens(kTurn));
        check(kPrompt + kSteps, kPrompt + kSteps + kTurn, true);
        // A fork's owner is told nothing it knows; what follows is told about the fork.
        const auto fork = engine->fork(seq);
        CHECK(book.size() == 0);
        decode(*engine, fork, 1);
        check(kPrompt + kSteps + kTurn, kPrompt + kSteps + kTurn + 1, false);
      }
}

TEST_CASE("who asks gets window and open block at the prompt's end, and all of it every n tokens") {
  constexpr uint32_t kPrompt = 61;
  Bench bench(8, 2);
  const auto engine =
      bench.engine(toml(100, KVASIR_LAYOUT_PROMPT_END_ALL, "token") + "refresh = 5\n");
  Calls& book = calls_of(*engine);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(kPrompt));
  for (const uint32_t layer : {0u, 1u})
    CHECK(Told(book, layer).prompt_end == between(0, (kPrompt + kBlock - 1) / kBlock));
  for (uint32_t i = 0; i < book.size(); ++i) {
    if (book[i].function != RecordedCall::kUpdate || book[i].moment != KVASIR_MOMENT_PROMPT_END)
      continue;
    CHECK(book[i].seq[0].n_q == 0);
    CHECK(book[i].seq[0].unit_begin == kSink);
    CHECK(book[i].seq[0].unit_end == kPrompt - kWindow);
  }
  for (uint32_t step = 1; step <= 21; ++step) {
    CAPTURE(step);
    book.clear();
    decode(*engine, seq, 1);
    const uint32_t blocks = (kPrompt + step + kBlock - 1) / kBlock;
    for (const uint32_t layer : {0u, 1u})
      CHECK(Told(book, layer).prompt_end ==
            (step % 5 == 0 ? between(0, blocks) : std::vector<uint32_t>{}));
  }
}

// Keys of blocks in the host's memory, or copies of those on a device.
void check_first_keys(const std::string& tables) {
  Bench bench(8, 2);
  const auto engine = bench.engine(toml(5, 0, "token") + tables);
  Calls& book = calls_of(*engine);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(37));
  for (uint32_t step = 0; step < 9; ++step) decode(*engine, seq, 1);
  std::map<uint32_t, float> first_key;  // by block, of layer 1
  uint32_t n_appended = 0;
  for (const RecordedCall& call : book) {
    if (call.function != RecordedCall::kUpdate || call.layer != 1) continue;
    for (size_t i = 0; i < call.items.size(); ++i) {
      const kvasir_update_item& item = call.items[i];
      CHECK(item.n_tokens == std::min(kBlock, call.seq[0].kv_len - item.block * kBlock));
      const auto [known, fresh] = first_key.emplace(item.block, call.first_key[i]);
      CHECK(fresh == (item.first_new == 0));
      CHECK(known->second == call.first_key[i]);
      n_appended += !fresh;
    }
  }
  CHECK(first_key.size() == 6);
  CHECK(n_appended > 10);
  std::set<float> keys;
  for (const auto& [block, key] : first_key) keys.insert(key);
  CHECK(keys.size() == first_key.size());
}

TEST_CASE("tokens before the new ones are in the lease, and n_tokens is the host's") {
  check_first_keys("");
  check_first_keys(
      "[storage]\nplugin = 'kvasir.test.device_storage'\n[attention]\n"
      "plugin = 'kvasir.test.device_attention'\ninner = 'reference'\n");
}

TEST_CASE("blocks that a cut brings back into the window leave it again") {
  Bench bench(8, 2);
  const auto engine = bench.engine(toml(100, KVASIR_LAYOUT_WANT_FINAL, "token"));
  Calls& book = calls_of(*engine);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(90));
  CHECK(Told(book, 0).final == between(0, (90 - kWindow) / kBlock));
  engine->truncate(seq, 61);
  book.clear();
  for (uint32_t i = 0; i < 20; ++i) decode(*engine, seq, 1);
  CHECK(Told(book, 0).final == between((61 - kWindow) / kBlock, (81 - kWindow) / kBlock));
}

TEST_CASE("whose bytes go when a block leaves the window is told once, unless the block was cut") {
  Bench bench(8, 2);
  const auto engine =
      bench.engine(toml(100, KVASIR_LAYOUT_WANT_FINAL, "token") + "open_bytes = 64\n");
  Calls& book = calls_of(*engine);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(90));
  CHECK(Told(book, 0).final == between(0, (90 - kWindow) / kBlock));
  for (const uint32_t cut : {61u, 70u}) {  // block 7 is cut, then block 8
    engine->truncate(seq, cut);
    book.clear();
    for (uint32_t i = 0; i < 40; ++i) decode(*engine, seq, 1);
    CHECK(Told(book, 0).final == between(cut / kBlock, (cut + 41 - kWindow) / kBlock));
  }
}

TEST_CASE("a cut block is fed again from its start") {
  for (const bool sealed_only : {false, true}) {
    CAPTURE(sealed_only);
    Bench bench(8, 2);
    const auto engine =
        bench.engine(toml(100, sealed_only ? KVASIR_LAYOUT_SEALED_ONLY : 0u, "block"));
    Calls& book = calls_of(*engine);
    const auto seq = engine->open();
    prefill(*engine, seq, some_tokens(61));
    book.clear();
    engine->truncate(seq, 43);
    CHECK(Told(book, 0).new_tokens == (sealed_only ? std::vector<uint32_t>{} : between(40, 43)));
    book.clear();
    for (uint32_t i = 0; i < 10; ++i) decode(*engine, seq, 1);
    CHECK(Told(book, 1).new_tokens == (sealed_only ? between(40, 48) : between(43, 53)));
    CHECK(Told(book, 1).sealed == std::vector<uint32_t>{5});
  }
}
