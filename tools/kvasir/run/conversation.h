// A conversation as the text that a chat template makes of it. It is handed out in pieces; each
// piece is the text that the cache does not hold yet, so a turn prefills only what is new.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/model/tokenizer/chat_template.h"

namespace kvasir::tool {

class Conversation {
 public:
  // Without a family the model completes plain text: messages are joined as they are.
  explicit Conversation(std::optional<ChatTemplate> family) : family_(family) {}

  // Returns the text that a system message adds. Call it before the first question.
  std::string system(const std::string& content);
  // Returns the text that a question adds: the end of the previous answer, the question, and all up
  // to where the answer begins.
  std::string question(const std::string& content);
  // Takes the model's answer, which the cache holds already.
  void answer(const std::string& content);
  // Removes the last question, because its prefill was interrupted.
  void undo_question();
  // Removes all but the system message.
  void reset();

 private:
  std::string rendered(bool add_generation_prompt) const;
  std::string advance(bool add_generation_prompt);

  std::optional<ChatTemplate> family_;
  std::vector<ChatMessage> messages_;
  std::string handed_out_;  // the text that the cache holds, without the last answer
  std::string before_question_;
};

}  // namespace kvasir::tool
