// Every mistake a user can make: one line that names it, exit code 2, nothing on standard output,
// no file left behind.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>

#include "core/model/gguf/gguf.h"
#include "tests/tools/process.h"

namespace {

using kvasir::test::Finished;
using kvasir::test::read_bytes;
using kvasir::test::run_kvasir;
using kvasir::test::TempDir;

const std::string kPlugins = KVASIR_BINARY_DIR "/test-plugins/";

struct Mistake {
  const char* what;
  std::vector<std::string> arguments;
  std::vector<std::string> words;  // all must be in the message
};

void check(const Mistake& mistake) {
  CAPTURE(mistake.what);
  const Finished done = run_kvasir(mistake.arguments);
  CAPTURE(done.err);
  CHECK(done.code == 2);
  CHECK(done.out == "");
  CHECK(done.err.starts_with("kvasir: error: "));
  CHECK(std::count(done.err.begin(), done.err.end(), '\n') == 1);
  CHECK(done.err.ends_with('\n'));
  for (const std::string& word : mistake.words) {
    CAPTURE(word);
    CHECK(done.err.find(word) != std::string::npos);
  }
}

// A small model, and copies of it with one thing wrong.
struct Models {
  TempDir folder;
  std::string good = folder.path("good.gguf");
  std::string bytes;

