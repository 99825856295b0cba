// What the tool prints for programs: one JSON document, the figures it promises.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/tools/process.h"
#include "tests/tools/tiny_model.h"

namespace {

using kvasir::test::Finished;
using kvasir::test::has;
using kvasir::test::json_of;
using kvasir::test::read_bytes;
using kvasir::test::run_kvasir;
using kvasir::test::TempDir;
using kvasir::test::TinyModel;
using Json = nlohmann::json;

TEST_CASE("plan gives the sizes of f16 caches that the models' shapes imply") {
  // 2 x layers x kv heads x head_dim x 2 bytes per token, in GB of 1e9 bytes.
  const Json plan =
      json_of({"plan", "--preset", "internlm2.5-7b", "-c", "4K,32K,64K,128K,512K,1M", "--json"});
  const double expected[] = {0.54, 4.29, 8.59, 17.18, 68.72, 137.44};
  REQUIRE(plan["plans"].size() == 6);
  for (size_t i = 0; i < 6; ++i) {
    const double gb = plan["plans"][i]["kv_bytes"].get<double>() / 1e9;
    CHECK(std::round(gb * 100) / 100 == doctest::Approx(expected[i]));
  }
  const Json llama2 = json_of({"plan", "--preset", "llama-2-7b", "-c", "2048", "--json"});
  CHECK(llama2["plans"][0]["kv_bytes"] == uint64_t{2} * 32 * 32 * 128 * 2 * 2048);
}

TEST_CASE("plan counts what a strategy attends to, and what a step reads") {
  const Json p = json_of({"plan", "--preset", "llama-3.1-8b", "-s", "ktransformers", "-c", "128K",
                          "--bandwidth", "100", "--json"})["plans"][0];
  CHECK(p["attended_tokens"] == 128 + 4096 + 96 * 128);
  CHECK(p["kv_bytes_per_step"] == (128 + 4096 + 96 * 128) * uint64_t{32} * 8 * 128 * 2 * 2);
  const double bytes = p["kv_bytes_per_step"].get<double>() +
                       p["representative_bytes_per_step"].get<double>() +
                       p["weight_bytes_per_step"].get<double>();
  CHECK(p["bound_ms_per_token"].get<double>() == doctest::Approx(bytes / 100e9 * 1e3));
}

TEST_CASE("plan counts the records that choosing among a million tokens reads") {
  const auto bytes = [](const char* setting) {
    const Json p = json_of({"plan", "--preset", "llama-3.1-8b", "-s", "block_topk", "-c", "1M",
                            "--set", setting, "--json"})["plans"][0];
    return std::pair(p["representative_bytes_per_step"].get<uint64_t>(),
                     p["representative_bytes"].get<uint64_t>());
  };
  // Per layer and kv head 8,192 blocks: minima and maxima of 128 channels in f16.
  const uint64_t heads = 32 * 8, record = 2 * 128 * 2, records = 8192 * record * heads;
  CHECK(bytes("representative.coarse_first=false") == std::pair(records, records));
  // A page of 64: a line for its state, low ends and steps in f16, a distance per record, codes of
  // 4 bits.
  const uint64_t page = 64 + 2 * 256 * 2 + 64 + 64 * 256 / 2;
  CHECK(bytes("representative.coarse_first=true") ==
        std::pair((128 * page + 3 * 96 * record) * heads, records + 128 * page * heads));
  // Shares of all attention are added up: every score counts.
  CHECK(bytes("cache.gqa_reduce=softmax_sum").first == records);
}

TEST_CASE("plan counts what selectors keep beside the cache, and the total has the most of it") {
  const auto plan = [](const char* strategy, const char* n) {
    return json_of({"plan", "--preset", "internlm2.5-7b", "-s", strategy, "-c", "32K",
                    "--sequences", n, "--json"})["plans"][0];
  };
  const auto bytes = [](const Json& p, const char* key) { return p[key].get<uint64_t>(); };
  const Json dense = plan("dense", "1"), pig = plan("magicpig", "1"), two = plan("magicpig", "2");
  CHECK(dense["state_bytes"] == 0);
  CHECK(dense["state_peak_bytes"] == 0);
  // Per hashed token, sparse layer and kv head: ids, bounds, norm; 4 sinks and a window of 64.
  const double n = 32768 - 68, heads = 30 * 8;
  const double tables = heads * (n * (2 * 150 + 4) + 150 * 1025 * 4);
  CHECK(static_cast<double>(bytes(pig, "state_bytes")) == doctest::Approx(tables).epsilon(0.001));
  const double beside = n * (2 * 150 + 4 + 4 + 16);  // while one head is hashed
  CHECK(static_cast<double>(bytes(pig, "state_peak_bytes") - bytes(pig, "state_bytes")) == beside);
  CHECK(static_cast<double>(bytes(two, "state_bytes")) ==
        doctest::Approx(2 * tables).epsilon(0.001));
  CHECK(bytes(two, "state_peak_bytes") - bytes(two, "state_bytes") ==
        bytes(pig, "state_peak_bytes") - bytes(pig, "state_bytes"));
  CHECK(bytes(pig, "total_bytes") - bytes(dense, "total_bytes") >= bytes(pig, "state_peak_bytes"));
  const Json votes = plan("snapkv", "1");  // 4 bytes per token, layer and kv head, then nothing
  CHECK(votes["state_bytes"] == 0);
  CHECK(votes["state_peak_bytes"] == uint64_t{4} * 32768 * 32 * 8);
  const Json r =
      json_of({"config", "explain", "snapkv", "--preset", "internlm2.5-7b", "-c", "32K", "--json"});
  CHECK(r["memory"]["state_peak_bytes"] == votes["state_peak_bytes"]);
}

TEST_CASE("a model file and a preset of the same shape plan alike") {
  const TinyModel m;
  using Environment = std::vector<std::string>;
  for (const auto& cpu : {Environment(), Environment{"ONEDNN_MAX_CPU_ISA=AVX2"}}) {
    const auto plan = [&](const char* option, const std::string& model) {
      return json_of({"plan", option, model, "-c", "1000", "--json"}, cpu)["plans"][0];
    };
    CHECK(plan("-m", m.path) == plan("--preset", "tiny-llama-test"));
  }
}

TEST_CASE("model info reads back what model random was told") {
  const TempDir folder;
  const std::string path = folder.path("m.gguf");
  const Json made =
      json_of({"model",   "random", "--arch",    "qwen3", "--layers",   "3",   "--d-model",  "128",
               "--d-ff",  "256",    "--q-heads", "8",     "--kv-heads", "2",   "--head-dim", "32",
               "--vocab", "700",    "--context", "9000",  "--type",     "f16", "-o",         path,
               "--json"});
  const Json info = json_of({"model", "info", "-m", path, "--json", "--keys", "--tensors"});
  CHECK(info["architecture"] == "qwen3");
  CHECK(info["n_layers"] == 3);
  CHECK(info["n_q_heads"] == 8);
  CHECK(info["n_kv_heads"] == 2);
  CHECK(info["head_dim"] == 32);
  CHECK(info["vocab_size"] == 700);
  CHECK(info["max_context"] == 9000);
  CHECK(info["qk_norm"] == true);
  CHECK(info["kv_bytes_per_token_f16"] == 2 * 3 * 2 * 32 * 2);
  CHECK(info["n_parameters"] == made["n_parameters"]);
  CHECK(info["metadata"].contains("qwen3.block_count"));
  CHECK(info["tensors"].size() == 3 + 3 * 11);
  CHECK(info["file_bytes"] == read_bytes(path).size());
}

TEST_CASE("a model without RoPE takes the skew in its weights and answers as before") {
  const TempDir folder;
  const std::string model = folder.path("m.gguf"), skewed = folder.path("skewed.gguf");
  REQUIRE(
      run_kvasir({"model", "random", "tiny-llama-test", "--no-rope", "--type", "f32", "-o", model})
          .code == 0);
  CHECK(json_of({"model", "info", "-m", model, "--json"})["rope"]["n_dims"] == 0);
  std::string text;
  for (int i = 0; i < 300; ++i) text += "Odin gave eye number " + std::to_string(i) + ".\n";
  const Finished fold = run_kvasir(
      {"model", "skew", "--fold", "-m", model, "-f", folder.write("text", text), "-o", skewed});
  REQUIRE_MESSAGE(fold.code == 0, fold.err);
  CHECK(read_bytes(skewed) != read_bytes(model));
  const auto top = [](const std::string& path) {
    return json_of({"model", "logits", "-m", path, "--tokens", "5,6,7", "--json", "--top-k", "1",
                    "--compute", "f32", "--ctk", "f32"})["top_k"][2][0];
  };
  CHECK(top(skewed)["token_id"] == top(model)["token_id"]);
  CHECK(top(skewed)["logit"].get<double>() ==
        doctest::Approx(top(model)["logit"].get<double>()).epsilon(1e-5));
}

TEST_CASE("a skew file says which columns matter, to its sample or to another text") {
  const TempDir folder;
  const std::string model = folder.path("m.gguf");
  REQUIRE(run_kvasir({"model", "random", "tiny-llama-test", "-o", model}).code == 0);
  std::string text;
  for (int i = 0; i < 100; ++i) text += "Odin gave eye number " + std::to_string(i) + ".\n";
  const std::string sample = folder.write("text", text), other = folder.write("other", "An eye.");
  const auto skew = [&](const std::string& name, const std::string& columns_from) {
    const std::string path = folder.path(name);
    std::vector<std::string> words = {"model", "skew", "-m", model, "-f", sample, "-o", path};
    if (!columns_from.empty()) words.insert(words.end(), {"--columns-from", columns_from});
    const Finished done = run_kvasir(words);
    REQUIRE_MESSAGE(done.code == 0, done.err);
    return read_bytes(path);
  };
  const auto own = skew("own", ""), same = skew("same", sample), short_text = skew("short", other);
  CHECK(own == same);
  CHECK(short_text.size() == own.size());
  CHECK(short_text != own);
  for (const std::string columns : {"prompt", "offline"}) {
    const Finished run = run_kvasir({"run", "-m", model, "-s", "infinigen", "-f", sample, "-n", "3",
                                     "--set", "selector.skew_file=" + folder.path("short"), "--set",
                                     "selector.columns=" + columns});
    CHECK_MESSAGE(run.code == 0, run.err);
    CHECK(run.err.find("no skew_file") == std::string::npos);
  }
  // The preset makes its own; without any the plugin says so, once.
  std::vector<std::string> words = {"run", "-m", model, "-s", "infinigen", "-f", sample, "-n", "3"};
  CHECK(run_kvasir(words).err.find("no skew_file") == std::string::npos);
  words.insert(words.end(), {"--set", "selector.skew_tokens=0"});
  const std::string said = run_kvasir(words).err;
  CHECK(said.find("no skew_file") != std::string::npos);
  CHECK(said.find("no skew_file") == said.rfind("no skew_file"));
}

TEST_CASE("tokenize --decode gives back the bytes of the text") {
  const TinyModel m;
  const std::string text = "Odin gave an eye.\n\n  twice \xff\xfe Mímir ☃";
  const std::string file = m.folder.write("text", text);
  const Json ids = json_of({"tokenize", "-m", m.path, "-f", file, "--no-bos", "--json"});
  CHECK(ids["n_tokens"] == ids["tokens"].size());
  std::string list;
  for (const Json& id : ids["tokens"]) list.append(list.empty() ? "" : ",").append(id.dump());
  const Finished plain = run_kvasir({"tokenize", "-m", m.path, "-f", file, "--no-bos"});
  CHECK(plain.out == list + "\n");
  CHECK(run_kvasir({"tokenize", "-m", m.path, "--decode", list}).out == text);
  const Json with_bos = json_of({"tokenize", "-m", m.path, "-f", file, "--json"});
  CHECK(with_bos["n_tokens"].get<size_t>() == ids["n_tokens"].get<size_t>() + 1);
}

TEST_CASE("model logits writes float32 rows that agree with its JSON and with run") {
  const TinyModel m;
  const std::string npy = m.folder.path("l.npy");
  const Json report = json_of({"model", "logits", "-m", m.path, "--tokens", "5,6,7", "-o", npy,
                               "--json", "--top-k", "3", "--compute", "f32"});
  const std::string bytes = read_bytes(npy);
  REQUIRE(bytes.starts_with(std::string("\x93NUMPY\x01\x00", 8)));
  const size_t header =
      static_cast<unsigned char>(bytes[8]) + 256u * static_cast<unsigned char>(bytes[9]);
  CHECK((10 + header) % 64 == 0);
  const std::string about = bytes.substr(10, header);
  CHECK(about.find("'<f4'") != std::string::npos);
  CHECK(about.find("(3, 512)") != std::string::npos);
  REQUIRE(bytes.size() == 10 + header + 3 * 512 * 4);
  for (size_t row = 0; row < 3; ++row) {
    std::vector<float> logits(512);
    std::memcpy(logits.data(), bytes.data() + 10 + header + row * 512 * 4, 512 * 4);
    const Json& top = report["top_k"][row];
    REQUIRE(top.size() == 3);
    const float best = *std::max_element(logits.begin(), logits.end());
    CHECK(top[0]["logit"].get<float>() == best);
    CHECK(logits[top[0]["token_id"].get<size_t>()] == best);
    CHECK(top[1]["logit"].get<float>() <= best);
  }
  CHECK(m.folder.list() == std::vector<std::string>{"l.npy", "tiny.gguf"});
}

TEST_CASE("--deterministic: the same logits for every chunk size, and the reports say so") {
  const TinyModel m;
  std::string ids = "5";
  for (int i = 0; i < 60; ++i) ids.append(",").append(std::to_string(i * 37 % 500));
  const auto logits = [&](const char* compute, const char* chunk) {
    const std::string npy = m.folder.path("l.npy");
    const Finished done = run_kvasir({"model", "logits", "-m", m.path, "--tokens", ids, "-o", npy,
                                      "--force", "--compute", compute, "--deterministic", "--set",
                                      std::string("cache.chunk_size=") + chunk});
    REQUIRE_MESSAGE(done.code == 0, done.err);
    return read_bytes(npy);
  };
  for (const char* compute : {"auto", "f32"}) {
    const auto whole = logits(compute, "128");
    for (const char* chunk : {"1", "3", "16"}) CHECK(logits(compute, chunk) == whole);
  }
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"run", "-m", m.path, "-p", "a", "-n", "1", "--json"});
    return json_of(more);
  };
  CHECK(run({"--compute", "f32"})["deterministic"] == true);
  CHECK(run({"--deterministic"})["deterministic"] == true);
  const Json usual = run({});
  CHECK(usual["deterministic"] == (usual["compute"] != "bf16"));
  const std::string prompt = m.folder.write("prompt", "some words to begin with");
  CHECK(json_of({"compare", "-m", m.path, "-f", prompt, "-s", "dense", "-n", "2", "--json",
                 "--deterministic"})["deterministic"] == true);
}

