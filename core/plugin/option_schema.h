// The option schema of a plugin, read with the plugin's own stride and checked: it comes from
// foreign code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/entry.h>

#include <memory>
#include <string>
#include <vector>

#include "core/config/strategy.h"

namespace kvasir {

using Schema = std::vector<const kvasir_option_schema*>;

// Throws Error(kInput) naming the plugin and the option when the schema itself is wrong.
Schema checked_schema(const kvasir_desc& desc);

std::vector<std::string> alias_names(const kvasir_option_schema& option);
const char* option_type_name(uint32_t type);  // "an integer" …

// Converts what the user wrote; `keep` receives what the value points to. `note` says what was
// converted. Throws Error(kInput) at setting.origin.
kvasir_value convert_option(const kvasir_option_schema& option, const OptionSetting& setting,
                            std::vector<std::shared_ptr<const void>>& keep, std::string& note);
// As it would be written in TOML.
std::string option_value_text(const kvasir_option_schema& option, const kvasir_value& value);
// "2GiB" to bytes; false when it is no size, or too large for int64_t.
bool parse_bytes(const std::string& text, int64_t& bytes);

}  // namespace kvasir
