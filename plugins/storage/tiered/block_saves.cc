// Blocks on their way into the first file, and from a full file to the next one; see blocks.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/blocks.h"

namespace kvasir::tiered {

void Blocks::settle(uint64_t handle, const Extent& saved) noexcept {
  Block& block = *table_.block(handle);
  block.bytes.saved = saved;
  if (saved.file == file_pools_.size()) return;
  Pool& pool = file_pools_[saved.file];
  if (saved.file != 0) pool.take_over(block.bytes.file_use, file_pools_[saved.file - 1]);
  pool.came(block.bytes.file_use);
  pool.add_idle(block.bytes.file_use, handle);
}

void Blocks::unsettle(Block& block) noexcept {
  const Extent& saved = block.bytes.saved;
  if (saved.valid() && saved.file < file_pools_.size())
    file_pools_[saved.file].remove_idle(block.bytes.file_use);
}

void Blocks::used_in_file(uint64_t handle, bool is_first) noexcept {
  Block& block = *table_.block(handle);
  if (!block.bytes.file_use.is_idle) return;
  Pool& pool = file_pools_[block.bytes.saved.file];
  pool.remove_idle(block.bytes.file_use);
  pool.used(block.bytes.file_use, is_first);
  pool.add_idle(block.bytes.file_use, handle);
}

std::unique_ptr<Move> Blocks::next_move(Save& save) {
  const std::lock_guard lock(mutex_);
  while (!save.steps.empty()) {
    Save::Step& step = save.steps.back();
    Block* block = table_.block(step.handle);
    if (block && !step.begun) {
      const Bytes& bytes = block->bytes;
      if (!bytes.sealed || bytes.saving || bytes.saved.valid() ||
          layers_[block->name.layer].keeps_all)
        return nullptr;
      step.begun = block->bytes.saving = true;
    }
    if (!block) {  // dropped meanwhile; its place is free
      stop(step);
      save.steps.pop_back();
    } else if (auto move = move_of(step, *block)) {
      return move;
    } else if (!make_room(save)) {
      return nullptr;
    }
  }
  return nullptr;
}

// Null: its file is full.
std::unique_ptr<Move> Blocks::move_of(const Save::Step& step, Block& block) {
  const Records& records = records_of(block);
  const Memory& memory = block.bytes.memory.whole() ? block.bytes.memory.memory() : step.memory;
  if (!memory) {
    auto reading = std::make_unique<Reading>(
        step.from, records, TokenSet::range(records.size(), 0, records.size()), BlockMemory(),
        gap_bytes_, files_.of(step.from).alignment());
    reading->set_memory(allocate(layout_of(block).block_bytes()));
    return reading;
  }
  const Extent to = files_.reserve(step.file, records.block_bytes());
  if (!to.valid()) return nullptr;
  try {
    return std::make_unique<Writing>(to, records, memory);
  } catch (...) {
    files_.give_back(to);
    throw;
  }
}

bool Blocks::make_room(Save& save) {
  const uint32_t file = save.steps.back().file;
  if (file == file_pools_.size()) {
    tell_full(save, "its limit is reached");
    give_up_locked(save);
    return false;
  }
  const uint64_t handle = file_pools_[file].victim();
  save.waits = handle == 0;  // for those that are on their way there or from there
  if (save.waits) return false;
  Block& block = *table_.block(handle);
  save.steps.push_back({handle, file + 1, block.bytes.saved, {}, true});
  unsettle(block);
  block.bytes.saving = true;
  return true;
}

void Blocks::end_move(Save& save, Move& move) {
  const std::lock_guard lock(mutex_);
  moved_.notify_all();
  Save::Step& step = save.steps.back();
  Block* block = table_.block(step.handle);
  if (!move.is_write() && !move.failed()) {
    step.memory = static_cast<Reading&>(move).take_memory();
    return;
  }
  if (move.is_write() && move.failed()) {
    files_.give_back(move.extent());
    tell_full(save, move.why());
    return give_up_locked(save);
  }
  if (move.is_write() && !block) files_.give_back(move.extent());
  if (!block) {
    files_.give_back(step.from);
  } else if (!move.is_write()) {  // it cannot be read any more
    lose(*block, move.why());
    block->bytes.saving = false;
    files_.give_back(std::exchange(block->bytes.saved, {}));
  } else {
    if (step.file == 0) memory_read_ += move.records().size() * move.records().data_bytes();
    end_step_of(step, *block, move.extent());
  }
  save.steps.pop_back();
}

// The block is in its file.
void Blocks::end_step_of(const Save::Step& step, Block& block, const Extent& to) {
  block.bytes.saving = false;
  if (!block.bytes.loading || !left_.emplace(step.handle, step.from).second)
    files_.give_back(step.from);
  settle(step.handle, to);
  if (step.file != 0) return;  // whether it may leave memory has not changed
  may_leave(step.handle);
  trim(block.name.layer);
}

// The block stays where it is.
void Blocks::stop(const Save::Step& step) noexcept {
  Block* block = step.begun ? table_.block(step.handle) : nullptr;
  if (!block) return files_.give_back(step.from);
  block->bytes.saving = false;
  if (step.from.valid() && step.from.file < file_pools_.size())
    file_pools_[step.from.file].add_idle(block->bytes.file_use, step.handle);
}

void Blocks::give_up(Save& save) noexcept {
  const std::lock_guard lock(mutex_);
  give_up_locked(save);
}

void Blocks::give_up_locked(Save& save) noexcept {
  moved_.notify_all();
  for (const Save::Step& step : save.steps) stop(step);
  save.steps.clear();
}

void Blocks::tell_full(const Save& save, const std::string& why) {
  if (std::exchange(full_told_, true)) return;
  host_.log(KVASIR_LOG_WARN, "blocks stay in memory, beyond cached_blocks: the file in " +
                                 files_[save.steps.back().file].folder() + " takes no more (" +
                                 why + ")");
}

}  // namespace kvasir::tiered