TEST_CASE("run reports the engagement fields that a program may rely on") {
  const TinyModel m;
  const Json r = json_of({"run", "-m", m.path, "-p", "some words to begin with", "-n", "8",
                          "--ignore-eos", "--temp", "0", "--json", "-s", "streaming"});
  for (const char* key :
       {"prompt_tokens", "generated_tokens", "prefill_ms", "decode_ms", "tokens_considered",
        "tokens_selected", "tokens_attended", "kv_bytes_read", "representative_bytes_read",
        "selector_bytes_read", "fallbacks", "strategy", "plugins"})
    CHECK(r.contains(key));
  CHECK(r["generated_tokens"] == 8);
  CHECK(r["strategy"] == "streaming");
  for (const Json& plugin : r["plugins"]) {
    CHECK(plugin.contains("id"));
    CHECK(plugin.contains("version"));
    CHECK(std::filesystem::exists(plugin["file"].get<std::string>()));
  }
}

TEST_CASE("two strategy files on one binary read different amounts, and compare says so") {
  const TinyModel m;
  std::string text;
  for (int i = 0; i < 400; ++i)
    text.append("line ").append(std::to_string(i * 7919 % 1000)).append("\n");
  const std::string prompt = m.folder.write("prompt", text);
  const std::string narrow =
      m.folder.write("narrow.toml",
                     "[cache]\nblock_size = 16\nsink_tokens = 16\nwindow_tokens = 64\n"
                     "[selector]\nplugin = \"streaming\"\n");
  const Json r = json_of({"compare", "-m", m.path, "-f", prompt, "-s", narrow, "-s", "dense", "-n",
                          "6", "--compute", "f32", "--json"});
  REQUIRE(r["strategies"].size() == 3);
  const Json &dense = r["strategies"][0], &sparse = r["strategies"][1], &again = r["strategies"][2];
  CHECK(sparse["strategy"] == "narrow");
  CHECK(dense["tokens_attended"] == dense["tokens_considered"]);
  CHECK(sparse["tokens_considered"] == dense["tokens_considered"]);
  CHECK(sparse["kv_bytes_read"].get<double>() < 0.5 * dense["kv_bytes_read"].get<double>());
  CHECK(sparse["mean_kl"].get<double>() > 0);
  // The same strategy, fed the same tokens, must predict the same.
  CHECK(again["top1_agreement"] == 1.0);
  CHECK(again["mean_kl"].get<double>() < 1e-9);
  CHECK(again["kv_bytes_read"] == dense["kv_bytes_read"]);
}

