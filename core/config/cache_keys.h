// One key of [cache]: how it is read into and printed from CacheConfig.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "core/config/strategy.h"

namespace kvasir::config {

struct CacheKey {
  const char* name;
  const char* canonical;  // the setting it is a name of; differs from name for an alias
  void (*set)(CacheConfig&, const OptionSetting&);
  std::string (*print)(const CacheConfig&);  // null for an alias
  Origin (*origin)(const CacheConfig&);      // null for an alias
};

std::span<const CacheKey> cache_keys();

}  // namespace kvasir::config
