// See conversation.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/run/conversation.h"

#include "core/error.h"

namespace kvasir::tool {
namespace {

std::string trimmed(const std::string& text) {
  constexpr const char* kBlank = " \t\n\r\v\f";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

}  // namespace

std::string Conversation::rendered(bool add_generation_prompt) const {
  if (family_) return apply_chat_template(*family_, messages_, add_generation_prompt);
  std::string text;
  for (const ChatMessage& message : messages_) text += message.content;
  return text;
}

// Returns the part of rendered() that was not handed out yet. The text of n + 1 messages begins
// with the text of n.
std::string Conversation::advance(bool add_generation_prompt) {
  const std::string all = rendered(add_generation_prompt);
  if (!all.starts_with(handed_out_))
    throw Error(ErrorKind::kInternal, "the chat template does not extend its own prefix");
  std::string piece = all.substr(handed_out_.size());
  handed_out_ = all;
  return piece;
}

std::string Conversation::system(const std::string& content) {
  messages_.push_back({"system", content});
  return advance(false);
}

std::string Conversation::question(const std::string& content) {
  before_question_ = handed_out_;
  messages_.push_back({"user", content});
  return advance(true);
}

// A template trims an answer and puts a blank before it; the model may have written its own blanks.
// The next question begins with whatever the template puts after the answer's text.
void Conversation::answer(const std::string& content) {
  messages_.push_back({"assistant", content});
  const std::string all = rendered(false);
  const bool is_verbatim = all.compare(handed_out_.size(), content.size(), content) == 0;
  const std::string text = is_verbatim ? content : trimmed(content);
  const size_t at = all.find(text, handed_out_.size());
  handed_out_ = all.substr(0, at == std::string::npos ? handed_out_.size() : at + text.size());
}

void Conversation::undo_question() {
  messages_.pop_back();
  handed_out_ = before_question_;
}

void Conversation::reset() {
  if (messages_.size() > 1) messages_.resize(messages_[0].role == "system" ? 1 : 0);
  if (!messages_.empty() && messages_[0].role != "system") messages_.clear();
  handed_out_ = rendered(false);
}

}  // namespace kvasir::tool
