// Lines of the CSV files of an A/B run (RFC 4180): text is quoted, numbers are not.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstdint>
#include <string>

#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {

inline std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

// Fields of one line, in the order in which they are given to it.
class LineWriter {
 public:
  void operator()(const std::string& text) { put(quoted(text)); }
  void operator()(uint64_t value) { put(std::to_string(value)); }
  void operator()(uint32_t value) { put(std::to_string(value)); }
  void operator()(bool value) { put(value ? "1" : "0"); }
  void operator()(double value) { put(format("%.9g", value)); }
  std::string line;

 private:
  void put(const std::string& field) { line += (line.empty() ? "" : ",") + field; }
};

// Reads what LineWriter wrote; is_whole() once all fields of the line were read and were such.
class LineReader {
 public:
  explicit LineReader(const std::string& line) : line_(line) {}
  void operator()(std::string& text) {
    if (at_ >= line_.size() || line_[at_] != '"') return fail();
    text.clear();
    for (++at_; at_ < line_.size(); ++at_) {
      if (line_[at_] == '"') {
        if (at_ + 1 < line_.size() && line_[at_ + 1] == '"')
          ++at_;
        else
          return end(at_ + 1);
      }
      text += line_[at_];
    }
    fail();
  }
  void operator()(uint64_t& value) { number(value); }
  void operator()(uint32_t& value) { number(value); }
  void operator()(double& value) { number(value); }
  void operator()(bool& value) {
    uint32_t read = 2;
    number(read);
    value = read == 1;
    if (read > 1) fail();
  }
  bool is_whole() const { return ok_ && at_ == line_.size() + 1; }

 private:
  template <class T>
  void number(T& value) {
    if (at_ > line_.size()) return fail();
    const char* first = line_.data() + at_;
    const auto read = std::from_chars(first, line_.data() + line_.size(), value);
    if (read.ec != std::errc()) return fail();
    end(static_cast<size_t>(read.ptr - line_.data()));
  }
  void end(size_t at) {  // a comma or the end of the line
    if (at < line_.size() && line_[at] != ',') return fail();
    at_ = at + 1;
  }
  void fail() { ok_ = false; }

  const std::string& line_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace kvasir::tool
