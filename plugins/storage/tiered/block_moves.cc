// Blocks that come back into memory, and leave it; see blocks.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/blocks.h"
#include "plugins/storage/tiered/store.h"

namespace kvasir::tiered {

void Blocks::reopen(const kvasir_block_key& key, uint64_t handle) {
  std::unique_lock held(mutex_, std::adopt_lock);  // acquire()'s, which gets it back
  moved_.wait(held, [&] {
    const Block* block = table_.block(handle);
    return !block || (!block->bytes.saving && !block->bytes.loading);
  });
  held.release();
  if (!table_.block(handle))
    sdk::fail_invalid(where("acquire", key) + "the block was dropped meanwhile");
  Block& block = *table_.block(handle);
  if (!block.bytes.sealed) return;
  if (store_) store_->finish();  // it reads the memory that is to be written again
  stay(block);
  if (!block.bytes.memory.whole()) complete(key, block);
  layers_[block.name.layer].resident_bytes -= memory_bytes(block);
  unsettle(block);
  files_.give_back(std::exchange(block.bytes.saved, {}));
  block.bytes.sealed = false;
}

void Blocks::complete(const kvasir_block_key& key, Block& block) {
  const auto reading = reading_of(block, covered_by(key, block));
  if (block.bytes.lost) reading->fail("it was lost before");
  if (!reading->failed()) run_now(*reading, *make_plain_io(files_, piece_bytes()));
  if (reading->failed())
    throw sdk::Error(KVASIR_ERR_IO,
                     where("acquire", key) + "the block could not be read back: " + reading->why());
  take(block, *reading);
}

void Blocks::may_leave(uint64_t handle) noexcept {
  Block& block = *table_.block(handle);
  Bytes& bytes = block.bytes;
  if (block.n_leases != 0 || !bytes.saved.valid() || bytes.memory.empty() || bytes.use.is_idle ||
      bytes.loading)
    return;
  layers_[block.name.layer].pool.add_idle(bytes.use, handle);
}

// What was read back for a layer stays until the step's leases on it end: asked for or foreseen, it
// is not pushed out by what else the step needs. That may exceed the limit so long.
void Blocks::end_step(uint32_t layer) noexcept {
  std::erase_if(layers_[layer].fresh, [&](uint64_t handle) {
    const Block* block = table_.block(handle);
    if (block && block->bytes.loading) return false;  // it may leave with the next step
    if (block) may_leave(handle);
    return true;
  });
  trim(layer);
}

void Blocks::trim(uint32_t layer_index) noexcept {
  Layer& layer = layers_[layer_index];
  if (layer.keeps_all) return;
  const uint64_t limit = cached_blocks_ * all_heads_.block_bytes();
  while (layer.resident_bytes > limit) {
    const uint64_t handle = layer.pool.victim();
    if (handle == 0) return;
    Block& block = *table_.block(handle);
    stay(block);
    layer.resident_bytes -= memory_bytes(block);
    block.bytes.memory.clear();
  }
}

void Blocks::take(Block& block, Reading& reading) {
  const uint64_t before = memory_bytes(block);
  const Records& records = reading.records();
  memory_written_ += reading.arrived().count() * records.data_bytes();
  block.bytes.memory.add(reading.take_memory(), std::move(reading.arrived()), records);
  layers_[block.name.layer].resident_bytes += memory_bytes(block) - before;
}

std::unique_ptr<Reading> Blocks::reading_of(const Block& block, TokenSet wanted) {
  auto reading = std::make_unique<Reading>(block.bytes.saved, records_of(block), std::move(wanted),
                                           block.bytes.memory, gap_bytes_,
                                           files_.of(block.bytes.saved).alignment());
  if (reading->lacks_memory())
    reading->set_memory(reading->wants_all() ? memory_for_all(block.name.kv_head)
                                             : memory_for_some(block.name.kv_head));
  return reading;
}

Transfers::Work::Begun Blocks::begin_load(const Load& wanted) {
  const std::lock_guard lock(mutex_);
  Block* block = table_.block(wanted.handle);
  if (!block || block->bytes.lost) return {nullptr, KVASIR_ERR_IO};
  if (block->bytes.memory.missing(wanted.tokens).empty()) return {};
  if (block->bytes.loading) return {nullptr, KVASIR_AGAIN};
  auto reading = reading_of(*block, wanted.tokens);
  layers_[block->name.layer].fresh.push_back(wanted.handle);
  block->bytes.loading = true;  // and so it stays
  stay(*block);
  return {std::move(reading), KVASIR_OK};
}

kvasir_status Blocks::end_load(uint64_t handle, Reading& reading) {
  const std::lock_guard lock(mutex_);
  moved_.notify_all();
  Block* block = table_.block(handle);
  if (!block) return KVASIR_ERR_IO;  // dropped meanwhile
  block->bytes.loading = false;
  free_left(handle);
  if (!reading.failed()) {
    take(*block, reading);
    layers_[block->name.layer].pool.came(block->bytes.use);
    ++n_loaded_;
    return KVASIR_OK;
  }
  lose(*block, reading.why());
  return KVASIR_ERR_IO;
}

void Blocks::free_left(uint64_t handle) noexcept {
  const auto found = left_.find(handle);
  if (found == left_.end()) return;
  files_.give_back(found->second);
  left_.erase(found);
}

void Blocks::lose(Block& block, const std::string& why) {
  block.bytes.lost = true;
  host_.log(KVASIR_LOG_WARN, "block " + std::to_string(block.name.block) + " of layer " +
                                 std::to_string(block.name.layer) +
                                 " could not be read back from the file in " +
                                 files_.of(block.bytes.saved).folder() + ": " + why +
                                 "; check that disk, or set folder to another one");
}

}  // namespace kvasir::tiered
