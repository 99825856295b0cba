// See storage_bench.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/storage_bench.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <thread>

#include "core/error.h"
#include "tools/kvasir/bench/raw_reads.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/session/plugin_host.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {
namespace {

constexpr uint32_t kHeadDim = 128;
constexpr uint64_t kTokenBytes = 2 * 2 * kHeadDim;  // K and V in f16, one kv head
constexpr uint64_t kRecordBytes = kTokenBytes + 8;  // with its checksum
constexpr uint64_t kPage = 4096;
constexpr uint64_t kMostBlocks = 4096;  // of a list: one step's
constexpr uint64_t kMostListBytes = uint64_t{64} << 20;

// One kv head of one layer.
kvasir_geometry geometry_of(uint32_t block_size, uint64_t n_blocks) {
  kvasir_geometry g{};
  g.struct_size = sizeof g;
  g.n_layers = g.n_q_heads = g.n_kv_heads = g.max_sequences = 1;
  g.head_dim = g.v_dim = kHeadDim;
  g.block_size = block_size;
  g.max_context = static_cast<uint32_t>(n_blocks * block_size);
  g.max_queries = 1;
  g.softmax_scale = 1.0f;
  return g;
}

// Blocks in the file of a storage, but for one.
class FileBlocks {
 public:
  FileBlocks(const Options& options, const StorageSettings& settings, uint32_t block_size,
             uint64_t read_bytes, uint64_t n_blocks, uint32_t depth)
      : host_(options),
        pipeline_(build_pipeline(resolve_strategy(with_file(options, settings, read_bytes, depth)),
                                 host_.registry(), host_.services())),
        block_size_(block_size) {
    storage().bind(geometry_of(block_size, n_blocks));
    storage().formats();
    for (uint64_t block = 0; block < n_blocks; ++block) {
      stop_if_interrupted();
      write(static_cast<uint32_t>(block));
    }
    wait_written(n_blocks);
  }

  // Seconds until all of `blocks` are leased.
  double read(const std::vector<uint64_t>& blocks) {
    std::vector<kvasir_block_key> keys;
    for (const uint64_t block : blocks) keys.push_back(key(static_cast<uint32_t>(block)));
    std::vector<kvasir_lease> leases(keys.size());
    const auto begin = std::chrono::steady_clock::now();
    if (storage().acquire(keys, KVASIR_ACQUIRE_FETCH, leases.data()) != KVASIR_OK)
      throw Error(ErrorKind::kResource, "the storage cannot hold one list of blocks");
    const auto end = std::chrono::steady_clock::now();
    std::vector<uint64_t> held;
    for (const kvasir_lease& lease : leases) {
      if (lease.state != KVASIR_LEASE_RESIDENT)
        throw Error(ErrorKind::kResource, "a block did not come back; see the log");
      held.push_back(lease.lease);
    }
    storage().release(held);
    return std::chrono::duration<double>(end - begin).count();
  }
  kvasir_tier_count file() const { return storage().count_tiers().at(1); }

