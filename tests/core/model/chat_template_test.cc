// Chat templates: recognition from Jinja as found in model files, exact texts, prefix property.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/tokenizer/chat_template.h"

#include <doctest/doctest.h>

using namespace kvasir;

namespace {

const std::vector<ChatMessage> kTalk = {
    {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello!"}, {"user", "Bye"}};

}  // namespace

TEST_SUITE_BEGIN("core/model/chat_template");

TEST_CASE("names and families map one to one") {
  const auto names = chat_template_names();
  CHECK(names ==
        std::vector<std::string>{"chatml", "llama2", "llama3", "internlm2", "mistral", "gemma"});
  for (const auto& n : names) CHECK(name(chat_template_by_name(n).value()) == n);
  CHECK_FALSE(chat_template_by_name("alpaca"));
}

// Shortened to the statements that write markers, in the form the published templates have.
TEST_CASE("each family is recognised from the Jinja that its models carry") {
  const auto is = [](const char* jinja, ChatTemplate t) {
    const auto found = recognise_chat_template(jinja);
    REQUIRE(found);
    CHECK(std::string(name(*found)) == name(t));
  };
  // Qwen2.5: default system text, tools
  is("{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + "
     "messages[0]['content'] "
     "+ '<|im_end|>\\n' }}{%- else %}{{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}",
     ChatTemplate::kChatML);
  is("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
     "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}",
     ChatTemplate::kChatML);
  is("{{ bos_token }}{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
     "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
     "{{ '<|im_start|>assistant\\n' }}{% endif %}",
     ChatTemplate::kInternLM2);
  is("{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
     "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | "
     "trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}",
     ChatTemplate::kLlama3);
  is("{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
     "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}",
     ChatTemplate::kLlama2);
  // Mistral 7B v0.2, then v0.3 with tools
  is("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + "
     "message['content'] + ' [/INST]' }}{% else %}{{ message['content'] + eos_token}}",
     ChatTemplate::kMistral);
  is("{{- \"[AVAILABLE_TOOLS] [\" }}{{- \"[INST] \" + message[\"content\"] + \"[/INST]\" }}",
     ChatTemplate::kMistral);
  is("{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}",
     ChatTemplate::kGemma);
}

TEST_CASE("what is none of ours is not guessed") {
  const char* const others[] = {
      "",
      "{{ messages }}",
      // Phi-3, Phi-4, Zephyr, Mistral with a system bracket, Llama 4
      "{{'<|user|>' + '\\n' + message['content'] + '<|end|>' + '\\n' + '<|assistant|>' + '\\n'}}",
      "{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}",
      "{{ '<|user|>\\n' + message['content'] + eos_token }}",
      "{{ '[SYSTEM_PROMPT]' + system + '[/SYSTEM_PROMPT]' }}{{ '[INST]' + content + '[/INST]' }}",
      "{{ '<|header_start|>' + message['role'] + '<|header_end|>\\n\\n' }}",
  };
  for (const char* jinja : others) CHECK_FALSE(recognise_chat_template(jinja));
}

TEST_CASE("the system message that a template writes by itself is found, expressions are not") {
  // As SmolLM2 has it, with a line end, and Qwen2.5, with an escape behind two expressions.
  CHECK(default_system_message("{% if loop.first and messages[0]['role'] != 'system' %}"
                               "{{ '<|im_start|>system\nYou are small.<|im_end|>\n' }}") ==
        "You are small.");
  CHECK(
      default_system_message("{{- '<|im_start|>system\\n' }}{{- 'You have tools' + '<|im_end|>' }}"
                             "{{- '<|im_start|>system\\n' + messages[0]['content'] + "
                             "'<|im_end|>\\n' }}{{- '<|im_start|>system\\nYou are Qwen. "
                             "Help.<|im_end|>\\n' }}") == "You are Qwen. Help.");
  for (const char* none : {"", "{{'<|im_start|>' + message['role'] + '\n'}}", "<|im_start|>system",
                           "<|im_start|>system\n", "<|im_start|>system\n<|im_end|>",
                           "<|im_start|>systems\nNo.<|im_end|>"})
    CHECK(default_system_message(none) == "");
}

TEST_CASE("a talk with a system text is written as the family writes it") {
  CHECK(apply_chat_template(ChatTemplate::kChatML, kTalk, true) ==
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n");
  CHECK(apply_chat_template(ChatTemplate::kInternLM2, kTalk, true) ==
        apply_chat_template(ChatTemplate::kChatML, kTalk, true));
  CHECK(apply_chat_template(ChatTemplate::kLlama3, kTalk, true) ==
        "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n");
  CHECK(apply_chat_template(ChatTemplate::kLlama2, kTalk, true) ==
        "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello! </s><s>[INST] Bye [/INST]");
  CHECK(apply_chat_template(ChatTemplate::kMistral, kTalk, true) ==
        "[INST] Be brief.\n\nHi [/INST] Hello!</s>[INST] Bye [/INST]");
  CHECK(apply_chat_template(ChatTemplate::kGemma, kTalk, true) ==
        "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello!"
        "<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n");
  const std::vector<ChatMessage> system_only = {{"system", "Be brief."}};
  CHECK(apply_chat_template(ChatTemplate::kGemma, system_only, true) ==
        "<start_of_turn>user\nBe brief.<end_of_turn>\n<start_of_turn>model\n");
}

TEST_CASE("Llama and Gemma trim the contents, the others keep them") {
  const std::vector<ChatMessage> blank = {{"user", "  a b\n"}, {"assistant", " \n"}};
  CHECK(apply_chat_template(ChatTemplate::kLlama3, blank, false) ==
        "<|start_header_id|>user<|end_header_id|>\n\na b<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n<|eot_id|>");
  CHECK(apply_chat_template(ChatTemplate::kGemma, blank, false) ==
        "<start_of_turn>user\na b<end_of_turn>\n<start_of_turn>model\n<end_of_turn>\n");
  CHECK(apply_chat_template(ChatTemplate::kLlama2, blank, false) == "[INST] a b [/INST]  </s>");
  CHECK(apply_chat_template(ChatTemplate::kMistral, blank, false) ==
        "[INST]   a b\n [/INST]  \n</s>");
  CHECK(apply_chat_template(ChatTemplate::kChatML, blank, false) ==
        "<|im_start|>user\n  a b\n<|im_end|>\n<|im_start|>assistant\n \n<|im_end|>\n");
}

TEST_CASE("the text of n messages starts the text of n + 1") {
  const std::vector<std::vector<ChatMessage>> talks = {
      kTalk,
      {{"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}},
      {{"system", "a"}, {"system", "b"}, {"user", "c"}, {"user", "d"}, {"assistant", "e"}},
      {{"user", "a"}, {"assistant", "b"}, {"system", "c"}, {"user", " d "}, {"tool", "e"}},
      {{"assistant", "a"}, {"user", "b"}},
      {{"system", ""}, {"assistant", ""}, {"user", ""}},
  };
  for (const auto& family : chat_template_names()) {
    const ChatTemplate t = chat_template_by_name(family).value();
    for (const auto& talk : talks) {
      for (size_t n = 0; n < talk.size(); ++n) {
        const auto shorter = std::span(talk).first(n), longer = std::span(talk).first(n + 1);
        const std::string whole = apply_chat_template(t, longer, false);
        CHECK(whole.starts_with(apply_chat_template(t, shorter, false)));
        // What was generated after the prompt is where the answer stands in the next turn.
        if (talk[n].role == "assistant") {
          CHECK(whole.starts_with(apply_chat_template(t, shorter, true)));
        }
      }
    }
  }
}

TEST_SUITE_END();
