// See story.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/runtime/story.h"

namespace kvasir::test {
namespace {

// A piece of a prompt beside a decoded token, in one pass.
void mixed_steps(Engine& engine, SequenceId decodes, Logits& out) {
  const auto seq = engine.open();
  const auto tokens = some_tokens(45, 9);
  engine.begin_prompt(seq, 45);
  for (uint32_t at = 0; at < 45; at += 15) {
    const TokenId token[] = {static_cast<TokenId>(at + 3)};
    out.emplace_back(300);
    const StepItem items[] = {
        {.seq = decodes, .tokens = token, .logits = out.back()},
        {.seq = seq, .tokens = std::span(tokens).subspan(at, 15)},
    };
    for (const ItemResult& result : engine.step(items)) CHECK(result.text() == "");
  }
  out.push_back(decode(engine, seq, 77));
  engine.close(seq);
}

}  // namespace

Logits story(Engine& engine, bool can_cut) {
  Logits out;
  const auto a = engine.open(), b = engine.open();
  out.push_back(prefill(engine, a, some_tokens(131, 1)));
  out.push_back(prefill(engine, b, some_tokens(58, 2)));
  for (TokenId token = 0; token < 12; ++token) {
    out.emplace_back(600);
    engine.decode(std::vector<Engine::DecodeItem>{{a, token}, {b, token}}, out.back());
  }
  mixed_steps(engine, b, out);
  const auto c = engine.fork(a);
  for (TokenId token = 20; token < 30; ++token) {
    out.push_back(decode(engine, c, token));
    out.push_back(decode(engine, a, token + 50));
  }
  if (can_cut) {
    engine.truncate(c, 140);
    out.push_back(decode(engine, c, 7));
    engine.truncate(c, 85);  // inside a block that is full
    out.push_back(decode(engine, c, 8));
    engine.truncate(c, 80);  // between two
    out.push_back(decode(engine, c, 9));
    out.push_back(decode(engine, a, 10));  // what forks share is as it was
  }
  engine.close(b);
  out.push_back(prefill(engine, c, some_tokens(40, 3)));
  const auto d = engine.load(engine.save(c), "saved");
  for (TokenId token = 40; token < 75; ++token) {
    out.push_back(decode(engine, d, token));
    REQUIRE(out.back() == decode(engine, c, token));
  }
  for (const auto seq : {a, c, d}) engine.close(seq);
  return out;
}

}  // namespace kvasir::test