 private:
  static Options with_file(const Options& options, const StorageSettings& settings,
                           uint64_t read_bytes, uint32_t depth) {
    Options out = options;
    out.strategy = "dense";
    for (const std::string& set :
         {std::string("storage.plugin=tiered"), std::string("storage.type_k=f16"),
          std::string("storage.type_v=f16"), std::string("storage.cached_blocks=1"),
          "storage.folder=" + settings.folder, "storage.read_bytes=" + std::to_string(read_bytes),
          "storage.queue_depth=" + std::to_string(depth)})
      out.set.push_back(set);
    return out;
  }
  Storage& storage() const { return *pipeline_.storage; }
  kvasir_block_key key(uint32_t block) const {
    return {{block + 1, 1}, 0, block, KVASIR_ALL_HEADS, block_size_, 0, nullptr};
  }
  void write(uint32_t block) {
    const std::vector<kvasir_block_key> one = {key(block)};
    kvasir_lease lease{};
    if (storage().acquire(one, KVASIR_ACQUIRE_WRITE, &lease) != KVASIR_OK)
      throw Error(ErrorKind::kResource, "the storage takes no more blocks; free memory");
    for (void* rows : {lease.k, lease.v}) {
      auto* numbers = static_cast<uint16_t*>(rows);
      for (uint64_t i = 0; i < uint64_t{block_size_} * kHeadDim; ++i)
        numbers[i] = static_cast<uint16_t>(i * 40503u + block) & 0x3bff;  // finite
    }
    storage().seal(one, &lease);
    storage().release({lease.lease});
    if (block % 64 == 63) wait_written(block - 32);  // what waits to be written takes memory
  }
  void wait_written(uint64_t n_blocks) const {
    while (storage().count_tiers().at(0).bytes_read < n_blocks * block_size_ * kTokenBytes) {
      stop_if_interrupted();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  PluginHost host_;
  Pipeline pipeline_;
  uint32_t block_size_;
};

StorageRow measure(const Options& options, const StorageSettings& s, uint32_t kibibytes,
                   uint32_t depth) {
  StorageRow row;
  const auto block_size = static_cast<uint32_t>(kibibytes * 1024 / kTokenBytes);
  row.block_bytes = block_size * kTokenBytes;
  row.read_bytes = (block_size * kRecordBytes + kPage - 1) / kPage * kPage;
  row.depth = depth;
  const uint64_t n_blocks = std::max<uint64_t>(s.file_bytes / row.read_bytes, 2 * depth);
  const uint64_t n_list = std::min(
      {n_blocks - 1, kMostBlocks, std::max<uint64_t>(kMostListBytes / row.read_bytes, depth)});
  RawReads raw(s.folder, n_blocks * row.read_bytes, row.read_bytes, depth);
  FileBlocks blocks(options, s, block_size, row.read_bytes, n_blocks, depth);
  row.direct = raw.direct();
  row.uring = raw.uring();
  std::vector<uint64_t> order(n_blocks - 1);  // the last one may be in memory
  std::iota(order.begin(), order.end(), uint64_t{0});
  std::mt19937_64 random(options.seed);
  std::vector<double> tiered_rate, raw_rate, share;
  const kvasir_tier_count before = blocks.file();
  for (uint32_t repetition = 0; repetition < s.n_repetitions; ++repetition) {
    stop_if_interrupted();
    std::shuffle(order.begin(), order.end(), random);
    const std::vector<uint64_t> list(order.begin(), order.begin() + static_cast<ptrdiff_t>(n_list));
    const auto bytes = static_cast<double>(n_list * row.read_bytes);
    const bool raw_first = repetition % 2 == 1;
    if (raw_first) raw_rate.push_back(bytes / raw.read(list, depth));
    tiered_rate.push_back(bytes / blocks.read(list));
    if (!raw_first) raw_rate.push_back(bytes / raw.read(list, depth));
    share.push_back(tiered_rate.back() / raw_rate.back());
  }
  const kvasir_tier_count after = blocks.file();
  row.tiered = typical(tiered_rate, 1);
  row.raw = typical(raw_rate, 1);
  row.share = typical(share, 1).middle;
  if (after.busy_nanos > before.busy_nanos)
    row.at_a_time = static_cast<double>(after.read_nanos - before.read_nanos) /
                    static_cast<double>(after.busy_nanos - before.busy_nanos);
  return row;
}

}  // namespace

StorageReport measure_storage(const Options& options, const StorageSettings& settings) {
  StorageReport out{settings, {}};
  for (const uint32_t kibibytes : settings.block_kibibytes)
    for (const uint32_t depth : settings.depths) {
      if (kibibytes * 1024 < kTokenBytes || kibibytes > (uint32_t{1} << 19))
        throw input_error("--kib " + std::to_string(kibibytes) + ": expected 1 to 524288");
      if (depth == 0 || depth > 4096)
        throw input_error("--depth " + std::to_string(depth) + ": expected 1 to 4096");
      out.rows.push_back(measure(options, settings, kibibytes, depth));
    }
  return out;
}

}  // namespace kvasir::tool
