// Options of magicpig: schema and values.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/options.h>

#include <array>
#include <optional>
#include <string>

#include "plugins/selector/magicpig/tables.h"

namespace kvasir::magicpig {

inline constexpr const char* kStaticNames[] = {"window", "snapkv"};
inline constexpr const char* kLayoutNames[] = {"compact", "csr"};
inline constexpr const char* kPlanesNames[] = {"shared", "per_head"};
inline constexpr const char* kKAliases[] = {"k", nullptr};
inline constexpr const char* kLAliases[] = {"l", nullptr};
inline constexpr std::array kOptions = {
    sdk::int_option({.key = "K",
                     .help = "bits per hash code; 0 = attend to everything",
                     .unit = "bits",
                     .aliases = kKAliases},
                    10, 0, 16),
    sdk::int_option(
        {.key = "L", .help = "tables; a token is drawn when two agree", .aliases = kLAliases}, 150,
        2, 4096),
    sdk::int_option({.key = "budget_tokens",
                     .help = "most tokens per layer, kv head and step; not set: what is drawn",
                     .unit = "tokens",
                     .flags = KVASIR_OPTION_OPTIONAL},
                    0, 1, INT32_MAX),
    sdk::int_option({.key = "seed",
                     .help = "of the planes; not set: the run's",
                     .flags = KVASIR_OPTION_OPTIONAL},
                    0, 0, INT64_MAX),
    sdk::enum_option({.key = "planes",
                      .help = "one set for all layers and heads, or one per 16 layers and kv head"},
                     kPlanesNames, 0),
    sdk::enum_option({.key = "table_layout",
                      .help = "16-bit ids in segments of 64K tokens, or "
                              "32-bit ids as published"},
                     kLayoutNames, 0),
    sdk::enum_option({.key = "static",
                      .help = "what is always attended: sinks and window alone, or with "
                              "static_tokens that the prompt's end attends to most"},
                     kStaticNames, 0),
    sdk::int_option({.key = "static_tokens",
                     .help = "chosen per layer and kv head with static = snapkv",
                     .unit = "tokens"},
                    64, 1, INT32_MAX),
    sdk::int_option({.key = "static_queries",
                     .help = "last queries of the prompt that choose them",
                     .unit = "tokens"},
                    32, 1, INT32_MAX),
    sdk::int_option({.key = "static_kernel_size",
                     .help = "neighbours the mass is averaged over, odd",
                     .unit = "tokens"},
                    5, 1, 255),
};

struct OptionValues {
  explicit OptionValues(const sdk::Options& o)
      : n_bits(o.u32("K")),
        n_tables(o.u32("L")),
        budget(o.u32_or("budget_tokens", 0)),
        planes_per_head(o.choice("planes") == 1),
        layout(static_cast<TableLayout>(o.choice("table_layout"))),
        static_tokens(o.choice("static") == 0 ? 0 : o.u32("static_tokens")),
        static_queries(o.u32("static_queries")),
        kernel(o.u32("static_kernel_size")) {
    if (o.delivered("seed")) seed = static_cast<uint64_t>(o.i64("seed"));
    if (kernel % 2 == 0) {
      sdk::fail_invalid("static_kernel_size = " + std::to_string(kernel) +
                        " is even: a token stands in the middle of its neighbours, use " +
                        std::to_string(kernel + 1));
    }
  }

  uint32_t n_bits, n_tables;
  uint32_t budget;  // 0: what is drawn
  bool planes_per_head;
  TableLayout layout;
  uint32_t static_tokens;  // 0: sinks and window alone
  uint32_t static_queries, kernel;
  std::optional<uint64_t> seed;  // not set: the run's
};

}  // namespace kvasir::magicpig
