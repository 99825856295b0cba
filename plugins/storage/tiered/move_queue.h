// Moves that are under way together: hands their calls to a FileIo, as many as it has buffers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "plugins/storage/tiered/file_io.h"
#include "plugins/storage/tiered/move.h"

namespace kvasir::tiered {

// Sums over calls that read one file.
struct FlowCounts {
  uint64_t n_reads = 0;
  uint64_t busy_nanos = 0;  // while one or more were under way, and what they brought was unpacked
  uint64_t read_nanos = 0;  // each for itself: this divided by busy_nanos were under way on average
};

// For one thread at a time.
class MoveQueue {
 public:
  // What a move is for is the caller's: `tag` and `index` come back with it.
  struct Entry {
    std::unique_ptr<Move> move;
    void* tag = nullptr;
    uint64_t index = 0;
    bool is_save = false;               // the caller's, too
    size_t n_started = 0, n_ended = 0;  // calls
    bool is_write() const { return move->is_write(); }
  };

  MoveQueue(std::unique_ptr<FileIo> io, uint32_t n_files);

  // Whether a move can be added now: a buffer is free, and of writes at most kMostWrites are under
  // way, so that a read does not wait for many.
  bool takes(bool is_write) const;
  void add(std::list<Entry>&& one);  // does not throw
  bool empty() const { return entries_.empty(); }
  // Waits for calls, and starts others in their place, as add() does until finish().
  void wait();
  // Unpacks what the calls brought, starts others, and returns the moves that have ended: those
  // that write in the order in which they were added.
  std::list<Entry> finish();
  FlowCounts flow(uint32_t file) const { return files_[file].flow; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr uint32_t kMostWrites = 4;
  struct Started {
    Entry* entry = nullptr;
    size_t call = 0;
    uint32_t file = 0;
    Clock::time_point at{};
  };
  struct File {
    FlowCounts flow;
    uint32_t n_reads = 0;  // calls that were not unpacked yet
    Clock::time_point busy_since{};
  };
  bool has_room(bool is_write) const {
    return !free_.empty() && n_under_way_ < io_->depth() && (!is_write || n_writes_ < kMostWrites);
  }
  void start_calls();
  void end_call(const FileIo::Done& done);

  std::unique_ptr<FileIo> io_;
  std::list<Entry> entries_;
  std::vector<FileIo::Done> done_;
  std::vector<uint32_t> free_;    // buffers
  std::vector<Started> started_;  // by buffer
  std::vector<File> files_;
  uint32_t n_under_way_ = 0;  // calls
  uint32_t n_writes_ = 0;     // those of writes that have not ended
};

}  // namespace kvasir::tiered
