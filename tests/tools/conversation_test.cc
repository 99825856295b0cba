// The pieces that a conversation hands out make up the chat template's own text.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/run/conversation.h"

#include <doctest/doctest.h>

namespace {

using namespace kvasir;
using kvasir::tool::Conversation;

TEST_CASE("pieces and answers concatenate to the template's text in every family") {
  const std::vector<ChatMessage> all = {{"system", "A long document."}, {"user", "Who?"},
                                        {"assistant", "Mimir."},        {"user", "Why?"},
                                        {"assistant", "For a drink."},  {"user", "Really?"}};
  for (const std::string& name : chat_template_names()) {
    CAPTURE(name);
    const ChatTemplate family = *chat_template_by_name(name);
    // Families with [INST] put a blank before the answer; a model of theirs writes it itself.
    const std::string before = apply_chat_template(family, std::span(all).first(2), true);
    const std::string after = apply_chat_template(family, std::span(all).first(3), false);
    const std::string blank = after[before.size()] == ' ' ? " " : "";
    Conversation c(family);
    std::string text = c.system("A long document.");
    text += c.question("Who?") + blank + "Mimir.";
    c.answer(blank + "Mimir.");
    text += c.question("Why?") + blank + "For a drink.";
    c.answer(blank + "For a drink.");
    text += c.question("Really?");
    CHECK(text == apply_chat_template(family, all, true));
  }
}

TEST_CASE("without a template the lines are the text") {
  Conversation c(std::nullopt);
  CHECK(c.system("Once") == "Once");
  CHECK(c.question(" upon") == " upon");
  c.answer(" a time");
  CHECK(c.question(", there") == ", there");
}

TEST_CASE("an undone question leaves no trace, and a reset keeps the document only") {
  Conversation c(ChatTemplate::kChatML);
  const std::string document = c.system("doc");
  const std::string first = c.question("one");
  c.undo_question();
  CHECK(c.question("one") == first);
  c.answer("an answer");
  c.question("two");
  c.answer("another");
  c.reset();
  CHECK(c.question("one") == first);
}

TEST_CASE("an answer that is empty or all blank is closed too") {
  for (const char* answer : {"", " \n"}) {
    Conversation c(ChatTemplate::kChatML);
    c.question("one");
    c.answer(answer);
    CHECK(c.question("two").starts_with("<|im_end|>\n<|im_start|>user\ntwo"));
  }
}

}  // namespace
