// What a plugin keeps per sequence outside the slab: made when a sequence opens, copied by a fork.
// Inherit publicly: the four seq_* slots come with it.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/error.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace kvasir::sdk {

// State: copyable, made without arguments, with truncate(uint32_t kv_len): forget tokens >= kv_len.
template <class State>
class Sequences {
 public:
  void seq_open(std::span<const uint64_t> seqs) {
    for (const uint64_t seq : seqs) states_[seq] = State{};
  }
  void seq_fork(std::span<const uint64_t> parents, std::span<const uint64_t> children) {
    for (size_t i = 0; i < parents.size(); ++i) states_[children[i]] = state_of(parents[i]);
  }
  void seq_truncate(std::span<const uint64_t> seqs, std::span<const uint32_t> kv_len) {
    for (size_t i = 0; i < seqs.size(); ++i) state_of(seqs[i]).truncate(kv_len[i]);
  }
  void seq_close(std::span<const uint64_t> seqs) {
    for (const uint64_t seq : seqs) states_.erase(seq);
  }

 protected:
  State& state_of(uint64_t seq) {
    const auto found = states_.find(seq);
    if (found == states_.end()) {
      fail_invalid("sequence " + std::to_string(seq) + " was never opened, or is closed");
    }
    return found->second;
  }

 private:
  std::map<uint64_t, State> states_;
};

}  // namespace kvasir::sdk
