// A conversation as the text a chat template makes of it, handed out in pieces: each piece is what
// the cache does not hold yet, so that every turn prefills only what is new.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/model/tokenizer/chat_template.h"

namespace kvasir::tool {

class Conversation {
 public:
  // Without a family: plain completion, messages are concatenated as they are.
  explicit Conversation(std::optional<ChatTemplate> family) : family_(family) {}

  // The text a system message adds; before the first question.
  std::string system(const std::string& content);
  // What a question adds, up to where the answer begins: closes the previous answer too.
  std::string question(const std::string& content);
  // The model's answer, which is in the cache already.
  void answer(const std::string& content);
  // Takes the last question back: its prefill was interrupted.
  void undo_question();
  // Back to the system message.
  void reset();

 private:
  std::string rendered(bool add_generation_prompt) const;
  std::string advance(bool add_generation_prompt);

  std::optional<ChatTemplate> family_;
  std::vector<ChatMessage> messages_;
  std::string handed_out_;  // template text that is in the cache, the last answer left out
  std::string before_question_;
};

}  // namespace kvasir::tool
