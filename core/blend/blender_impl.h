// What the files of Blender share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <vector>

#include "core/blend/blender.h"

namespace kvasir {

// Where the parts of a prompt stand.
struct Blender::Layout {
  std::vector<TokenId> context;  // lead and chunks
  uint32_t begin = 0;            // of the chunks
  // The first token that can deviate: behind the first chunk where that stands as it was read.
  uint32_t first_changed = 0;
  uint32_t end() const { return static_cast<uint32_t>(context.size()); }
  uint32_t n_chunk_tokens() const { return end() - begin; }
};

using Clock = std::chrono::steady_clock;

// Adds the time of its life.
class Timed {
 public:
  explicit Timed(double& seconds) : seconds_(seconds) {}
  ~Timed() { seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
  Timed(const Timed&) = delete;

 private:
  double& seconds_;
  Clock::time_point begin_ = Clock::now();
};

// Closes a sequence that nobody has taken.
class Guarded {
 public:
  Guarded(Engine& engine, SequenceId seq) : engine_(engine), seq_(seq) {}
  ~Guarded() {
    if (seq_) engine_.close(*seq_);
  }
  Guarded(const Guarded&) = delete;
  SequenceId get() const { return *seq_; }
  SequenceId take() {
    const SequenceId seq = *seq_;
    seq_.reset();
    return seq;
  }

 private:
  Engine& engine_;
  std::optional<SequenceId> seq_;
};

inline void run_step(Engine& engine, const StepItem& item) {
  const auto results = engine.step({&item, 1});
  if (results[0].error) std::rethrow_exception(results[0].error);
}

inline void call(const std::function<void()>& between) {
  if (between) between();
}

}  // namespace kvasir
