// The options of kvasir.tiered and kvasir.gpu_tiered.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/error.h>
#include <kvasir/sdk/options.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "plugins/shared/kv_layout.h"

namespace kvasir::tiered {

inline constexpr const char* kStrategies[] = {"lru", "fifo", "counter", "lru-s",
                                              "selector"};  // Victim
inline constexpr const char* kIo[] = {"uring", "thread"};
inline constexpr const char* kCachedAliases[] = {"max_cached_block", nullptr};

inline constexpr uint32_t kMostFiles = 3;
inline constexpr const char* kFolderKeys[kMostFiles] = {"folder", "folder_2", "folder_3"};
inline constexpr const char* kLimitKeys[kMostFiles] = {"folder_limit_bytes", "folder_2_limit_bytes",
                                                       "folder_3_limit_bytes"};

constexpr kvasir_option_schema folder_option(uint32_t file, const char* help) {
  return sdk::option(KVASIR_OPTION_PATH,
                     {.key = kFolderKeys[file], .help = help, .flags = KVASIR_OPTION_OPTIONAL},
                     {KVASIR_OPTION_PATH, 0, 0, 0.0, "", nullptr});
}
constexpr kvasir_option_schema limit_option(uint32_t file) {
  return sdk::bytes_option(
      {.key = kLimitKeys[file],
       .help =
           "that this file may take, then its blocks go on to the next one; 0: what the disk has",
       .unit = "bytes"},
      0);
}

// All but the store.
inline constexpr std::array kTierOptions = {
    sdk::KvTypes::option_k(),
    sdk::KvTypes::option_v(),
    sdk::int_option({.key = "cached_blocks",
                     .help = "full blocks of a layer that stay in memory between steps",
                     .unit = "blocks",
                     .aliases = kCachedAliases},
                    32, 0, INT32_MAX),
    sdk::bool_option(
        {.key = "keep_dense_layers",
         .help = "blocks of the layers that [cache] dense_layers names all stay in "
                 "memory, beyond cached_blocks: such a layer needs them in every step"},
        false),
    sdk::enum_option({.key = "cache_strategy",
                      .help = "which block leaves memory, or a full file, first: the one used "
                              "longest ago, the one that came first, the one that the fewest "
                              "steps have used, the one that attention weighs least, or the one "
                              "that the selector scores least"},
                     kStrategies, 0),
    sdk::float_option({.key = "score_decay",
                       .help = "of cache_strategy lru-s: what a step leaves of the attention that "
                               "a block got before it"},
                      0.1, 1e-6, 1.0),
    sdk::int_option({.key = "gap_bytes",
                     .help = "tokens that lie closer in the file are read in one call, with what "
                             "lies between",
                     .unit = "bytes"},
                    4096, 0, INT32_MAX),
    sdk::bool_option({.key = "read_ahead",
                      .help = "read what a selector foresees for a later layer while the layers "
                              "before it compute; false: only when it is asked for"},
                     true),
    folder_option(0, "folder of the file; default: the system's for temporary files"),
    limit_option(0),
    folder_option(1, "folder of a second file, for what the first one has no space for"),
    limit_option(1),
    folder_option(2, "folder of a third file, for what the second one has no space for"),
    limit_option(2),
    sdk::enum_option({.key = "io",
                      .help = "how the file is read and written: many calls at a time through "
                              "io_uring, where the kernel has it, or one after another"},
                     kIo, 0),
    sdk::int_option(
        {.key = "queue_depth", .help = "most calls on the file at a time, with io_uring"}, 32, 1,
        4096),
    sdk::bytes_option({.key = "read_bytes",
                       .help = "most bytes of a call on the file; memory of that size is locked "
                               "for each of queue_depth, if the system allows it",
                       .unit = "bytes"},
                      int64_t{128} << 10),
    sdk::bool_option({.key = "direct",
                      .help = "past the system's page cache (O_DIRECT), where the folder's file "
                              "system can"},
                     true)};
inline constexpr std::array kStoreOptions = {
    sdk::option(KVASIR_OPTION_PATH,
                {.key = "store",
                 .help = "where blocks outlive the process, to be found by the next one: a folder, "
                         "or redis://HOST:PORT/DATABASE",
                 .flags = KVASIR_OPTION_OPTIONAL},
                {KVASIR_OPTION_PATH, 0, 0, 0.0, "", nullptr}),
    sdk::bytes_option({.key = "store_limit_bytes",
                       .help = "that a folder may take; the blocks used longest ago make room",
                       .unit = "bytes"},
                      int64_t{10} << 30)};

inline constexpr std::array kDeviceOptions = {
    sdk::int_option({.key = "device_blocks",
                     .help = "full blocks of a layer that stay in device memory between steps",
                     .unit = "blocks"},
                    32, 0, INT32_MAX),
    sdk::bytes_option({.key = "max_bytes",
                       .help = "most device memory for blocks; 0 = what the device gives",
                       .unit = "bytes"},
                      0)};

template <size_t N, size_t M>
constexpr auto joined(const std::array<kvasir_option_schema, N>& a,
                      const std::array<kvasir_option_schema, M>& b) {
  std::array<kvasir_option_schema, N + M> out{};
  std::copy(b.begin(), b.end(), std::copy(a.begin(), a.end(), out.begin()));
  return out;
}
inline constexpr auto kOptions = joined(kTierOptions, kStoreOptions);      // of kvasir.tiered
inline constexpr auto kGpuOptions = joined(kDeviceOptions, kTierOptions);  // and gpu_tiered

// Where a file of the chain is made.
struct FilePlace {
  std::string folder;
  uint64_t limit_bytes;  // 0: none
  std::string limit_key;
};
// One or more; throws sdk::Error when the options leave a gap.
inline std::vector<FilePlace> file_places(const sdk::Options& options) {
  std::vector<FilePlace> out;
  for (uint32_t i = 0; i < kMostFiles; ++i) {
    const bool is_given = options.delivered(kFolderKeys[i]);
    const uint64_t limit = options.bytes(kLimitKeys[i]);
    if (i != 0 && !is_given && limit != 0)
      sdk::fail_invalid(std::string("tiered: ") + kLimitKeys[i] + " is set and " + kFolderKeys[i] +
                        " is not: say where that file is");
    if (i != 0 && !is_given) continue;
    if (out.size() < i)
      sdk::fail_invalid(std::string("tiered: ") + kFolderKeys[i] + " is set and " +
                        kFolderKeys[i - 1] + " is not: use that one");
    if (i != 0 && out.back().limit_bytes == 0)
      sdk::fail_invalid(std::string("tiered: ") + kFolderKeys[i] + " is never reached: set " +
                        kLimitKeys[i - 1] + ", after which blocks go on to it");
    out.push_back(
        {is_given ? options.path(kFolderKeys[i]) : std::filesystem::temp_directory_path().string(),
         limit, kLimitKeys[i]});
  }
  return out;
}

// How the files are read and written.
struct FileOptions {
  bool uring;  // else one call at a time
  uint32_t queue_depth;
  uint64_t read_bytes;
  bool direct;

  explicit FileOptions(const sdk::Options& options)
      : uring(options.choice("io") == 0),
        queue_depth(options.u32("queue_depth")),
        read_bytes(options.bytes("read_bytes")),
        direct(options.boolean("direct")) {
    constexpr uint64_t kLeast = 4096, kMost = uint64_t{1} << 30;
    if (read_bytes < kLeast || read_bytes > kMost)
      sdk::fail_invalid("tiered: read_bytes = " + std::to_string(read_bytes) +
                        ": expected 4 KiB to 1 GiB");
  }
  // Buffers, and those of them that are more than calls at a time.
  uint32_t n_buffers() const { return uring ? queue_depth + n_spare() : 1; }
  uint32_t n_spare() const { return 1 + queue_depth / 4; }
};

}  // namespace kvasir::tiered
