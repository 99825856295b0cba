// kvasir cache add: texts that are read once, each alone, so that later prompts reuse them.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cache/add.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <memory>

#include "core/blend/chunk_store.h"
#include "core/error.h"
#include "tools/kvasir/cache/store_access.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/blend_arm.h"

namespace kvasir::tool {
namespace {

struct AddOptions {
  Options options;
  std::string place;  // storage.store of `tiered`; empty: the strategy's storage says where
  std::vector<std::string> files;
};

struct Added {
  std::string file;
  uint32_t tokens = 0;
  uint64_t found = 0;  // of them and the BOS before them, in the store already
  uint32_t whole = 0;  // likewise, in blocks that are full: what is in the store now
  double ms = 0;
};

class Adder {
 public:
  explicit Adder(const AddOptions& o)
      : session_(at_store(o.options, o.place)),
        bos_(chunk_bos(session_.tokenizer(), session_.strategy().blend)) {
    uint32_t longest = 0;
    for (const std::string& file : o.files) {
      chunks_.push_back(chunk_tokens(session_.tokenizer(), read_file(file, "cache add"), file));
      longest = std::max(longest, static_cast<uint32_t>(chunks_.back().size()) + 1);
    }
    // Tokens behind a chunk fill its last block (ChunkStore).
    longest += session_.strategy().cache.block_size.value;
    Engine& engine = session_.load(session_.context_or(longest));
    if (!engine.pipeline().storage->has_store())
      throw input_error("storage " + engine.pipeline().storage->id() +
                        " keeps nothing beyond a run: give --store FOLDER or redis://HOST:PORT");
    if (const std::string why = engine.cannot_recompute(0); !why.empty())
      throw input_error(why + ": under this strategy chunks cannot be reused");
    for (size_t i = 0; i < chunks_.size(); ++i)
      added_.push_back(read(engine, o.files[i], chunks_[i]));
  }

  const std::vector<Added>& added() const { return added_; }

 private:
  Added read(Engine& engine, const std::string& file, const std::vector<TokenId>& tokens) const {
    stop_if_interrupted();
    const auto begin = std::chrono::steady_clock::now();
    ChunkStore one(engine, 0, bos_);  // its sequence ends with it
    const ChunkId chunk = one.add(tokens);
    return {file, static_cast<uint32_t>(tokens.size()), one.restored_tokens(), one.n_kept(chunk),
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
                .count()};
  }

  Session session_;
  std::optional<TokenId> bos_;
  std::vector<std::vector<TokenId>> chunks_;
  std::vector<Added> added_;
};

void add(const AddOptions& o) {
  const Adder adder(o);
  if (o.options.json) {
    Json out = Json::array();
    for (const Added& one : adder.added())
      out.push_back({{"file", one.file},
                     {"tokens", one.tokens},
                     {"found_tokens", one.found},
                     {"stored_tokens", one.whole},
                     {"ms", one.ms}});
    return print_json({{"chunks", out}});
  }
  Table table({"file", "tokens", "found", "stored", "ms"}, {1, 2, 3, 4});
  for (const Added& one : adder.added())
    table.add({one.file, std::to_string(one.tokens), std::to_string(one.found),
               std::to_string(one.whole), format("%.1f", one.ms)});
  print_text(table.text());
}

}  // namespace

void add_cache_add(CLI::App& cache) {
  const auto o = std::make_shared<AddOptions>();
  auto* command = cache.add_subcommand(
      "add", "Read each text alone, as a chunk, and keep it for run --chunks and chat --chunks");
  command->add_option("FILE", o->files, "Texts, each a chunk")->required();
  command->add_option("--store", o->place,
                      "A folder, or redis://HOST:PORT/DATABASE (storage.store of a strategy); or "
                      "give the strategy with -s");
  add_model_flags(*command, o->options);
  add_strategy_flags(*command, o->options);
  command->callback([=] { add(*o); });
}

}  // namespace kvasir::tool
