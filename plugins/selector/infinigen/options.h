// Options of infinigen: schema and values.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/options.h>

#include <array>
#include <string>

#include "plugins/selector/infinigen/partial_index.h"

namespace kvasir::infinigen {

enum class ColumnScore { kQuery, kQueryAndKey, kUnion };
enum class GroupReduce { kMax, kSum, kMean };
enum class EvictionPolicy { kCounter, kLru, kFifo };

inline constexpr const char* kColumnNames[] = {"q", "qk", "union"};
inline constexpr const char* kColumnsNames[] = {"prompt", "offline"};
inline constexpr const char* kReduceNames[] = {"max", "sum", "mean"};
inline constexpr const char* kTypeNames[] = {"f16", "int8"};
inline constexpr const char* kPolicyNames[] = {"counter", "lru", "fifo"};
inline constexpr const char* kBudgetAliases[] = {"max_num_kv", nullptr};

inline constexpr std::array kOptions = {
    sdk::int_option({.key = "budget_tokens",
                     .help = "most tokens fetched per layer, kv head and step",
                     .unit = "tokens",
                     .aliases = kBudgetAliases,
                     .group = "budget"},
                    4096, 1, INT32_MAX),
    sdk::option(KVASIR_OPTION_FLOAT,
                {.key = "budget",
                 .help = "the same as a share of the tokens cached, instead of budget_tokens",
                 .flags = KVASIR_OPTION_OPTIONAL,
                 .group = "budget"},
                sdk::float_value(0), sdk::float_value(1e-6), sdk::float_value(1)),
    sdk::float_option(
        {.key = "alpha", .help = "tokens whose logit is within alpha of the best count as wanted"},
        5.0, 1e-6, 1e30),
    sdk::float_option({.key = "partial_weight_ratio",
                       .help = "share of the columns of skewed queries and keys that is used"},
                      0.2, 0.0, 1.0),
    sdk::option(KVASIR_OPTION_PATH,
                {.key = "skew_file",
                 .help = "matrices from `kvasir model skew`",
                 .flags = KVASIR_OPTION_OPTIONAL,
                 .group = "skew"},
                {KVASIR_OPTION_PATH, 0, 0, 0.0, "", nullptr}),
    sdk::int_option({.key = "skew_tokens",
                     .help = "make the matrices of each prompt's last queries instead; 0 = none: "
                             "columns as they are",
                     .unit = "tokens",
                     .group = "skew"},
                    0, 0, INT32_MAX),
    sdk::enum_option({.key = "column_score",
                      .help = "what makes a column important: sums of |q|, of |q| + |k|, or the "
                              "union of the best by either"},
                     kColumnNames, 0),
    sdk::enum_option({.key = "columns",
                      .help = "chosen by each prompt, or once and for all by a text: skew_file"},
                     kColumnsNames, 0),
    sdk::enum_option({.key = "gqa_reduce",
                      .help = "how the logits of a group's query heads become one per kv head"},
                     kReduceNames, 0),
    sdk::int_option({.key = "speculate_ahead",
                     .help = "layers; 0 = every layer selects with its own query",
                     .unit = "layers"},
                    1, 0, 64),
    sdk::enum_option({.key = "partial_type", .help = "element type of partial keys and queries"},
                     kTypeNames, 0),
    sdk::int_option({.key = "refresh_every",
                     .help = "choose the columns anew from the latest queries; 0 = never",
                     .unit = "tokens"},
                    0, 0, INT32_MAX),
    sdk::int_option({.key = "prefill_select_tokens",
                     .help = "select in prefill too, for this many queries at once; 0 = dense",
                     .unit = "tokens"},
                    0, 0, INT32_MAX),
    sdk::option(KVASIR_OPTION_FLOAT,
                {.key = "partial_weight_ratio_prefill",
                 .help = "share of the columns in prefill; default: partial_weight_ratio",
                 .flags = KVASIR_OPTION_OPTIONAL},
                sdk::float_value(0.2), sdk::float_value(0.0), sdk::float_value(1.0)),
    sdk::int_option({.key = "pool_limit",
                     .help = "tokens kept per layer and kv head beyond the forced parts; 0 = all",
                     .unit = "tokens"},
                    0, 0, INT32_MAX),
    sdk::enum_option({.key = "eviction_policy", .help = "who goes when the pool is full"},
                     kPolicyNames, 0),
};

struct OptionValues {
  explicit OptionValues(const sdk::Options& o)
      : budget_tokens(o.u32_or("budget_tokens", 0)),
        budget(o.delivered("budget") ? o.f64("budget") : 0.0),
        alpha(static_cast<float>(o.f64("alpha"))),
        ratio(o.f64("partial_weight_ratio")),
        ratio_prefill(o.delivered("partial_weight_ratio_prefill")
                          ? o.f64("partial_weight_ratio_prefill")
                          : ratio),
        skew_file(o.delivered("skew_file") ? o.path("skew_file") : ""),
        skew_tokens(o.u32_or("skew_tokens", 0)),
        columns(static_cast<ColumnScore>(o.choice("column_score"))),
        offline_columns(o.choice("columns") == 1),
        reduce(static_cast<GroupReduce>(o.choice("gqa_reduce"))),
        speculate_ahead(o.u32("speculate_ahead")),
        type(static_cast<PartialType>(o.choice("partial_type"))),
        refresh_every(o.u32("refresh_every")),
        slice_tokens(o.u32("prefill_select_tokens")),
        pool_limit(o.u32("pool_limit")),
        policy(static_cast<EvictionPolicy>(o.choice("eviction_policy"))) {
    if (offline_columns && skew_file.empty()) {
      sdk::fail_invalid(
          "columns = \"offline\" needs a skew_file, which says which ones matter: make one with "
          "`kvasir model skew -m MODEL.gguf -f TEXT -o FILE`");
    }
    if (skew_tokens != 0 && columns != ColumnScore::kQuery) {
      sdk::fail_invalid(
          "column_score says which columns matter; those that skew_tokens makes come in order: "
          "drop "
          "one of them (skew_tokens = 0)");
    }
    if (offline_columns && refresh_every != 0) {
      sdk::fail_invalid(
          "refresh_every chooses columns anew, columns = \"offline\" says they never change: drop "
          "one of them");
    }
  }

  uint32_t budget_tokens;  // 0: budget decides
  double budget;           // 0: budget_tokens decides
  float alpha;
  double ratio, ratio_prefill;
  std::string skew_file;
  uint32_t skew_tokens;  // 0: none, or skew_file's
  ColumnScore columns;
  bool offline_columns;
  GroupReduce reduce;
  uint32_t speculate_ahead;
  PartialType type;
  uint32_t refresh_every, slice_tokens, pool_limit;
  EvictionPolicy policy;
};

}  // namespace kvasir::infinigen
