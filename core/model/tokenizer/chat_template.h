// Chat prompts for the template families we know: no Jinja, the family is recognised.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

struct ChatMessage {
  std::string role;  // system, user, assistant
  std::string content;
};

enum class ChatTemplate { kChatML, kLlama2, kLlama3, kInternLM2, kMistral, kGemma };
const char* name(ChatTemplate t);  // chatml llama2 llama3 internlm2 mistral gemma
std::vector<std::string> chat_template_names();
std::optional<ChatTemplate> chat_template_by_name(std::string_view name);
// From the Jinja text of tokenizer.chat_template; nullopt when it is none of ours (the caller says
// so and tells of --chat-template).
std::optional<ChatTemplate> recognise_chat_template(std::string_view jinja);
// The system message that a ChatML template writes where a conversation has none, as those of
// Qwen2.5 and SmolLM2 do; empty when it writes none.
std::string default_system_message(std::string_view jinja);

// The text to encode with parse_special, BOS left to the tokenizer. `add_generation_prompt` ends it
// where the assistant's answer starts. The text of messages [0, n) is a prefix of that of [0, n+1),
// so a cached prefix stays valid from turn to turn.
std::string apply_chat_template(ChatTemplate t, std::span<const ChatMessage> messages,
                                bool add_generation_prompt);

}  // namespace kvasir
