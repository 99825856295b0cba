// -ngl as users meet it: what is said without a GPU, what `plan` counts, and a run whose layers are
// on the emulated device.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tests/tools/traced.h"

namespace {
using namespace kvasir::test;
using nlohmann::json;

const std::string kEmulation = std::string("KVASIR_DEVICE_LIBRARY=") + KVASIR_TEST_DEVICE_LIBRARY;

std::vector<std::string> run_of(const TinyModel& model, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"run",       "-m", model.path, "-p", "One two three, four.",
                                        "-n",        "6",  "--temp",   "0",  "--json",
                                        "--compute", "f32"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

}  // namespace

TEST_SUITE_BEGIN("tools/gpu_layers");

TEST_CASE("without the library each command that loads a model says in one sentence what to do") {
  const TinyModel model;
  const std::vector<std::string> nowhere = {"KVASIR_DEVICE_LIBRARY=/nowhere/cuda_layers.so"};
  for (const std::vector<std::string>& command : {std::vector<std::string>{"run", "-p", "One"},
                                                  {"chat"},
                                                  {"ppl", "-f", model.path},
                                                  {"bench", "model"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"-m", model.path, "-ngl", "1"});
    const Finished done = run_kvasir(arguments, nowhere);
    CAPTURE(command[0]);
    CAPTURE(done.err);
    CHECK(done.code == 2);
    CHECK(has(done.err,
              "layers on a GPU: /nowhere/cuda_layers.so does not exist: build with the "
              "preset \"cuda\", or take -ngl 0"));
  }
}

TEST_CASE("the library of this build is looked for beside the plugins") {
  const TinyModel model;
  const Finished done = run_kvasir(run_of(model, {"-ngl", "1"}));
  CAPTURE(done.err);
  if (!std::filesystem::exists(KVASIR_BINARY_DIR "/device/cuda_layers.so")) {
    CHECK(done.code == 2);
    CHECK(has(done.err, "/kvasir/device/cuda_layers.so does not exist"));
  } else if (done.code != 0) {
    CHECK(has(done.err, "layers on a GPU: "));
    CHECK(has(done.err, "NVIDIA driver"));
    CHECK(has(done.err, "-ngl 0"));
  }
}

TEST_CASE("the same text with no layer, some and all of them on the device") {
  const TinyModel model;
  const json host = json_of(run_of(model, {}));
  CHECK_FALSE(host.contains("device"));
  uint64_t before = host["planned_bytes"];
  for (const char* n : {"1", "99", "all"}) {
    const json run = json_of(run_of(model, {"-ngl", n}), {kEmulation});
    CHECK(run["tokens"] == host["tokens"]);
    CHECK(run["device"]["head"] == (std::string(n) != "1"));
    CHECK(run["device"]["weight_bytes"] > 0);
    CHECK(run["device"]["copied_to_host_bytes"] > run["device"]["copied_to_device_bytes"]);
    if (std::string(n) != "all") CHECK(run["planned_bytes"] < before);
    before = run["planned_bytes"];
  }
  const json by_environment = json_of(run_of(model, {}), {kEmulation, "KVASIR_ARG_GPU_LAYERS=1"});
  CHECK(by_environment["device"]["layers"] == 1);
  const Finished text =
      run_kvasir({"run", "-m", model.path, "-p", "One", "-n", "2", "-ngl", "1"}, {kEmulation});
  CHECK(has(text.err, "kvasir: on the GPU: the last 1 layers, weights "));
}

TEST_CASE("plan counts the device's memory by itself, without a device") {
  const TinyModel model;
  const auto plan_of = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"plan", "-m", model.path, "-c", "1024", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return json_of(arguments)["plans"][0];
  };
  const json host = plan_of({}), some = plan_of({"-ngl", "1"}), all = plan_of({"-ngl", "all"});
  CHECK(host["device_weight_bytes"] == 0);
  CHECK(host["device_scratch_bytes"] == 0);
  CHECK(some["device_weight_bytes"] > 0);
  CHECK(some["device_scratch_bytes"] > 0);
  CHECK(all["device_weight_bytes"] > some["device_weight_bytes"]);
  CHECK(some["weight_bytes"] < host["weight_bytes"]);
  CHECK(all["weight_bytes"] == 0);
  const uint64_t less = host["weight_bytes"].get<uint64_t>() - some["weight_bytes"].get<uint64_t>();
  CHECK(some["total_bytes"].get<uint64_t>() + less == host["total_bytes"].get<uint64_t>());
  const Finished text = run_kvasir({"plan", "-m", model.path, "-c", "1K", "-ngl", "1"});
  CHECK(has(text.out, "on the GPU GB"));
  CHECK_FALSE(has(run_kvasir({"plan", "-m", model.path, "-c", "1K"}).out, "GPU"));
}

