// Plugin extension test.calls/1: the step calls a selector received, in order.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/step.h>
#include <kvasir/selector.h>

#include <vector>

namespace kvasir::test {

inline constexpr const char* kCallsExtension = "test.calls/1";

struct RecordedCall {
  enum Function { kSelect, kSpeculate, kObserve, kUpdate } function = kSelect;
  uint32_t layer = 0, moment = 0;
  std::vector<kvasir_step_seq> seq;
  // kSpeculate: for which layer, and the attention input of this one, [queries][d_model].
  uint32_t target_layer = 0;
  std::vector<float> x;
  // kObserve: a copy of the mass.
  std::vector<uint32_t> n_queries;  // per sequence
  std::vector<uint64_t> offsets;
  std::vector<uint32_t> index;
  std::vector<float> value;
  std::vector<kvasir_update_item> items;  // kUpdate: a copy, its pointers cleared
  std::vector<float> first_key;           // [item] of an f32 lease: head 0, token 0, element 0 of K
};

using Calls = std::vector<RecordedCall>;  // belongs to the instance: lives as long as it does

inline RecordedCall& note(Calls& calls, RecordedCall::Function function, const sdk::Step& step) {
  RecordedCall& call = calls.emplace_back();
  call.function = function;
  call.layer = step.layer();
  call.moment = step.moment();
  for (uint32_t s = 0; s < step.n_seqs(); ++s) call.seq.push_back(step.seq(s));
  return call;
}

}  // namespace kvasir::test
