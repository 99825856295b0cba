// Faults; see fault_log.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/step/fault_log.h"

namespace kvasir {

FaultLog::FaultLog(const Pipeline& pipeline, HostServices& services)
    : pipeline_(pipeline), services_(services), faults_(pipeline.selectors.size(), 0) {}

bool FaultLog::fails() const { return pipeline_.strategy.cache.on_fault.value == OnFault::kFail; }

void FaultLog::report(size_t selector, const std::string& function, uint32_t layer, uint64_t seq,
                      const std::string& text, const std::string& instead) {
  const std::string id = pipeline_.selectors[selector]->id();
  if (fails())
    throw PluginError(id, function, KVASIR_ERR_INTERNAL,
                      "layer " + std::to_string(layer) + ": " + text);
  ++faults_[selector];
  services_.log(KVASIR_LOG_ERROR, id,
                function + ", layer " + std::to_string(layer) + ", sequence " +
                    std::to_string(seq) + ": " + text +
                    (faults_[selector] == kMax
                         ? "; put aside after repeated faults: attending densely from here on"
                         : "; " + instead));
}

void FaultLog::report_representative(const PluginError& error) {
  if (fails()) throw error;
  representative_failed_ = true;
  for (size_t i = 0; i < pipeline_.selectors.size(); ++i)
    if (pipeline_.selectors[i]->desc().needs & KVASIR_NEED_SCORES) faults_[i] = kMax;
  services_.log(
      KVASIR_LOG_ERROR, error.plugin(),
      error.text() + "; put aside with the selectors that need it: attending densely from here on");
}

}  // namespace kvasir
