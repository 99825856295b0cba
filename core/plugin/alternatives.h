// Alternatives among a plugin's options: of several that say one thing, the one that decides.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/plugin/option_schema.h"

namespace kvasir {

struct OptionVerdict {
  enum class Kind {
    kTaken,      // delivered as if it stood alone: as set, defaulted, or not when OPTIONAL
    kOverruled,  // set by the user, and another one decides: not delivered
    kUnasked,    // not set, and another one decides: not delivered
  } kind = Kind::kTaken;
  std::string note;  // what decides in its place, or that it decides
};

// What is wrong with the groups of a schema, empty when nothing is; `which` is the option.
std::string check_alternatives(const Schema& schema, size_t& which);

// One verdict per option of the schema; set[i]: what the user wrote for option i, or null. Throws
// Error(kInput) naming both places where two of a group are said in one place, or one is said
// without what it refines.
std::vector<OptionVerdict> decide_alternatives(const Schema& schema,
                                               const std::vector<const OptionSetting*>& set);

}  // namespace kvasir
