// A prompt that runs of kvasir read, with a store.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/tools/tiny_model.h"

namespace kvasir::test {

// A prompt and what runs it.
struct StoredPrompt {
  using Arguments = std::vector<std::string>;
  TinyModel model;
  TempDir folder;
  std::string store = folder.path("store"), text = folder.write("prompt", numbers());

  static std::string numbers() {
    std::string out;
    for (int i = 0; i < 400; ++i) out.append(" ").append(std::to_string(i));
    return out;
  }
  Arguments run(const Arguments& more = {}, const std::string& compute = "f32") const {
    Arguments out = {"run",       "-m",
                     model.path,  "-f",
                     text,        "-n",
                     "8",         "-c",
                     "4096",      "--temp",
                     "0",         "--json",
                     "--compute", compute,
                     "--set",     "cache.block_size=32",
                     "--set",     "storage.plugin=tiered",
                     "--set",     "storage.store=" + store};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  uint32_t restored(const Arguments& more = {}) const {
    return json_of(run(more))["restored_prompt_tokens"].get<uint32_t>();
  }
};

// Runs that fill the store, each killed at a random time; after each, no record is damaged and a
// run that is left alone writes what the first one did. empty(): empties the store, before every
// fourth. Returns how many were killed before they had ended.
inline int killed_at_random(const StoredPrompt& p, int n_kills,
                            const std::function<void()>& empty) {
  const auto begin = std::chrono::steady_clock::now();
  const auto want = json_of(p.run())["text"];
  const auto takes = std::chrono::steady_clock::now() - begin;
  std::mt19937 random(5);
  int n_killed = 0;
  for (int i = 0; i < n_kills; ++i) {
    if (i % 4 == 0) empty();
    {
      RunningKvasir kvasir(p.run());
      std::this_thread::sleep_for(takes * (random() % 1000) / 900);
      n_killed += kvasir.out().empty();
    }
    const bool has_store = p.store.find("://") != p.store.npos || std::filesystem::exists(p.store);
    if (!has_store) continue;
    CHECK(json_of({"cache", "verify", p.store, "--json"})["bad"].empty());
    CHECK(json_of(p.run())["text"] == want);
  }
  return n_killed;
}

// Two processes that run at once; both write `want`.
inline void check_two_at_once(const StoredPrompt::Arguments& run, const nlohmann::json& want) {
  RunningKvasir a(run), b(run);
  for (RunningKvasir* running : {&a, &b}) {
    const Finished done = running->finish();
    CAPTURE(done.err);
    REQUIRE(done.code == 0);
    CHECK(nlohmann::json::parse(done.out)["text"] == want);
  }
}

}  // namespace kvasir::test
