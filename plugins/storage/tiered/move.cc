// See move.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/move.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "plugins/storage/tiered/reason.h"

namespace kvasir::tiered {

Writing::Writing(const Extent& to, const Records& records, Memory memory)
    : Move(to, records, std::move(memory)) {
  for (uint32_t begin = 0; begin < records.size();) {
    const uint32_t end = records.piece_end(begin);
    const uint64_t from = records.offset(begin);
    const uint64_t next = end < records.size() ? records.offset(end) : records.block_bytes();
    runs_.push_back({begin, end, {true, to.offset + from, next - from, to.file}});
    begin = end;
  }
}

void Writing::start(size_t i, std::byte* buffer) const {
  const Run& run = runs_[i];
  records_->pack(memory_.get(), extent_.seed, run.begin, run.end, buffer);
  const uint64_t n = (run.end - run.begin) * records_->record_bytes();
  std::memset(buffer + n, 0, run.call.n - n);
}

Reading::Reading(const Extent& from, const Records& records, TokenSet wanted,
                 const BlockMemory& block, uint64_t gap_bytes, uint64_t alignment)
    : Move(from, records, block.memory()),
      wanted_(block.missing(std::move(wanted))),
      arrived_(records.size()),
      present_(block.present(records)) {
  const uint64_t size = records.record_bytes();
  const auto down = [&](uint64_t at) { return at / alignment * alignment; };
  const auto up = [&](uint64_t at) { return down(at + alignment - 1); };
  for (uint32_t begin = wanted_.next(0); begin < wanted_.size();) {
    uint32_t end = begin + 1, next = wanted_.next(end);
    const uint64_t first = from.offset + records.offset(begin);
    uint64_t behind = first + size;  // of what is read
    while (next < records.piece_end(begin)) {
      const uint64_t at = first + (next - begin) * size;
      if (at - behind > gap_bytes && down(at) >= up(behind)) break;
      end = next + 1;
      behind = at + size;
      next = wanted_.next(end);
    }
    runs_.push_back({begin, end, {false, down(first), up(behind) - down(first), from.file}});
    begin = next;
  }
}

void Reading::end(size_t i, const std::byte* buffer) {
  const Run& run = runs_[i];
  const std::byte* record =
      buffer + (extent_.offset + records_->offset(run.begin) - run.call.offset);
  for (uint32_t t = run.begin; t < run.end; ++t, record += records_->record_bytes()) {
    if (present_.has(t)) continue;
    if (records_->intact(record, extent_.seed, t)) {
      records_->unpack(record, t, memory_.get());
      arrived_.add(t);
    } else if (wanted_.has(t)) {
      return fail("the bytes of token " + std::to_string(t % records_->block_size()) +
                  " of kv head " + std::to_string(t / records_->block_size()) +
                  " changed on the way");
    }
  }
}

uint64_t Reading::bytes() const {
  uint64_t n = 0;
  for (const Run& run : runs_) n += run.call.n;
  return n;
}

void run_now(Move& move, FileIo& io) {
  std::vector<FileIo::Done> done;
  for (size_t i = 0; i < move.n_calls() && !move.failed(); ++i) {
    move.start(i, io.buffer(0));
    io.start(0, move.call(i));
    io.wait(done);
    if (done.back().error != 0)
      move.fail(reason(done.back().error));
    else
      move.end(i, io.buffer(0));
  }
}

}  // namespace kvasir::tiered