  Models() {
    const Finished made = run_kvasir(
        {"model", "random", "tiny-llama-test", "--type", "f32", "--context", "4096", "-o", good});
    REQUIRE(made.code == 0);
    bytes = read_bytes(good);
  }
  std::string with(const std::string& name, size_t at, const std::string& patch) const {
    std::string copy = bytes;
    copy.replace(at, patch.size(), patch);
    return folder.write(name, copy);
  }
  // A copy in which the last number of a tensor of f32 is NaN.
  std::string with_nan(const std::string& tensor_name) const {
    const auto file = kvasir::GgufFile::open(good);
    const std::byte* first = file.tensors()[0].data;
    for (const auto& t : file.tensors()) first = std::min(first, t.data);
    const std::byte* end = first;
    for (const auto& t : file.tensors()) end = std::max(end, t.data + t.n_bytes);
    const auto& tensor = file.tensor(tensor_name);
    const size_t padded = (static_cast<size_t>(end - first) + 31) / 32 * 32;
    const auto at = static_cast<size_t>(tensor.data - first) + tensor.n_bytes - sizeof(float);
    return with(tensor_name + ".gguf", bytes.size() - padded + at, std::string("\0\0\xC0\x7F", 4));
  }
  // After a tensor's name: n_dims u32, dims u64 each, type u32.
  size_t tensor(const std::string& name) const { return bytes.find(name) + name.size(); }
};

TEST_CASE("a bad model file is named with what is wrong") {
  const Models m;
  const size_t embedding = m.tensor("token_embd.weight");
  const size_t architecture = m.bytes.find("llama", m.bytes.find("general.architecture"));
  const std::string wide = m.with("wide.gguf", embedding + 4, std::string("\0\0\0\0\0\1\0\0", 8));
  const std::string typed = m.with("typed.gguf", embedding + 20, std::string("\x1a\0\0\0", 4));
  const std::string strange = m.with("strange.gguf", embedding + 20, std::string("\x4d\0\0\0", 4));
  const std::string mamba = m.with("mamba.gguf", architecture, "mamba");
  const std::string mute =
      m.with("mute.gguf", m.bytes.find("tokenizer.ggml.model"), "tokenizer.ggml.modem");
  const std::string cut = m.folder.write("cut.gguf", m.bytes.substr(0, m.bytes.size() / 2));
  const std::string head = m.folder.write("head.gguf", m.bytes.substr(0, 60));
  const std::string zip = m.folder.write("zip.gguf", "PK\3\4 this is something else");
  const std::string empty = m.folder.write("empty.gguf", "");
  const std::string missing = m.folder.path("missing.gguf");
  for (const Mistake& mistake : std::vector<Mistake>{
           {"no -m", {"run", "-p", "a"}, {"-m"}},
           {"missing", {"run", "-m", missing, "-p", "a"}, {"missing.gguf"}},
           {"folder", {"run", "-m", m.folder.path("."), "-p", "a"}, {m.folder.path(".")}},
           {"empty", {"run", "-m", empty, "-p", "a"}, {"empty.gguf"}},
           {"truncated data", {"run", "-m", cut, "-p", "a"}, {"cut.gguf"}},
           {"truncated head", {"run", "-m", head, "-p", "a"}, {"head.gguf"}},
           {"foreign", {"run", "-m", zip, "-p", "a"}, {"zip.gguf", "GGUF"}},
           {"dimension", {"run", "-m", wide, "-p", "a"}, {"wide.gguf", "token_embd.weight"}},
           {"type", {"run", "-m", typed, "-p", "a"}, {"typed.gguf", "I32", "token_embd.weight"}},
           {"unknown type", {"run", "-m", strange, "-p", "a"}, {"strange.gguf", "77"}},
           {"architecture", {"run", "-m", mamba, "-p", "a"}, {"mamba.gguf", "'mamba'", "qwen3"}},
           {"architecture, info", {"model", "info", "-m", mamba}, {"'mamba'"}},
           {"no tokenizer", {"run", "-m", mute, "-p", "a"}, {"mute.gguf", "tokenizer"}},
           {"no tokenizer", {"tokenize", "-m", mute, "-p", "a"}, {"mute.gguf", "tokenizer"}}})
    check(mistake);
}

TEST_CASE("a prompt or a memory need beyond what there is says how much") {
  const Models m;
  const std::string large = m.folder.path("large.gguf");
  REQUIRE(run_kvasir({"model", "random", "tiny-llama-test", "--layers", "8", "--kv-heads", "4",
                      "--head-dim", "128", "--context", "1073741824", "-o", large})
              .code == 0);
  const std::string prompt(400, 'x');
  const std::string folder = m.folder.path(".");
  for (const Mistake& mistake : std::vector<Mistake>{
           {"prompt", {"run", "-m", m.good, "-p", prompt, "-c", "16"}, {"-c gives 16", "tokens"}},
           {"no prompt", {"run", "-m", m.good}, {"-p", "-f"}},
           {"no such file", {"run", "-m", m.good, "-f", m.folder.path("no.txt")}, {"no.txt"}},
           {"folder as a prompt", {"run", "-m", m.good, "-f", folder}, {"folder"}},
           {"two prompts", {"run", "-m", m.good, "-p", "a", "-f", m.good}, {"-p", "-f"}},
           {"ppl, short text", {"ppl", "-m", m.good, "-f", "/dev/null"}, {"tokens", "-c"}},
           {"memory",
            {"run", "-m", large, "-p", "a", "-c", "1000000000"},
            {"1000000000", "needs", "GB", "available", "lower -c"}},
           {"chat template",
            {"chat", "-m", m.good, "--chat-template", "alpaca"},
            {"alpaca", "chatml"}},
           {"document", {"chat", "-m", m.good, "-f", m.good, "-c", "16"}, {"document", "-c"}}})
    check(mistake);
}

TEST_CASE("a chat template that is not known is named, and --chat-template told of") {
  const TempDir folder;
  const std::string model = folder.path("m.gguf");
  REQUIRE(run_kvasir({"model", "random", "tiny-llama-test", "-o", model}).code == 0);
  std::string bytes = read_bytes(model);
  const std::string mark = "<|im_start|>", other = "<|somebody|>";
  for (size_t at = bytes.find(mark); at != std::string::npos; at = bytes.find(mark, at))
    bytes.replace(at, mark.size(), other);
  folder.write("m.gguf", bytes);
  check({"unknown template", {"chat", "-m", model}, {"<|somebody|>", "--chat-template", "llama3"}});
}

TEST_CASE("a bad strategy is named with file, line and column") {
  const Models m;
  const auto toml = [&](const char* name, const std::string& text) {
    return m.folder.write(name, text);
  };
  const std::string syntax = toml("syntax.toml", "[cache\nblock_size = 16\n");
  const std::string unknown = toml("unknown.toml", "[cache]\nwindow_token = 16\n");
  const std::string typed = toml("typed.toml", "[cache]\nblock_size = \"big\"\n");
  const std::string range = toml("range.toml", "[cache]\nblock_size = 0\n");
  const std::string table = toml("table.toml", "[selektor]\nplugin = \"dense\"\n");
  const std::string layer = toml("layer.toml", "[cache]\ndense_layers = [9]\n");
  const std::string option = toml("option.toml", "[selector]\nplugin = \"dense\"\nbudget = 3\n");
  const std::string low = toml("low.toml",
                               "[selector]\nplugin = \"block_topk\"\nbudget_tokens = -3\n"
                               "[representative]\nplugin = \"minmax\"\n");
  const std::string lone = toml("lone.toml", "[selector]\nplugin = \"block_topk\"\n");
  const std::string include = toml("include.toml", "include = [\"nowhere.toml\"]\n");
  for (const Mistake& mistake : std::vector<Mistake>{
           {"syntax", {"run", "-m", m.good, "-p", "a", "-s", syntax}, {"syntax.toml:1:"}},
           {"unknown key",
            {"run", "-m", m.good, "-p", "a", "-s", unknown},
            {"unknown.toml:2:1", "window_token", "window_tokens"}},
           {"unknown table",
            {"run", "-m", m.good, "-p", "a", "-s", table},
            {"table.toml:1:", "selektor", "selector"}},
           {"type", {"run", "-m", m.good, "-p", "a", "-s", typed}, {"typed.toml:2:", "block_size"}},
           {"range",
            {"run", "-m", m.good, "-p", "a", "-s", range},
            {"range.toml:2:", "block_size", "4096"}},
           {"layer", {"run", "-m", m.good, "-p", "a", "-s", layer}, {"layer.toml:2:", "layer 9"}},
           {"unknown option",
            {"run", "-m", m.good, "-p", "a", "-s", option},
            {"option.toml:3:1", "budget", "kvasir.dense"}},
           {"option out of range",
            {"run", "-m", m.good, "-p", "a", "-s", low},
            {"low.toml:3:", "budget_tokens", "-3"}},
           {"no representative",
            {"run", "-m", m.good, "-p", "a", "-s", lone},
            {"lone.toml:2:", "needs scores", "[representative]"}},
           {"include", {"run", "-m", m.good, "-p", "a", "-s", include}, {"nowhere.toml"}},
           {"no such preset", {"config", "check", "qwest"}, {"qwest"}},
           {"--set without a value", {"config", "check", "dense", "--set", "a"}, {"key=value"}},
           {"--set of no key",
            {"config", "check", "dense", "--set", "cache.blok_size=1"},
            {"--set cache.blok_size=1", "block_size"}},
           {"nothing to check", {"config", "check"}, {"name a strategy"}}})
    check(mistake);
}

// A mistake that shows only once the plugins are bound: run, plan and config check refuse it.
TEST_CASE("check, explain and plan refuse what run refuses") {
  const Models m;
  const auto chain = [&](const char* name, const std::string& first, const std::string& second) {
    return m.folder.write(name, "[cache]\nblock_size = 16\n[[selector]]\nplugin = \"" + first +
                                    "\"\n[[selector]]\nplugin = \"" + second +
                                    "\"\n[representative]\nplugin = \"mean\"\n");
  };
  struct Pair {
    std::vector<std::string> strategy;
    std::vector<std::string> words;
  };
  const auto with_slot = [&](const char* preset) {
    return std::vector<std::string>{preset, "--set", "cache.positions=slot"};
  };
  for (const Pair& pair : std::vector<Pair>{
           {{chain("units.toml", "kvasir.twilight", "kvasir.block_topk")},
            {"chooses blocks and cannot follow kvasir.twilight"}},
           {{chain("keys.toml", "kvasir.infllm", "kvasir.twilight")},
            {"kvasir.twilight", "keys with their rotation"}},
           {{m.folder.write("weights.toml",
                            "[cache]\nblock_size = 16\n[[selector]]\nplugin = 'kvasir.magicpig'\n"
                            "[[selector]]\nplugin = 'kvasir.streaming'\n")},
            {"kvasir.magicpig weighs keys", "kvasir.streaming chooses for all heads"}},
           {{chain("constant.toml", "kvasir.infllm", "kvasir.streaming")},
            {"kvasir.streaming", "constant positions (kvasir.infllm)"}},
           {with_slot("infllm"), {"--set cache.positions=slot", "kvasir.infllm"}},
           {with_slot("oracle"), {"kvasir.oracle", "cache.positions = \"true\""}},
           {with_slot("infinigen"), {"kvasir.infinigen", "cache.positions = \"true\""}},
           {with_slot("twilight"), {"kvasir.twilight", "cache.positions = \"true\""}}}) {
    const auto with = [&](std::vector<std::string> command, bool is_flag) {
      if (is_flag) command.emplace_back("-s");
      command.insert(command.end(), pair.strategy.begin(), pair.strategy.end());
      return command;
    };
    CAPTURE(pair.strategy.front());
    check({"run", with({"run", "-m", m.good, "-p", "a"}, true), pair.words});
    check({"check", with({"config", "check"}, false), pair.words});
    check({"check -m", with({"config", "check", "-m", m.good}, false), pair.words});
    check({"explain", with({"config", "explain"}, false), pair.words});
    check({"plan", with({"plan", "--preset", "llama-3.1-8b", "-c", "4K"}, true), pair.words});
  }
}

TEST_CASE("a plugin that cannot be used says why") {
  const Models m;
  const std::string text = m.folder.write("text.so", "this is no shared object");
  const auto with = [&](const char* name, const std::string& plugin, const std::string& more = "") {
    const std::string file = m.folder.write(std::string(name) + ".toml",
                                            "[selector]\nplugin = \"" + plugin + "\"\n" + more);
    return std::vector<std::string>{"run", "-m", m.good, "-p", "a", "-s", file};
  };
  const auto and_dir = [](std::vector<std::string> arguments,
                          const std::vector<std::string>& folders) {
    for (const std::string& folder : folders)
      arguments.insert(arguments.end(), {"--plugin-dir", kPlugins + folder});
    return arguments;
  };
  const std::string backend = "[attention]\nplugin = \"kvasir.attention\"\n";
  for (const Mistake& mistake : std::vector<Mistake>{
           {"not found",
            with("a", "org.test.nowhere"),
            {"a.toml:2:", "org.test.nowhere", "Looked"}},
           {"misspelt", with("b", "block_tokp"), {"b.toml:2:", "block_topk"}},
           {"no such file", with("c", "/nowhere/x.so"), {"/nowhere/x.so", "not found"}},
           {"bare file name", with("d", "x.so"), {"x.so", "./x.so"}},
           {"not ELF", with("e", text), {"text.so", "ELF"}},
           {"no note", with("f", kPlugins + "faulty/test_no_note.so"), {"test_no_note.so"}},
           {"no symbol",
            with("g", kPlugins + "faulty/test_no_symbol.so"),
            {"test_no_symbol.so", "kvasir_plugin_entry"}},
           {"wrong major",
            with("h", kPlugins + "faulty/test_wrong_major.so"),
            {"test_wrong_major.so", "7.x"}},
           {"newer minor",
            with("i", kPlugins + "faulty/test_newer_minor.so"),
            {"test_newer_minor.so", "99", "newer"}},
           {"wrong kind", with("j", "kvasir.minmax"), {"j.toml:2:", "kvasir.minmax"}},
           {"create refuses",
            with("k", kPlugins + "good/test_refused.so", "fault = \"create\"\n"),
            {"k.toml:2:", "org.test.refused", "I do not want to"}},
           {"create fails silently",
            with("l", kPlugins + "good/test_refused.so", "fault = \"create.silent\"\n"),
            {"l.toml:2:", "org.test.refused", "create"}},
           {"two files with one id",
            and_dir(with("m", "org.test.duplicate"), {"duplicates"}),
            {"org.test.duplicate", "test_duplicate_a.so", "test_duplicate_b.so"}},
           {"backend lacks mass",
            and_dir(with("n", "org.test.needs_mass", backend), {"good", "needs"}),
            {"n.toml:2:", "needs attention mass", "kvasir.attention"}},
           {"host lacks it",
            and_dir(with("o", "org.test.needs_future"), {"needs"}),
            {"org.test.needs_future", "needs bit 40"}},
           {"a NUL", with("p", "a\\u0000b"), {"p.toml:2:", "plugin", "NUL"}},
           {"plugin info, no name", {"plugin", "info", ""}, {"no plugin is named"}},
           {"plugin info, unknown", {"plugin", "info", "nowhere"}, {"nowhere"}},
           {"plugin info, no plugin", {"plugin", "info", text}, {"text.so", "ELF"}}})
    check(mistake);
}

TEST_CASE("a bad command line is refused, and no output is half-written") {
  const Models m;
  const TempDir outputs;
  const std::string npy = outputs.path("l.npy"), gguf = outputs.path("m.gguf");
  for (const Mistake& mistake : std::vector<Mistake>{
           {"no subcommand", {}, {"--help"}},
           {"unknown subcommand", {"rum"}, {"'rum'", "'run'"}},
           {"unknown flag", {"run", "--frobnicate"}, {"frobnicate"}},
           {"mistyped flag", {"run", "--promt", "x"}, {"--promt", "--prompt"}},
           {"subcommand of one", {"plugin", "lst"}, {"'lst'", "'list'"}},
           {"mistyped flag of all", {"--verison"}, {"--verison", "--version"}},
           {"out of range", {"run", "-m", m.good, "-p", "a", "--top-p", "2"}, {"--top-p", "2"}},
           {"no number", {"run", "-m", m.good, "-p", "a", "-c", "many"}, {"many"}},
           {"compute", {"run", "-m", m.good, "-p", "a", "--compute", "f64"}, {"f64"}},
           {"shape name", {"model", "random", "llama-9", "-o", gguf}, {"llama-9", "llama-3.2-1b"}},
           {"no shape", {"model", "random", "-o", gguf}, {"n_layers"}},
           {"heads",
            {"model", "random", "llama-3.2-1b", "--kv-heads", "7", "-o", gguf},
            {"n_kv_heads"}},
           {"type", {"model", "random", "tiny-llama-test", "--type", "q9", "-o", gguf}, {"q9"}},
           {"no overwriting", {"model", "random", "tiny-llama-test", "-o", m.good}, {"--force"}},
           {"no folder",
            {"model", "random", "tiny-llama-test", "-o", outputs.path("no/m.gguf")},
            {"no/m.gguf"}},
           {"token id",
            {"model", "logits", "-m", m.good, "--tokens", "1,9999", "-o", npy},
            {"9999"}},
           {"no id", {"model", "logits", "-m", m.good, "--tokens", "1,b", "-o", npy}, {"'b'"}},
           {"two inputs",
            {"model", "logits", "-m", m.good, "--tokens", "1", "-p", "a", "-o", npy},
            {"--tokens", "-p"}},
           {"fold with RoPE",
            {"model", "skew", "--fold", "-m", m.good, "-f", m.good, "-o", gguf},
            {"RoPE", "skew_file"}},
           {"no output", {"model", "logits", "-m", m.good, "--tokens", "1"}, {"-o", "--json"}},
           {"bad id", {"tokenize", "-m", m.good, "--decode", "1,-4"}, {"-4"}},
           {"no id between commas", {"tokenize", "-m", m.good, "--decode", "1,,2"}, {"--decode"}},
           {"no id at the end", {"tokenize", "-m", m.good, "--decode", "1,2,"}, {"last comma"}},
           {"negative seed", {"run", "-m", m.good, "-p", "a", "--seed", "-1"}, {"--seed", "-1"}},
           {"negative count",
            {"task", "generate", "-m", m.good, "--task", "passkey", "-n", "-3"},
            {"-n", "-3"}},
           {"no number", {"bench", "recall", "--drift", "nan"}, {"--drift", "nan"}},
           {"repeated flag", {"run", "-m", m.good, "-n", "1", "-n", "2"}, {"--n-predict"}},
           {"id too large", {"tokenize", "-m", m.good, "--decode", "4711"}, {"4711"}},
           {"plan without a model", {"plan"}, {"--preset"}},
           {"plan, context", {"plan", "--preset", "llama-2-7b", "-c", "12Q"}, {"12Q"}},
           {"plan, bandwidth", {"plan", "--preset", "llama-2-7b", "--bandwidth", "fast"}, {"fast"}},
           {"compare nothing", {"compare", "-m", m.good, "-p", "a"}, {"-s"}},
           {"no task", {"task", "generate", "-m", m.good, "-o", npy}, {"--task"}},
           {"task name",
            {"task", "generate", "--task", "pass-key", "-m", m.good, "-o", npy},
            {"'pass-key'", "'passkey'"}},
           {"task name in a mixture",
            {"task", "generate", "--mix", "repeat=1,neddle=1", "--format", "ids", "-m", m.good,
             "-o", npy},
            {"--mix", "'neddle'", "'needle'"}},
           {"weight",
            {"task", "generate", "--mix", "repeat=x", "--format", "ids", "-m", m.good, "-o", npy},
            {"repeat=x"}},
           {"mixture as lines",
            {"task", "generate", "--mix", "repeat=1", "-m", m.good, "-o", npy},
            {"--mix", "ids"}},
           {"length too short",
            {"task", "generate", "--task", "needle", "--length", "9", "-m", m.good, "-o", npy},
            {"--length 9", "at least"}},
           {"range",
            {"task", "generate", "--task", "mqar", "--pairs", "8-4", "-m", m.good, "-o", npy},
            {"--pairs 8-4"}},
           {"evaluation seed for training",
            {"task", "generate", "--task", "mqar", "--format", "ids", "--seed", "1", "-m", m.good,
             "-o", npy},
            {"--seed 1", "4294967296"}},
           {"training seed for evaluation",
            {"task", "eval", "--task", "passkey", "--seed", "4294967296", "-m", m.good},
            {"--seed 4294967296", "training"}},
           {"nothing to be right about",
            {"task", "eval", "--task", "filler", "-m", m.good},
            {"filler", "asks nothing"}},
           {"context below the length",
            {"task", "eval", "--task", "passkey", "--length", "512", "-c", "100", "-m", m.good},
            {"-c 100", "512"}},
           {"chat as JSON", {"chat", "-m", m.good, "--json"}, {"--json"}}})
    check(mistake);
  CHECK(outputs.list().empty());
  CHECK(read_bytes(m.good) == m.bytes);
}

TEST_CASE("weights that are no numbers end every command, which names the layer") {
  const Models m;
  const std::string text = m.folder.write("text", "one two three four five six seven eight nine");
  for (const auto& [tensor, where] :
       {std::pair{"blk.1.ffn_down.weight", "layer 1: the hidden state at position "},
        std::pair{"blk.0.attn_output.weight", "layer 0: the hidden state at position "},
        std::pair{"output_norm.weight", "the logits are not finite"}}) {
    const std::string model = m.with_nan(tensor);
    for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
             {"run", "-m", model, "-p", "hello there", "--temp", "0"},
             {"ppl", "-m", model, "-f", text, "-c", "8"},
             {"compare", "-m", model, "-p", "hello there", "-s", "quest"},
             {"model", "logits", "-m", model, "-p", "hello there", "--json"},
             {"task", "eval", "-m", model, "--task", "passkey", "--length", "300", "-n", "1"}}) {
      CAPTURE(command[0]);
      const Finished done = run_kvasir(command);
      CHECK(done.code == 2);
      CHECK(done.out.find("nan") == std::string::npos);
      CAPTURE(done.err);
      CHECK(done.err.find(where) != std::string::npos);
    }
  }
}

}  // namespace
