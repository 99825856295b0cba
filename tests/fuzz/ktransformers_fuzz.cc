// libFuzzer over the import of KTransformers' YAML: any bytes give an Error or a text, which is a
// strategy that can be explained unless a value in it is out of range.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/config/strategy.h"
#include "core/error.h"
#include "tests/fuzz/seeds.h"
#include "tools/kvasir/config/ktransformers_import.h"

std::vector<kvasir::fuzz::Seed> kvasir::fuzz::seeds() {
  return {
      {"newer",
       "local_chat:\n  prompt_file: \"\"\nlong_context:\n  max_seq_len: 32000\n  block_size: 128\n"
       "  local_windows_len: 4096\n  second_block_count: 48\n  threads_num: 12\n"
       "  representative_type: DYNAMIC\n  kv_type: FP16\n  dense_layer_num: 2\n"
       "  representative_num: 1\n  preselect_block: True\n  head_select_mode: SHARED\n"
       "  preselect_block_count: 32\n  layer_step: 1\n  token_step: 4\n"},
      {"older",
       "long_context:\n  anchor_type: BLOCK_MEAN\n  anchor_num: 1\n  kv_type: Q8_0\n"
       "  preselect_block: False\n  head_select_mode: SEPARATE\n  chunk_size: 4096\n"},
      {"section",
       "block_size: 32\nkv_type: \"Q4_0\"\nrepresentative_type: QUEST\n"
       "representative_num: 2\n"},
      {"yaml", "&a long_context: {block_size: 0x10, <<: *a, ? kv_type : !!str fp32}\n--- |\n x\n"},
  };
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string yaml(reinterpret_cast<const char*>(data), size);
  try {
    const std::string toml =
        kvasir::tool::import_ktransformers(yaml, "fuzz.yaml", {"f32", "f16", "q8_0", "q4_0"}).toml;
    (void)kvasir::explain(kvasir::parse_strategy(toml, "imported.toml", {}, {}));
  } catch (const kvasir::Error& e) {
    // The import writes no syntax and no key that the reader does not know.
    const std::string text = e.what();
    if (text.starts_with("imported.toml") && text.find("is out of range") == std::string::npos)
      std::abort();
  }
  return 0;
}
