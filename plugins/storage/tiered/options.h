// The options of kvasir.tiered.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/options.h>

#include <array>
#include <cstdint>

#include "plugins/shared/kv_layout.h"

namespace kvasir::tiered {

inline constexpr const char* kStrategies[] = {"lru", "fifo"};
inline constexpr const char* kCachedAliases[] = {"max_cached_block", nullptr};

inline constexpr std::array kOptions = {
    sdk::KvTypes::option_k(),
    sdk::KvTypes::option_v(),
    sdk::int_option({.key = "cached_blocks",
                     .help = "full blocks of a layer that stay in memory between steps",
                     .unit = "blocks",
                     .aliases = kCachedAliases},
                    32, 1, INT32_MAX),
    sdk::enum_option({.key = "cache_strategy",
                      .help = "which block leaves memory: the one used "
                              "longest ago, or the one that came first"},
                     kStrategies, 0),
    sdk::int_option({.key = "gap_bytes",
                     .help = "tokens that lie closer in the file are read in one call, with what "
                             "lies between",
                     .unit = "bytes"},
                    4096, 0, INT32_MAX),
    sdk::option(KVASIR_OPTION_PATH,
                {.key = "folder",
                 .help = "folder of the file; default: the system's for temporary files",
                 .flags = KVASIR_OPTION_OPTIONAL},
                {KVASIR_OPTION_PATH, 0, 0, 0.0, "", nullptr}),
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

}  // namespace kvasir::tiered
