// See layer_record.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/layer_record.h"

#include "tools/kvasir/ab/csv.h"

namespace kvasir::tool {
namespace {

// Order of the columns.
template <class Record, class Each>
void each_layer_field(Record& r, Each&& each) {
  each(r.task), each(r.length), each(r.index), each(r.strategy), each(r.layer);
  each(r.figures.attended), each(r.figures.captured), each(r.figures.exact);
  each(r.figures.recall), each(r.figures.error);
}

}  // namespace

std::string layer_header() {
  return "task,length,index,strategy,layer,tokens_attended,captured_mass,exact_mass,"
         "heaviest_recall,output_error";
}

std::string to_line(const LayerRecord& record) {
  LineWriter write;
  each_layer_field(record, write);
  return write.line;
}

std::optional<LayerRecord> parse_layer_record(const std::string& line) {
  LayerRecord record;
  LineReader read(line);
  each_layer_field(record, read);
  return read.is_whole() ? std::optional(record) : std::nullopt;
}

}  // namespace kvasir::tool
