// The options of kvasir.tiered.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/error.h>
#include <kvasir/sdk/options.h>

#include <array>
#include <cstdint>
#include <string>

#include "plugins/shared/kv_layout.h"

namespace kvasir::tiered {

inline constexpr const char* kStrategies[] = {"lru", "fifo", "counter"};  // Victim
inline constexpr const char* kIo[] = {"uring", "thread"};
inline constexpr const char* kCachedAliases[] = {"max_cached_block", nullptr};

inline constexpr std::array kOptions = {
    sdk::KvTypes::option_k(),
    sdk::KvTypes::option_v(),
    sdk::int_option({.key = "cached_blocks",
                     .help = "full blocks of a layer that stay in memory between steps",
                     .unit = "blocks",
                     .aliases = kCachedAliases},
                    32, 0, INT32_MAX),
    sdk::enum_option({.key = "cache_strategy",
                      .help = "which block leaves memory: the one used longest ago, the one that "
                              "came first, or the one that the fewest steps have used"},
                     kStrategies, 0),
    sdk::int_option({.key = "gap_bytes",
                     .help = "tokens that lie closer in the file are read in one call, with what "
                             "lies between",
                     .unit = "bytes"},
                    4096, 0, INT32_MAX),
    sdk::bool_option({.key = "read_ahead",
                      .help = "read what a selector foresees for a later layer while the layers "
                              "before it compute; false: only when it is asked for"},
                     true),
    sdk::option(KVASIR_OPTION_PATH,
                {.key = "folder",
                 .help = "folder of the file; default: the system's for temporary files",
                 .flags = KVASIR_OPTION_OPTIONAL},
                {KVASIR_OPTION_PATH, 0, 0, 0.0, "", nullptr}),
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
                     true),
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

// How the file is read and written.
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
  uint32_t n_buffers() const { return uring ? queue_depth : 1; }
};

}  // namespace kvasir::tiered
