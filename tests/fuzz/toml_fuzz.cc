// libFuzzer over strategy texts and overrides: any bytes give a strategy or an Error, and every
// strategy that is accepted can be explained. The first line of the input is one override.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/config/strategy.h"
#include "core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t line = text.find('\n');
  const std::string first = text.substr(0, line);
  const size_t equals = first.find('=');
  std::vector<kvasir::Override> overrides;
  if (equals != std::string::npos) {
    overrides.push_back({first.substr(0, equals), first.substr(equals + 1), {}});
  }
  try {
    const std::string toml = line == std::string::npos ? std::string() : text.substr(line + 1);
    (void)kvasir::explain(kvasir::parse_strategy(toml, "fuzz.toml", overrides, {}));
  } catch (const kvasir::Error&) {
  }
  return 0;
}