TEST_CASE("run and compare say what a storage of two tiers moved, and of one nothing") {
  const TinyModel m;
  std::string text;  // long enough that the thread that writes blocks away comes to it
  for (int i = 0; i < 600; ++i) text.append("line ").append(std::to_string(i * 7919 % 1000));
  const std::string prompt = m.folder.write("prompt", text);
  const std::vector<std::string> small = {"--set", "cache.block_size=16",
                                          "--set", "storage.plugin=tiered",
                                          "--set", "storage.cached_blocks=1"};
  std::vector<std::string> command = {"run", "-m", m.path,         "-f", prompt,
                                      "-n",  "64", "--ignore-eos", "-s", "dense"};
  command.insert(command.end(), small.begin(), small.end());
  CHECK(run_kvasir(command).err.find("tiers: memory ") != std::string::npos);
  command.push_back("--json");
  const Json r = json_of(command);
  CAPTURE(r.dump());
  REQUIRE(r["tiers"].size() == 2);
  CHECK(r["tiers"][0]["tier"] == "memory");
  CHECK(r["tiers"][1]["tier"] == "file");
  CHECK(r["tiers"][1]["bytes_read"].get<uint64_t>() > 0);
  CHECK(r["tiers"][1]["tokens"].get<uint64_t>() > 0);
  CHECK(r["blocks_missed"].get<uint64_t>() > 0);
  CHECK(r["prefill"]["tiers"][1]["bytes_written"].get<uint64_t>() > 0);
  CHECK(r.contains("transfer_wait_ms"));

  const std::string tiered = m.folder.write(
      "tiered.toml", "[selector]\nplugin = \"dense\"\n[storage]\nplugin = \"tiered\"\n");
  const Json both = json_of(
      {"compare", "-m", m.path, "-f", prompt, "-s", tiered, "-s", "dense", "-n", "3", "--json"});
  CHECK(both["strategies"][1]["tiers"].size() == 2);
  CHECK(!both["strategies"][2].contains("tiers"));
  CHECK(!both["strategies"][2].contains("blocks_missed"));
}

