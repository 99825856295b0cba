// Records as CSV (RFC 4180).
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/record.h"

#include "tools/kvasir/ab/csv.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {
namespace {

// Bytes of the UTF-8 character at the start of the text; 0: it is none.
size_t character_bytes(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t n = byte(at) < 0x80   ? 1
                   : byte(at) < 0xC2 ? 0
                   : byte(at) < 0xE0 ? 2
                   : byte(at) < 0xF0 ? 3
                   : byte(at) < 0xF5 ? 4
                                     : 0;
  if (n == 0 || at + n > text.size()) return 0;
  for (size_t i = 1; i < n; ++i)
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  if (n == 3 &&
      ((byte(at) == 0xE0 && byte(at + 1) < 0xA0) || (byte(at) == 0xED && byte(at + 1) >= 0xA0)))
    return 0;
  if (n == 4 &&
      ((byte(at) == 0xF0 && byte(at + 1) < 0x90) || (byte(at) == 0xF4 && byte(at + 1) >= 0x90)))
    return 0;
  return n;
}

// Order of the columns.
template <class Record, class Each>
void each_record_field(Record& r, Each&& each) {
  each(r.task), each(r.length), each(r.index), each(r.question), each(r.strategy);
  each(r.failed), each(r.right);
  each(r.answer_tokens), each(r.answer_tokens_right), each(r.depth), each(r.predictions);
  each(r.agreed), each(r.kl), each(r.prompt_tokens), each(r.decoded), each(r.considered);
  each(r.selected), each(r.attended), each(r.kv_bytes), each(r.choose_bytes), each(r.fallbacks);
  each(r.tier_bytes);
  each(r.expected), each(r.given), each(r.prefill_nanos), each(r.decode_nanos);
}

}  // namespace

std::string one_line(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t n = character_bytes(text, i);
    const auto byte = static_cast<unsigned char>(text[i]);
    if (text[i] == '\n')
      out += "\\n";
    else if (text[i] == '\\')
      out += "\\\\";
    else if (n == 0 || byte < 0x20 || byte == 0x7F)
      out += format("\\x%02X", byte);
    else
      out += text.substr(i, n);
    i += n ? n : 1;
  }
  return out;
}

std::string record_header() {
  return "task,length,index,question,strategy,failed,right,answer_tokens,answer_tokens_right,depth,"
         "predictions,agreed,kl,prompt_tokens,decoded,tokens_considered,tokens_selected,"
         "tokens_attended,kv_bytes_read,bytes_read_to_choose,fallbacks,bytes_read_by_tier,"
         "expected,given,"
         "prefill_ns,decode_ns";
}

std::string to_line(const AbRecord& record) {
  LineWriter write;
  each_record_field(record, write);
  return write.line;
}

std::optional<AbRecord> parse_record(const std::string& line) {
  AbRecord record;
  LineReader read(line);
  each_record_field(record, read);
  return read.is_whole() ? std::optional(record) : std::nullopt;
}

}  // namespace kvasir::tool
