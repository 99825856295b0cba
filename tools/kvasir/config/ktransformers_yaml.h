// KTransformers' configuration of its long-context mode, read and checked key by key.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/error.h"

namespace kvasir::tool {

// Keys go by their newer names, here and in kvasir's own strategies. Keys left out have the value
// that KTransformers gives them; where it gives none, they are not there.
class KtransformersYaml {
 public:
  // `label` names the text in messages. Throws Error(kInput) with the line for what is unknown or
  // given twice.
  KtransformersYaml(const std::string& yaml, const std::string& label);

  bool has(const std::string& key) const { return values_.count(key) != 0; }
  bool is_written(const std::string& key) const { return values_.at(key).line != 0; }
  // Each throws wrong() when the value is no such thing.
  int64_t integer(const std::string& key, int64_t least) const;
  bool boolean(const std::string& key) const;
  std::string lower(const std::string& key) const;  // the text, in lower case

  Error wrong(const std::string& key, const std::string& what) const;
  std::string note(const std::string& key, const std::string& what) const;  // "file:line: key: …"
  // What reading found worth a note.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct Value {
    std::string text;
    std::string written_as;
    size_t line = 0;  // 0: KTransformers' default
  };
  struct Reader;

  std::string place(size_t line) const;  // "file:line: "
  Error fail(size_t line, const std::string& what) const;

  std::string label_;
  std::map<std::string, Value> values_;  // by the newer name
  std::vector<std::string> notes_;
};

}  // namespace kvasir::tool