TEST_CASE("compare reads a prompt once for the strategies that read it alike, and says for which") {
  const TinyModel m;
  std::string text;
  for (int i = 0; i < 200; ++i)
    text.append("line ").append(std::to_string(i * 7919 % 1000)).append("\n");
  const std::string prompt = m.folder.write("prompt", text);
  const std::string sparse =
      m.folder.write("sparse.toml",
                     "[cache]\nblock_size = 16\nsink_tokens = 16\nwindow_tokens = 64\n"
                     "[selector]\nplugin = \"streaming\"\nprefill_select_tokens = 64\n");
  const Json r = json_of({"compare", "-m", m.path, "-f", prompt, "-s", "snapkv", "-s", sparse, "-s",
                          "streaming", "--set", "cache.block_size=16", "-n", "4", "--json"});
  REQUIRE(r["strategies"].size() == 4);
  const Json &dense = r["strategies"][0], &snapkv = r["strategies"][1],
             &by_itself = r["strategies"][2], &streaming = r["strategies"][3];
  for (const Json* shared : {&snapkv, &streaming}) {
    CHECK((*shared)["prefill_shared_with"] == "dense");
    CHECK((*shared)["prefill"]["model_ms"] == 0.0);
    CHECK((*shared)["prefill_ms"] > dense["prefill_ms"]);
  }
  for (const Json* own : {&dense, &by_itself}) {
    CHECK((*own)["prefill_shared_with"].is_null());
    CHECK((*own)["prefill"]["model_ms"] > 0.0);
  }
  for (const Json& strategy : r["strategies"]) CHECK(strategy["steps"] == 4);
  const Finished table = run_kvasir({"compare", "-m", m.path, "-f", prompt, "-s", "streaming",
                                     "--set", "cache.block_size=16", "-n", "2"});
  CHECK(table.out.find("Prompts read together: streaming with dense.") != std::string::npos);
}

