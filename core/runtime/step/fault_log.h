// Faults of the plugins that choose: counted, logged, and who is put aside for them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/plugin/pipeline.h"

namespace kvasir {

class FaultLog {
 public:
  FaultLog(const Pipeline& pipeline, HostServices& services);

  // A selector that is put aside is not called again: its layers attend densely.
  bool is_aside(size_t selector) const { return faults_[selector] >= kMax; }
  // Its records are incomplete from then on.
  bool representative_failed() const { return representative_failed_; }
  // `instead`: how the step goes on. Throws PluginError when the strategy says on_fault = fail.
  void report(size_t selector, const std::string& function, uint32_t layer, uint64_t seq,
              const std::string& text, const std::string& instead);
  // The representative cannot go on: so cannot the selectors that live on its scores. Throws
  // likewise.
  void report_representative(const PluginError& error);

 private:
  static constexpr uint32_t kMax = 3;
  bool fails() const;

  const Pipeline& pipeline_;
  HostServices& services_;
  std::vector<uint32_t> faults_;  // per selector
  bool representative_failed_ = false;
};

}  // namespace kvasir