// Here, too, K and V need no device to be planned: the storage over the emulated one.
TEST_CASE("plan counts K and V on a device where the storage holds them there") {
  const TinyModel model;
  const auto plan_of = [&](const std::string& storage, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"plan",
                                          "-m",
                                          model.path,
                                          "-c",
                                          "1024",
                                          "--set",
                                          "storage.plugin=" + storage,
                                          "--set",
                                          "attention.plugin=cuda",
                                          "--json",
                                          "--plugin-dir",
                                          KVASIR_TEST_DEVICE_PLUGINS};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return json_of(arguments)["plans"][0];
  };
  const json main = plan_of("dram", {}), device = plan_of("gpu", {});
  CHECK(main["device_sequence_bytes"] == 0);
  CHECK(device["device_sequence_bytes"] == device["kv_bytes"]);
  const uint64_t kv = device["kv_bytes"];
  CHECK(kv > 0);
  // All that is not K and V stays.
  const auto rest = [](const json& plan) {
    return plan["total_bytes"].get<uint64_t>() - plan["kv_overhead_bytes"].get<uint64_t>();
  };
  CHECK(rest(main) == rest(device) + main["kv_bytes"].get<uint64_t>());
  const json both = plan_of("gpu", {"-ngl", "all"});
  CHECK(both["tiers"][2]["tier"] == "device");
  CHECK(both["tiers"][2]["bytes"].get<uint64_t>() ==
        kv + both["device_weight_bytes"].get<uint64_t>() +
            both["device_scratch_bytes"].get<uint64_t>() +
            both["device_attention_bytes"].get<uint64_t>());
  CHECK(device["device_attention_bytes"] > 0);
  CHECK(main["device_attention_bytes"] > device["device_attention_bytes"]);  // K and V that travel
}

TEST_CASE("config explain says who attends prompts to the context") {
  const auto who = [](const char* value) {
    const json explained =
        json_of({"config", "explain", "-s", KVASIR_SOURCE_DIR "/configs/gpu/hybrid.toml", "--set",
                 "cache.prompt_attention=" + std::string(value), "--json", "--plugin-dir",
                 KVASIR_TEST_DEVICE_PLUGINS});
    for (const json& setting : explained["cache"])
      if (setting["key"] == "cache.prompt_attention") return setting["note"].get<std::string>();
    return std::string();
  };
  CHECK(who("auto") == "kvasir.cuda");
  CHECK(who("context") == "kvasir.cpu");
}

TEST_CASE("a run whose layers, K and V are on the device, for each way of choosing") {
  const TinyModel model;
  for (const char* strategy : {"dense", "quest", "infinigen"}) {
    CAPTURE(std::string(strategy));
    const std::vector<std::string> chosen = {"-s", strategy};
    const json host = json_of(run_of(model, chosen));
    std::vector<std::string> more = chosen;
    more.insert(more.end(), {"-ngl", "all"});
    const json layers = json_of(run_of(model, more), {kEmulation});
    CHECK(layers["tokens"] == host["tokens"]);
    if (std::string(strategy) != "dense") continue;
    more.insert(more.end(), {"--set", "storage.plugin=gpu", "--set", "attention.plugin=cuda",
                             "--plugin-dir", KVASIR_TEST_DEVICE_PLUGINS});
    CHECK(json_of(run_of(model, more), {kEmulation})["tokens"] == host["tokens"]);
  }
}

// What the selector reads of keys, inputs and queries comes to the host; blocks come and go.
TEST_CASE("the strategy of configs/gpu for InfiniGen gives the tokens of the host's") {
  const TinyModel model;
  const std::vector<std::string> small = {
      "--set", "cache.window_tokens=4",    "--set", "cache.sink_tokens=2",
      "--set", "selector.budget_tokens=3", "--set", "cache.dense_layers=[]"};
  std::vector<std::string> host = {"-s", "infinigen", "--set", "cache.block_size=4"};
  std::vector<std::string> device = {
      "-s",           KVASIR_SOURCE_DIR "/configs/gpu/infinigen.toml",
      "-ngl",         "all",
      "--plugin-dir", KVASIR_TEST_DEVICE_PLUGINS,
      "--set",        "cache.block_size=4",
      "--set",        "storage.device_blocks=1"};
  for (auto* more : {&host, &device}) more->insert(more->end(), small.begin(), small.end());
  const json want = json_of(run_of(model, host)),
             got = json_of(run_of(model, device), {kEmulation});
  CHECK(got["tokens"] == want["tokens"]);
  CHECK(got["tokens_attended"].get<uint64_t>() == want["tokens_attended"]);
  CHECK(got["tokens_attended"].get<uint64_t>() < got["tokens_considered"]);
  CHECK(got["fallbacks"].get<uint64_t>() == 0);
  CHECK(got["tiers"].size() == 3);
}