TEST_CASE("compare feeds the text's own last tokens where it is asked to") {
  const TinyModel m;
  std::string text;
  for (int i = 0; i < 100; ++i) text.append(" ").append(std::to_string(i * 7919 % 1000));
  const std::string prompt = m.folder.write("prompt", text);
  const auto compare = [&](const std::string& feed, const std::string& steps) {
    return json_of({"compare",
                    "-m",
                    m.path,
                    "-f",
                    prompt,
                    "--compute",
                    "f32",
                    "-s",
                    "random",
                    "--set",
                    "selector.budget_tokens=16",
                    "--set",
                    "cache.block_size=16",
                    "--set",
                    "cache.window_tokens=16",
                    "--set",
                    "cache.dense_layers=[]",
                    "-n",
                    steps,
                    "--feed",
                    feed,
                    "--json"});
  };
  const Json greedy = compare("greedy", "12"), fed = compare("text", "12");
  const uint64_t n_tokens = greedy["prompt_tokens"].get<uint64_t>();
  CHECK(greedy["fed"] == "greedy");
  CHECK(fed["fed"] == "text");
  CHECK(fed["prompt_tokens"] == n_tokens - 12);
  CHECK(fed["decode_steps"] == 12);
  CHECK(fed["strategies"][0]["mean_kl"] == 0.0);
  CHECK(fed["strategies"][1]["mean_kl"] > 0.0);
  CHECK(fed["strategies"][0]["mean_kl_error"] == 0.0);
  CHECK(fed["strategies"][1]["mean_kl_error"] > 0.0);
  CHECK(fed["strategies"][1]["mean_kl"] != greedy["strategies"][1]["mean_kl"]);
  CHECK(greedy["strategies"][0]["perplexity"].is_null());
  CHECK(fed["strategies"][1]["perplexity"] != fed["strategies"][0]["perplexity"]);
  // The second half of the text, as ppl scores it.
  const Json half = compare("text", std::to_string(n_tokens - n_tokens / 2));
  const Json ppl = json_of({"ppl", "-m", m.path, "-f", prompt, "--compute", "f32", "-c",
                            std::to_string(n_tokens), "-s", "dense", "--json"});
  CHECK(half["strategies"][0]["perplexity"].get<double>() ==
        doctest::Approx(ppl["perplexity"].get<double>()).epsilon(1e-4));
  const Finished none = run_kvasir({"compare", "-m", m.path, "-f", prompt, "-s", "random", "-n",
                                    std::to_string(n_tokens), "--feed", "text"});
  CHECK(none.code != 0);
  CHECK(has(none.err, "a prompt must be left: lower -n or give more text"));
  CHECK(has(run_kvasir({"compare", "-m", m.path, "-p", "a", "-s", "random", "--feed", "txt"}).err,
            "--feed"));
}

