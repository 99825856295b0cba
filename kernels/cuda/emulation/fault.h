// What the checker of the emulation says about a kernel that breaks a rule of the language.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace kvasir::cuda::emulation {

enum class FaultKind {
  kBounds,         // access outside of an allocation, or misaligned
  kUninitialized,  // shared memory is read that no thread of the block has written
  kRace,           // two threads touch the same bytes, one writes, nothing orders them
  kBarrier,        // threads of a block wait at different barriers, or have left
  kWarp,           // lanes named in a mask do not come to the same operation
  kLaunch,         // more threads or shared memory than a launch may have
  kCapture,        // a stream is captured, and is given or asked what cannot be recorded
};

class Fault : public std::runtime_error {
 public:
  Fault(FaultKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  FaultKind kind() const { return kind_; }

 private:
  FaultKind kind_;
};

}  // namespace kvasir::cuda::emulation