// It reads each layer's input, which stays on the device else, and queries before RoPE.
TEST_CASE("a trace of layers on the device holds what one of the host's holds") {
  const TinyModel model;
  const TempDir folder;
  const std::string text = folder.write("text", words(60));
  const auto traced = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> command{
        "trace", "record", "-m", model.path, "-f",        text,  "-o",     folder.path(name),
        "-c",    "20",     "-n", "2",        "--compute", "f32", "--type", "f32"};
    command.insert(command.end(), more.begin(), more.end());
    const Finished done = run_kvasir(command, {kEmulation});
    CAPTURE(done.err);
    REQUIRE(done.code == 0);
    const File file(folder.path(name));
    std::vector<float> values;  // all but the tokens
    for (const auto& [tensor, about] : file.root.items()) {
      if (!about.contains("dtype") || about["dtype"] != "F32") continue;
      const size_t begin = about["data_offsets"][0], end = about["data_offsets"][1];
      const size_t n = values.size();
      values.resize(n + (end - begin) / 4);
      std::memcpy(values.data() + n, file.data.data() + begin, end - begin);
    }
    REQUIRE(!values.empty());
    return values;
  };
  const std::vector<float> host = traced("host", {}), device = traced("device", {"-ngl", "all"});
  REQUIRE(device.size() == host.size());
  float worst = 0;
  for (size_t i = 0; i < host.size(); ++i) worst = std::max(worst, std::abs(device[i] - host[i]));
  CHECK(worst < 1e-3f);
  CHECK(device != host);  // sums in another order
}

TEST_CASE("layers, K and V that the device has no memory for are refused before anything loads") {
  const TinyModel model;
  for (const char* n : {"1", "0"}) {
    CAPTURE(std::string(n));
    const std::vector<std::string> context = {"-ngl",         n,
                                              "-c",           "400000000",
                                              "--set",        "storage.plugin=gpu",
                                              "--set",        "attention.plugin=cuda",
                                              "--plugin-dir", KVASIR_TEST_DEVICE_PLUGINS};
    const Finished done = run_kvasir(run_of(model, context), {kEmulation});
    CAPTURE(done.err);
    CHECK(done.code == 2);
    CHECK(has(done.err, "the GPU has "));
    CHECK(has(done.err, "K, V and summaries "));
    CHECK(has(done.err, "lower -ngl or -c, or see `kvasir plan`"));
  }
}

TEST_CASE("bench model counts what is read in the device's memory apart") {
  const TinyModel model;
  const auto row_of = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"bench", "model", "-m", model.path, "-p", "0",
                                          "-n",    "4",     "-r", "1",        "-o", "json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return json_of(arguments, {kEmulation})["rows"][0];
  };
  const json host = row_of({}), layers = row_of({"-ngl", "all"});
  const json all = row_of({"-ngl", "all", "--set", "storage.plugin=gpu", "--set",
                           "attention.plugin=cuda", "--plugin-dir", KVASIR_TEST_DEVICE_PLUGINS});
  const auto number = [](const json& row, const char* key) { return row[key].get<double>(); };
  const auto kv = [&](const json& row) { return number(row, "kv_bytes") / 4; };
  CHECK(host["device_weight_bytes_per_token"] == 0);
  CHECK(host["device_bytes_per_token"].is_null());
  CHECK(number(layers, "device_weight_bytes_per_token") > 0);
  CHECK(number(layers, "weight_bytes_per_token") < number(host, "weight_bytes_per_token"));
  CHECK(number(layers, "bytes_per_token") ==
        doctest::Approx(number(layers, "weight_bytes_per_token") + kv(layers)));
  CHECK(layers["device_bytes_per_token"] == layers["device_weight_bytes_per_token"]);
  CHECK(kv(all) > 0);
  CHECK(all["bytes_per_token"] == all["weight_bytes_per_token"]);
  CHECK(number(all, "device_bytes_per_token") ==
        doctest::Approx(number(all, "device_weight_bytes_per_token") + kv(all)));
  const Finished text = run_kvasir(
      {"bench", "model", "-m", model.path, "-p", "0", "-n", "2", "-r", "1", "-ngl", "all"},
      {kEmulation});
  CAPTURE(text.err);
  CHECK(has(text.out, "| GPU MB"));
}

TEST_CASE("a count is a number or all") {
  const TinyModel model;
  for (const char* wrong : {"-1", "some", "1.5"}) {
    const Finished done = run_kvasir(run_of(model, {"-ngl", wrong}));
    CAPTURE(done.err);
    CHECK(done.code == 2);
    CHECK(has(done.err, "--ngl"));
  }
}