TEST_CASE("a prompt kept in a file is not read again, and answers as one that was") {
  const TinyModel m;
  const std::string file = m.folder.path("prompt.kv");
  std::string text;
  for (int i = 0; i < 40; ++i) text += "The well is deep and the water is cold. ";
  const auto run = [&](const std::string& prompt, std::vector<std::string> more) {
    std::vector<std::string> command = {
        "run",       "-m", m.path,   "-p",    prompt,
        "-n",        "8",  "--temp", "0",     "--ignore-eos",
        "--json",    "-s", "quest",  "--set", "selector.token_budget=64",
        "--compute", "f32"};
    command.insert(command.end(), more.begin(), more.end());
    return run_kvasir(command);
  };
  const auto json = [](const Finished& done) {
    REQUIRE_MESSAGE(done.code == 0, done.err);
    return Json::parse(done.out);
  };
  const Json plain = json(run(text, {}));
  const Json first = json(run(text, {"--prompt-cache", file}));
  const std::string bytes = read_bytes(file);
  const Json again = json(run(text, {"--prompt-cache", file}));
  CHECK(first["cached_prompt_tokens"] == 0);
  CHECK(again["cached_prompt_tokens"] == plain["prompt_tokens"]);
  for (const Json& cached : {first, again}) CHECK(cached["tokens"] == plain["tokens"]);

  const std::string longer = text + "Who drinks?";
  const Json whole = json(run(longer, {}));
  const Json rest = json(run(longer, {"--prompt-cache", file, "--prompt-cache-ro"}));
  CHECK(rest["tokens"] == whole["tokens"]);
  CHECK(rest["cached_prompt_tokens"].get<uint32_t>() > 100);
  CHECK(read_bytes(file) == bytes);
  const Json shorter =
      json(run(text.substr(0, text.size() - 1), {"--prompt-cache", file, "--prompt-cache-ro"}));
  CHECK(shorter["cached_prompt_tokens"].get<uint32_t>() > 100);

  for (const auto& [name, content, word] :
       {std::tuple{"other.kv", std::string("no such thing"), "no prompt of kvasir"},
        {"cut.kv", bytes.substr(0, 100), "cut off"},
        {"half.kv", bytes.substr(0, bytes.size() / 2), "half.kv"},
        {"bent.kv", bytes.substr(0, 40) + "x" + bytes.substr(41), "damaged"}}) {
    const Finished refused = run(text, {"--prompt-cache", m.folder.write(name, content)});
    CHECK(refused.code == 2);
    CHECK(refused.err.find(word) != std::string::npos);
  }
  for (const auto& [context, word] :
       {std::pair{"2000", "holds another prompt"}, {"50", "there is room for 50"}}) {
    const Finished another =
        run("Something else altogether.", {"--prompt-cache", file, "-c", context});
    CHECK(another.code == 2);
    CHECK(another.err.find(word) != std::string::npos);
  }
  std::filesystem::create_directory(m.folder.path("kept"));
  const Finished nowhere = run(text, {"--prompt-cache", m.folder.path("none/prompt.kv")});
  CHECK(nowhere.code == 2);
  CHECK(nowhere.err.find("cannot be written: No such file") != std::string::npos);
  CHECK(std::filesystem::is_empty(m.folder.path("kept")));

  // All of the prompt decided what SnapKV kept: a longer prompt can continue, a shorter one cannot.
  const std::string votes = m.folder.path("kept/votes.kv");
  const auto snapkv = [&](const std::string& prompt) {
    return run_kvasir({"run", "-m", m.path, "-p", prompt, "-n", "2", "--temp", "0", "--json", "-s",
                       "snapkv", "-c", "2000", "--set", "selector.budget_tokens=40",
                       "--prompt-cache", votes});
  };
  REQUIRE(snapkv(text).code == 0);
  CHECK(Json::parse(snapkv(longer).out)["cached_prompt_tokens"].get<uint32_t>() > 100);
  const Finished back = snapkv(text);
  CHECK(back.code == 2);
  CHECK(back.err.find("kvasir.snapkv keeps what the others decided") != std::string::npos);
}

TEST_CASE("config explain shows a native key, what it became, and the total that follows") {
  const Json r = json_of({"config", "explain", "ktransformers", "-c", "131072", "--json"});
  std::string note;
  std::map<std::string, Json> values;
  for (const Json& line : r["cache"]) values[line["key"]] = line["value"];
  for (const Json& plugin : r["plugins"])
    for (const Json& option : plugin["options"]) {
      values[option["key"]] = option["value"];
      if (option["key"] == "budget_blocks") note = option["note"];
    }
  CHECK(values["budget_blocks"] == Json(96));  // numbers as numbers, and so on
  CHECK(values["type_k"] == Json("f16"));
  CHECK(values["cache.bypass"] == Json(true));
  CHECK(values["cache.positions"] == Json("true"));
  CHECK(values["cache.dense_layers"] == Json::array());
  const Json h2o = json_of({"config", "explain", "h2o", "--json"});
  for (const Json& option : h2o["plugins"][0]["options"]) {
    if (option["key"] == "heavy_ratio") CHECK(option["value"] == Json(0.1));
    if (option["key"] == "hh_size") CHECK(option["value"].is_null());
  }
  CHECK(note.find("second_block_count") != std::string::npos);
  CHECK(note.find("12288 tokens") != std::string::npos);
  CHECK(r["attended"]["attended_tokens"] == 16512);
}

TEST_CASE("config check refuses a budget below one block, with a model or without") {
  std::vector<std::string> arguments{"config", "check", "quest", "--set",
                                     "selector.token_budget=8"};
  for (int i = 0; i < 2; ++i) {
    const Finished done = run_kvasir(arguments);
    CHECK(done.code == 2);
    CHECK(done.err.find("budget_tokens = 8 is less than one block (block_size = 16)") !=
          std::string::npos);
    arguments.insert(arguments.end(), {"--preset", "llama-3.1-8b"});
  }
  CHECK(json_of({"config", "check", "quest", "--json"})["strategies"][0]["note"].is_null());
}

TEST_CASE("config explain counts what a strategy that evicts leaves") {
  const Json r = json_of({"config", "explain", "snapkv", "-c", "131072", "--json"});
  CHECK(r["attended"]["selected_tokens"] == 2016);  // max_capacity_prompt - window
  CHECK(r["attended"]["attended_tokens"] == 2048);
}

