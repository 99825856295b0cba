// -o md|json|csv: how a measurement is printed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/kvasir/cli/app.h"
#include "tools/kvasir/cli/print.h"

namespace kvasir::tool {

enum class OutputFormat { kMarkdown, kJson, kCsv };

// -o,--output, and --json, which is -o json.
void add_output_format(CLI::App& app, OutputFormat& format);

// The "rows" of a document, one line each, below a line of names: first what the document says of
// all of them (objects in it are flattened, their names joined by "_"; other lists are left out),
// then the row's own. Error(kInternal) when rows differ in their names.
std::string to_csv(const Json& document);

// to_text(result) is Markdown; CSV is made of to_json(result), which has "rows".
template <class Result>
void print(const Result& result, OutputFormat format) {
  if (format == OutputFormat::kCsv)
    print_text(to_csv(to_json(result)));
  else
    print(result, format == OutputFormat::kJson);
}

}  // namespace kvasir::tool
