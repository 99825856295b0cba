// A block on its way from a file into memory, or the other way round, in calls of one piece each.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plugins/storage/tiered/block_memory.h"
#include "plugins/storage/tiered/file_io.h"
#include "plugins/storage/tiered/records.h"

namespace kvasir::tiered {

// Calls are started and ended in any order; who does so sees to it that each is once.
class Move {
 public:
  virtual ~Move() = default;
  Move(const Move&) = delete;
  Move& operator=(const Move&) = delete;

  // Of a call. `buffer` of start() gets what is written, that of end() has what was read.
  size_t n_calls() const { return runs_.size(); }
  FileCall call(size_t i) const { return runs_[i].call; }
  virtual bool is_write() const = 0;
  virtual void start(size_t i, std::byte* buffer) const = 0;
  virtual void end(size_t i, const std::byte* buffer) = 0;
  // What a call failed with. The others are of no use then.
  void fail(std::string why) { why_ = std::move(why); }

  bool failed() const { return !why_.empty(); }
  const std::string& why() const { return why_; }
  const Extent& extent() const { return extent_; }
  const Records& records() const { return *records_; }

 protected:
  // Records [begin, end), which lie in one piece.
  struct Run {
    uint32_t begin, end;
    FileCall call;
  };
  Move(const Extent& extent, const Records& records, Memory memory)
      : extent_(extent), records_(&records), memory_(std::move(memory)) {}

  Extent extent_;
  const Records* records_;
  Memory memory_;
  std::vector<Run> runs_;
  std::string why_;
};

// All of a block, into the file.
class Writing final : public Move {
 public:
  Writing(const Extent& to, const Records& records, Memory memory);
  bool is_write() const override { return true; }
  void start(size_t i, std::byte* buffer) const override;
  void end(size_t, const std::byte*) override {}
};

// Tokens of a block that are wanted and not in memory. Runs of records that lie no further than
// gap_bytes apart in one piece, or touch one page, are read in one call; what lies between is kept
// unless it is damaged, which is then for who wants it to find.
class Reading final : public Move {
 public:
  // memory: of the block, which stays as it is. alignment: of the calls.
  Reading(const Extent& from, const Records& records, TokenSet wanted, const BlockMemory& memory,
          uint64_t gap_bytes, uint64_t alignment);

  // Before the first start(). Whether the block has no memory yet; gives it some.
  bool lacks_memory() const { return !memory_; }
  bool wants_all() const { return wanted_.full(); }
  void set_memory(Memory memory) { memory_ = std::move(memory); }

  bool is_write() const override { return false; }
  void start(size_t, std::byte*) const override {}
  void end(size_t i, const std::byte* buffer) override;

  uint64_t bytes() const;                              // that the calls read
  Memory take_memory() { return std::move(memory_); }  // with `arrived` in it
  TokenSet& arrived() { return arrived_; }

 private:
  TokenSet wanted_, arrived_, present_;  // present_: in memory before, and perhaps being read there
};

// All calls of `move`, one after another.
void run_now(Move& move, FileIo& io);

}  // namespace kvasir::tiered