TEST_CASE("config explain says what the budget of every preset comes to, in tokens") {
  const Json none(nullptr);  // what is chosen depends on the queries, or is everything
  const std::map<std::string, Json> wanted = {
      {"block_topk", Json::array({12288})},
      {"dense", Json::array({none})},
      {"duoattention", Json::array({65344})},  // half of what is not sink or window
      {"h2o", Json::array({26213})},
      {"infinigen", Json::array({4096})},
      {"infllm", Json::array({2048})},
      {"ktransformers", Json::array({12288})},
      {"ktransformers_preselect", Json::array({4096, 4096})},
      {"magicpig", Json::array({none})},
      {"oracle", Json::array({12288})},
      {"pyramidkv", Json::array({3978})},  // of its first layer
      {"quest", Json::array({1024})},
      {"quest_tight", Json::array({1024})},
      {"random", Json::array({12288})},
      {"snapkv", Json::array({2016})},
      {"streaming", Json::array({0})},
      {"tova", Json::array({511})},
      {"twilight", Json::array({8192, none})}};
  std::map<std::string, std::string> said;
  for (const auto& file :
       std::filesystem::directory_iterator(KVASIR_SOURCE_DIR "/configs/strategies")) {
    const std::string name = file.path().stem();
    CAPTURE(name);
    REQUIRE(wanted.count(name) == 1);
    const Json r = json_of({"config", "explain", name, "-c", "131072", "--json"});
    Json budgets = Json::array();
    for (const Json& budget : r["budgets"]) {
      budgets.push_back(budget["budget_tokens"]);
      said[name] += budget["said"].dump();
    }
    CHECK(budgets == wanted.at(name));
    uint64_t least = 131072;
    for (const Json& tokens : budgets)
      if (!tokens.is_null()) least = std::min(least, tokens.get<uint64_t>());
    if (least < 131072) CHECK(r["attended"]["selected_tokens"] == least);
    CHECK(r["attended"]["attends_all"] == (least == 131072));
  }
  CHECK(said["h2o"].find("13107 heavy hitters") != std::string::npos);
  CHECK(said["snapkv"].find("max_capacity_prompt = 2048") != std::string::npos);
  CHECK(said["tova"].find("cache_size = 512") != std::string::npos);
  CHECK(said["pyramidkv"].find("2040 on average") != std::string::npos);
  const Finished text =
      run_kvasir({"config", "explain", "ktransformers_preselect", "-c", "131072"});
  CHECK(text.out.find("kvasir.preselect: 4096") != std::string::npos);
  CHECK(text.out.find("selector.1.budget_blocks") != std::string::npos);
}

TEST_CASE("config explain and plan count a share of the context or of the heads") {
  const auto selected = [](std::vector<std::string> arguments, const Json& budget) {
    arguments.insert(arguments.begin(), {"config", "explain"});
    arguments.insert(arguments.end(), {"-c", "32768", "--json"});
    const Json r = json_of(arguments);
    CHECK(r["budgets"][0]["budget_tokens"] == budget);
    CHECK(r["attended"]["attends_all"] == false);
    arguments.erase(arguments.begin(), arguments.begin() + 2);
    arguments.insert(arguments.begin(), {"plan", "--preset", "llama-3.1-8b", "-s"});
    CHECK(json_of(arguments)["plans"][0]["attended_tokens"] == r["attended"]["attended_tokens"]);
    return r["attended"]["selected_tokens"].get<uint64_t>();
  };
  CHECK(selected({"infinigen", "--set", "selector.budget=0.2"}, 6553) == 6553);
  const uint64_t beyond = 32768 - 128 - 256;  // of duoattention: sink and window
  CHECK(selected({"duoattention", "--set", "selector.sparsity=0.75"}, beyond / 4) == beyond / 4);
  CHECK(selected({"duoattention", "--set", "selector.budget_tokens=1000"}, (beyond + 1000) / 2) ==
        (beyond + 1000) / 2);
  // 3 of 32 layers are dense, and are not asked.
  CHECK(selected({"duoattention", "--set", "cache.dense_layers=[0,1,2]"}, beyond / 2) ==
        beyond / 2);
}

TEST_CASE("config explain says which of several words for a budget won") {
  const auto notes = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"config", "explain"});
    arguments.insert(arguments.end(), {"-c", "32768", "--json"});
    const Json r = json_of(arguments);
    std::map<std::string, std::string> out;
    for (const Json& option : r["plugins"][0]["options"]) out[option["key"]] = option["note"];
    out["said"] = r["budgets"][0]["said"].dump();
    return out;
  };
  auto topk = notes({"block_topk", "--set", "selector.second_select_num=7"});
  CHECK(topk["budget_blocks"].find("7 blocks x 128 = 896 tokens") != std::string::npos);
  CHECK(topk["budget_tokens"] ==
        "second_select_num (budget_blocks) (--set selector.second_select_num=7) decides");
  auto both = notes({"ktransformers_preselect", "--set", "selector.0.max_capacity_prompt=9000"});
  CHECK(both["preselect_block_count"] ==
        "max_capacity_prompt (--set selector.0.max_capacity_prompt=9000) decides");
  CHECK(both["said"].find("max_capacity_prompt = 9000 with sink_tokens = 128 and window_tokens = "
                          "4096: budget_tokens = 4776, in whole blocks of 128 4736") !=
        std::string::npos);
  const std::string h2o = notes({"h2o"})["budget_tokens"];
  CHECK(h2o.starts_with("heavy_ratio ("));
  CHECK(h2o.find("h2o.toml:") != std::string::npos);
  CHECK(h2o.ends_with(") decides"));
  CHECK(notes({"quest"})["budget_tokens"].find("decides") == std::string::npos);
}

