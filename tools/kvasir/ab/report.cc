// See report.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/report.h"

#include "tools/kvasir/ab/html.h"

namespace kvasir::tool {

void write_reports(const RunFolder& run, const AbSummary& summary) {
  run.write("metrics.json",
            to_json(summary).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  run.write("report.html", to_html(summary, run.run().meta));
  run.write("report.md", to_markdown(summary));
}

}  // namespace kvasir::tool
