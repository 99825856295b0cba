// A file that is read as plainly as the system allows: what a storage's file tier is measured by.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace kvasir::tool {

// Nameless, in a folder; it goes with the object.
class RawReads {
 public:
  // Writes `bytes` of them, at random. most_depth: of read(). Throws Error(kResource).
  RawReads(const std::string& folder, uint64_t bytes, uint64_t read_bytes, uint32_t most_depth);
  ~RawReads();
  RawReads(const RawReads&) = delete;

  // Reads read_bytes at each of `places`, in multiples of read_bytes, `depth` at a time. Returns
  // the seconds that took.
  double read(std::span<const uint64_t> places, uint32_t depth);
  bool direct() const;  // past the page cache
  bool uring() const;   // else one at a time, whatever the depth

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvasir::tool