TEST_CASE("config check notes what a file for some model leaves open") {
  const TinyModel m;
  const std::string set = "selector.head_file=" + m.folder.write("heads.tsv", "1 0\n0 1\n");
  const auto note = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"config", "check", "--json"});
    return json_of(arguments)["strategies"][0]["note"];
  };
  CHECK(note({"duoattention", "--set", set}).get<std::string>().find("head_file") !=
        std::string::npos);
  CHECK(note({"duoattention", "--set", set, "-m", m.path}).is_null());
  CHECK(
      run_kvasir({"config", "check", "duoattention", "--set", set, "--preset", "qwen3-8b"}).code ==
      2);
  CHECK(note({"block_topk", "--set", "cache.dense_layers=[0, 70]"}).is_null());
}

TEST_CASE("every preset suits a model of few layers") {
  const TinyModel m;
  for (const auto& file :
       std::filesystem::directory_iterator(KVASIR_SOURCE_DIR "/configs/strategies")) {
    const std::string name = file.path().stem();
    CAPTURE(name);
    CHECK(run_kvasir({"config", "check", name, "-m", m.path}).code == 0);
  }
  CHECK(run_kvasir({"run", "-m", m.path, "-s", "magicpig", "-p", "a", "-n", "2"}).code == 0);
}

TEST_CASE("magicpig's preset takes every 16th layer that there is") {
  const Json r = json_of({"config", "explain", "magicpig", "--preset", "qwen3-8b", "--json"});
  CHECK(r["attended"]["dense_layers"] == 3);  // 0, 16, 32 of 36
  Json every;
  for (const Json& line : r["cache"])
    if (line["key"] == "cache.dense_layer_every") every = line["value"];
  CHECK(every == 16);
}

TEST_CASE("later sources of a setting win: file, environment, command line") {
  const auto window = [](const std::vector<std::string>& more,
                         const std::vector<std::string>& environment) {
    std::vector<std::string> arguments{"config", "explain", "streaming", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Json r = json_of(arguments, environment);
    for (const Json& line : r["cache"])
      if (line["key"] == "cache.window_tokens") return line["value"].get<int>();
    return 0;
  };
  CHECK(window({}, {}) == 2000);
  CHECK(window({}, {"KVASIR_SET_CACHE_WINDOW_TOKENS=70"}) == 70);
  CHECK(window({"--set", "cache.window_tokens=64"}, {"KVASIR_SET_CACHE_WINDOW_TOKENS=70"}) == 64);
}

TEST_CASE("flags can come from the environment, and the command line wins") {
  const TinyModel m;
  const std::vector<std::string> environment{
      "KVASIR_ARG_MODEL=" + m.path, "KVASIR_ARG_STRATEGY=streaming", "KVASIR_ARG_N_PREDICT=3"};
  const Json r = json_of({"run", "-p", "hello", "--ignore-eos", "--json"}, environment);
  CHECK(r["strategy"] == "streaming");
  CHECK(r["generated_tokens"] == 3);
  const Json s = json_of({"run", "-p", "hello", "--ignore-eos", "--json", "-n", "2"}, environment);
  CHECK(s["generated_tokens"] == 2);
}

TEST_CASE("flags of llama.cpp that mean nothing here yet say so in one line and are not ignored") {
  const TinyModel m;
  for (const auto& flag : std::vector<std::vector<std::string>>{
           {"-mg", "0"}, {"-fa", "on"}, {"-ctk", "q5_0"}, {"--mlock"}}) {
    std::vector<std::string> arguments{"run", "-m", m.path, "-p", "a", "-n", "1", "--json"};
    arguments.insert(arguments.end(), flag.begin(), flag.end());
    const Finished done = run_kvasir(arguments);
    CAPTURE(flag[0]);
    CHECK(done.code == 0);
    CHECK(done.err.find("not yet") != std::string::npos);
    CHECK(std::count(done.err.begin(), done.err.end(), '\n') == 1);
  }
}

TEST_CASE("plugin list, plugin info and doctor know what is there") {
  const Json list = json_of({"plugin", "list", "--json"});
  const auto has = [&](const std::string& id) {
    for (const Json& file : list["files"])
      if (file["ids"][0] == id) return file["verdict"] == "usable";
    return false;
  };
  for (const char* id :
       {"kvasir.dense", "kvasir.streaming", "kvasir.block_topk", "kvasir.mean", "kvasir.max",
        "kvasir.minmax", "kvasir.fixed", "kvasir.dram", "kvasir.cpu", "kvasir.reference"}) {
    CAPTURE(id);
    CHECK(has(id));
  }
  const Json info = json_of({"plugin", "info", "block_topk", "--json"})["plugins"][0];
  CHECK(info["id"] == "kvasir.block_topk");
  CHECK(info["needs"] == Json::array({"scores"}));
  CHECK(info["options"][0]["key"] == "budget_tokens");
  CHECK(info["options"][0]["aliases"][0] == "token_budget");
  const Json doctor = json_of({"doctor", "--quick", "--json"});
  CHECK(doctor["cpu"]["n_workers"].get<int>() >= 1);
  CHECK(doctor["memory"]["available_bytes"].get<double>() > 0);
  CHECK(doctor["plugins"]["usable"].get<int>() >= 10);
}

}  // namespace
