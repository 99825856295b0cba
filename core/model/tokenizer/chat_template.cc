// Recognition by marker strings, and the text of each family. Formats: the Jinja templates that
// the models' own repositories publish, and meta-llama's reference code for Llama 2.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/tokenizer/chat_template.h"

#include <utility>

namespace kvasir {
namespace {

constexpr ChatTemplate kAll[] = {ChatTemplate::kChatML,  ChatTemplate::kLlama2,
                                 ChatTemplate::kLlama3,  ChatTemplate::kInternLM2,
                                 ChatTemplate::kMistral, ChatTemplate::kGemma};

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\n\r\v\f";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// InternLM2's text is ChatML's too: that family differs in its BOS, which is the tokenizer's.
std::string chatml(std::span<const ChatMessage> messages, bool add_generation_prompt) {
  std::string out;
  for (const ChatMessage& m : messages) {
    out += "<|im_start|>" + m.role + "\n" + m.content + "<|im_end|>\n";
  }
  if (add_generation_prompt) out += "<|im_start|>assistant\n";
  return out;
}

std::string llama3(std::span<const ChatMessage> messages, bool add_generation_prompt) {
  const auto header = [](const std::string& role) {
    return "<|start_header_id|>" + role + "<|end_header_id|>\n\n";
  };
  std::string out;
  for (const ChatMessage& m : messages) {
    out += header(m.role).append(trim(m.content)) + "<|eot_id|>";
  }
  if (add_generation_prompt) out += header("assistant");
  return out;
}

// There is no system role: its text goes before the user's, or is a turn of the user where an
// answer follows at once.
std::string gemma(std::span<const ChatMessage> messages, bool add_generation_prompt) {
  std::string out, system;
  const auto turn = [&](std::string_view role, std::string_view text) {
    out.append("<start_of_turn>").append(role).append("\n");
    out.append(text).append("<end_of_turn>\n");
  };
  const auto before_answer = [&] {
    if (!system.empty()) turn("user", trim(std::exchange(system, {})));
  };
  for (const ChatMessage& m : messages) {
    if (m.role == "system") {
      system.append(trim(m.content)).append("\n\n");
    } else if (m.role == "assistant") {
      before_answer();
      turn("model", trim(m.content));
    } else {
      turn(m.role, std::exchange(system, {}).append(trim(m.content)));
    }
  }
  if (!add_generation_prompt) return out;
  before_answer();
  return out + "<start_of_turn>model\n";
}

// Llama 2 and Mistral: a turn is [INST] system and user text [/INST] answer </s>. Whatever is not
// an answer goes inside the brackets; they close with the user's text, where the answer starts.
struct InstFormat {
  bool trim_content;
  std::string_view turn_start;  // between an answer and the next turn; the first BOS is not ours
  std::string_view system_begin, system_end;
  std::string_view answer_end;
};
constexpr InstFormat kLlama2 = {true, "<s>", "<<SYS>>\n", "\n<</SYS>>\n\n", " </s>"};
constexpr InstFormat kMistral = {false, "", "", "\n\n", "</s>"};

std::string inst(const InstFormat& format, std::span<const ChatMessage> messages,
                 bool add_generation_prompt) {
  std::string out;
  bool inside = false;
  const auto open = [&] {
    if (inside) return;
    if (!out.empty()) out += format.turn_start;
    out += "[INST] ";
    inside = true;
  };
  const auto close = [&] {
    if (inside) out += " [/INST]";
    inside = false;
  };
  for (const ChatMessage& m : messages) {
    const std::string_view content = format.trim_content ? trim(m.content) : m.content;
    if (m.role == "assistant") {
      close();
      out.append(" ").append(content).append(format.answer_end);
    } else if (m.role == "system") {
      open();
      out.append(format.system_begin).append(content).append(format.system_end);
    } else {
      open();
      out += content;
      close();
    }
  }
  if (add_generation_prompt) close();
  return out;
}

}  // namespace

const char* name(ChatTemplate t) {
  switch (t) {
    case ChatTemplate::kChatML:
      return "chatml";
    case ChatTemplate::kLlama2:
      return "llama2";
    case ChatTemplate::kLlama3:
      return "llama3";
    case ChatTemplate::kInternLM2:
      return "internlm2";
    case ChatTemplate::kMistral:
      return "mistral";
    case ChatTemplate::kGemma:
      return "gemma";
  }
  return "unknown";
}

std::vector<std::string> chat_template_names() {
  std::vector<std::string> names;
  for (const ChatTemplate t : kAll) names.emplace_back(name(t));
  return names;
}

std::optional<ChatTemplate> chat_template_by_name(std::string_view wanted) {
  for (const ChatTemplate t : kAll) {
    if (wanted == name(t)) return t;
  }
  return std::nullopt;
}

std::optional<ChatTemplate> recognise_chat_template(std::string_view jinja) {
  const auto has = [&](std::string_view mark) { return jinja.find(mark) != jinja.npos; };
  // Phi-4 puts <|im_sep|> after the role instead of a line end.
  if (has("<|im_start|>") && has("<|im_end|>") && !has("<|im_sep|>")) {
    // Plain ChatML has no BOS; InternLM2 starts with it.
    const bool starts_with_bos = jinja.find("bos_token") < jinja.find("<|im_start|>");
    return starts_with_bos ? ChatTemplate::kInternLM2 : ChatTemplate::kChatML;
  }
  if (has("<|start_header_id|>") && has("<|end_header_id|>") && has("<|eot_id|>")) {
    return ChatTemplate::kLlama3;
  }
  if (has("<start_of_turn>") && has("<end_of_turn>")) return ChatTemplate::kGemma;
  if (has("[INST]") && has("[/INST]")) {
    if (has("<<SYS>>")) return ChatTemplate::kLlama2;
    // Mistral's later format has brackets of its own for the system text: not the one we write.
    if (!has("[SYSTEM_PROMPT]")) return ChatTemplate::kMistral;
  }
  return std::nullopt;
}

// Written out in one piece between its marks: a quote or a brace there means an expression.
std::string default_system_message(std::string_view jinja) {
  constexpr std::string_view kBegin = "<|im_start|>system", kEnd = "<|im_end|>";
  for (size_t at = jinja.find(kBegin); at != jinja.npos; at = jinja.find(kBegin, at)) {
    at += kBegin.size();
    std::string_view text = jinja.substr(at, jinja.find(kEnd, at) - at);
    // The line end stands there itself, or as Jinja's escape.
    const size_t line_end = text.starts_with('\n') ? 1 : text.starts_with("\\n") ? 2 : 0;
    text.remove_prefix(line_end);
    if (line_end && !text.empty() && text.find_first_of("'\"{}\\") == text.npos)
      return std::string(text);
  }
  return "";
}

std::string apply_chat_template(ChatTemplate t, std::span<const ChatMessage> messages,
                                bool add_generation_prompt) {
  switch (t) {
    case ChatTemplate::kLlama2:
      return inst(kLlama2, messages, add_generation_prompt);
    case ChatTemplate::kMistral:
      return inst(kMistral, messages, add_generation_prompt);
    case ChatTemplate::kLlama3:
      return llama3(messages, add_generation_prompt);
    case ChatTemplate::kGemma:
      return gemma(messages, add_generation_prompt);
    case ChatTemplate::kChatML:
    case ChatTemplate::kInternLM2:
      break;
  }
  return chatml(messages, add_generation_prompt);
}

}  // namespace kvasir
