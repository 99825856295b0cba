// A prompt that runs of kvasir read, with a store.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
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
