// See move_queue.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/move_queue.h"

#include <exception>
#include <utility>

#include "plugins/storage/tiered/reason.h"

namespace kvasir::tiered {
namespace {

uint64_t nanos(std::chrono::steady_clock::duration time) {
  return static_cast<uint64_t>(std::chrono::nanoseconds(time).count());
}

}  // namespace

MoveQueue::MoveQueue(std::unique_ptr<FileIo> io, uint32_t n_files)
    : io_(std::move(io)), started_(io_->n_buffers()), files_(n_files) {
  for (uint32_t buffer = io_->n_buffers(); buffer-- > 0;) free_.push_back(buffer);
  done_.reserve(io_->n_buffers());
}

// Moves that have calls left keep their turn: none of the kind is added before those are started.
bool MoveQueue::takes(bool is_write) const {
  if (!has_room(is_write)) return false;
  for (const Entry& entry : entries_)
    if (entry.is_write() == is_write && entry.n_started < entry.move->n_calls()) return false;
  return true;
}

void MoveQueue::add(std::list<Entry>&& one) {
  entries_.splice(entries_.end(), one);
  start_calls();
}

void MoveQueue::start_calls() {
  for (Entry& entry : entries_) {
    while (entry.n_started < entry.move->n_calls() && !entry.move->failed()) {
      const bool is_write = entry.is_write();
      if (!has_room(is_write)) break;
      const uint32_t buffer = free_.back();
      free_.pop_back();
      const size_t call = entry.n_started++;
      const FileCall asked = entry.move->call(call);
      File& file = files_[asked.file];
      started_[buffer] = {&entry, call, asked.file, Clock::now()};
      if (!is_write && file.n_reads == 0) file.busy_since = started_[buffer].at;
      ++(is_write ? n_writes_ : file.n_reads);
      ++n_under_way_;
      entry.move->start(call, io_->buffer(buffer));
      io_->start(buffer, asked);
    }
  }
}

void MoveQueue::end_call(const FileIo::Done& done) {
  const Started started = std::exchange(started_[done.buffer], {});
  Entry& entry = *started.entry;
  File& file = files_[started.file];
  --(entry.is_write() ? n_writes_ : file.n_reads);
  ++entry.n_ended;
  try {
    if (done.error != 0)
      entry.move->fail(reason(done.error));
    else if (!entry.move->failed())
      entry.move->end(started.call, io_->buffer(done.buffer));
  } catch (const std::exception&) {
    entry.move->fail("out of memory");
  }
  free_.push_back(done.buffer);
}

void MoveQueue::wait() {
  if (n_under_way_ != 0) io_->wait(done_);
  for (const FileIo::Done& call : done_) {
    const Started& started = started_[call.buffer];
    if (started.entry->is_write()) continue;
    FlowCounts& flow = files_[started.file].flow;
    ++flow.n_reads;
    flow.read_nanos += nanos(Clock::now() - started.at);
  }
  n_under_way_ -= static_cast<uint32_t>(done_.size());
  start_calls();
}

std::list<MoveQueue::Entry> MoveQueue::finish() {
  std::vector<bool> was_busy;
  for (const File& file : files_) was_busy.push_back(file.n_reads > 0);
  io_->flush();
  for (const FileIo::Done& call : done_) end_call(call);
  done_.clear();
  std::list<Entry> ended;
  bool earlier_write = false;  // blocks are written in the order in which they may leave memory
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const size_t n_to_end = entry->move->failed() ? entry->n_started : entry->move->n_calls();
    const auto at = entry++;
    if (at->n_ended == n_to_end && !(at->is_write() && earlier_write))
      ended.splice(ended.end(), entries_, at);
    else
      earlier_write |= at->is_write();
  }
  for (size_t file = 0; file < files_.size(); ++file) {
    if (!was_busy[file]) continue;  // a span that goes on is counted up to here
    const Clock::time_point now = Clock::now();
    files_[file].flow.busy_nanos += nanos(now - std::exchange(files_[file].busy_since, now));
  }
  start_calls();
  return ended;
}

}  // namespace kvasir::tiered
