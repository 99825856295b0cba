// See prompt_cache.h. The file: magic, number of logits, logits, XXH3 of all that, then the bytes
// of Engine::save(), which check themselves.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/prompt_cache.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <boost/interprocess/file_mapping.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/platform/output_file.h"

namespace kvasir::tool {
namespace {

constexpr std::array<char, 16> kMagic = {'k', 'v', 'a', 's', 'i', 'r', '.', 'p',
                                         'r', 'o', 'm', 'p', 't', '/', '1', '\n'};

struct Head {
  std::array<char, 16> magic = kMagic;
  uint64_t n_logits = 0;
};

uint64_t checksum(const Head& head, std::span<const float> logits) {
  return XXH3_64bits_withSeed(logits.data(), logits.size_bytes(), XXH3_64bits(&head, sizeof(head)));
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw input_error("--prompt-cache " + path + ": " + why + "; delete it or name another file");
}

// Returns the bytes after the logits.
std::span<const std::byte> read_head(std::span<const std::byte> bytes, const std::string& path,
                                     std::span<float> logits) {
  Head head;
  uint64_t sum = 0;
  const size_t fixed = sizeof(head) + logits.size_bytes() + sizeof(sum);
  if (bytes.size() < sizeof(head) || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    refuse(path, "no prompt of kvasir");
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.n_logits != logits.size())
    refuse(path, "made with a vocabulary of " + std::to_string(head.n_logits) +
                     " tokens, the model has " + std::to_string(logits.size()));
  if (bytes.size() < fixed) refuse(path, "cut off");
  std::memcpy(logits.data(), bytes.data() + sizeof(head), logits.size_bytes());
  std::memcpy(&sum, bytes.data() + fixed - sizeof(sum), sizeof(sum));
  if (sum != checksum(head, logits)) refuse(path, "damaged");
  return bytes.subspan(fixed);
}

// Mapped, not read: the file is as large as the sequence, and the system takes its pages back when
// memory is short.
SequenceId load(Engine& engine, const std::string& path, std::span<float> logits) {
  namespace ipc = boost::interprocess;
  if (std::filesystem::file_size(path) == 0) refuse(path, "no prompt of kvasir");
  ipc::mapped_region region;
  try {
    region = ipc::mapped_region(ipc::file_mapping(path.c_str(), ipc::read_only), ipc::read_only);
  } catch (const ipc::interprocess_exception& e) {
    throw input_error("--prompt-cache " + path + ": cannot be read: " + e.what());
  }
  const std::span bytes(static_cast<const std::byte*>(region.get_address()), region.get_size());
  return engine.load(read_head(bytes, path, logits), path);
}

// Returns the id of a plugin whose state depends on tokens that truncation removes: votes,
// evictions, slices of a prompt that was read sparsely. Returns "" when there is none.
std::string plugin_with_history(const Pipeline& pipeline) {
  const auto keeps_history = [](const Instance& plugin) {
    return (plugin.desc().caps & KVASIR_CAP_HISTORY_STATE) != 0;
  };
  for (const auto& selector : pipeline.selectors) {
    const SelectorLimits& limits = selector->limits();
    if (keeps_history(*selector) || limits.plan_at != 0 || limits.prefill_slice_tokens != 0)
      return selector->id();
  }
  const bool is_history = pipeline.representative && keeps_history(*pipeline.representative);
  return is_history ? pipeline.representative->id() : "";
}

// It holds somebody's document: nobody else may read it.
OutputFile open_to_write(const std::string& path) {
  return OutputFile(path, {.flag = "--prompt-cache ", .mode = 0600});
}

}  // namespace

CachedPrompt restore_prompt(Engine& engine, const std::string& path,
                            std::span<const TokenId> prompt, std::span<float> logits) {
  if (!std::filesystem::exists(path)) return {engine.open(), 0};
  if (!std::filesystem::is_regular_file(path))
    throw input_error("--prompt-cache " + path + ": is no regular file; name another one");
  std::vector<float> last(logits.size());
  const SequenceId seq = load(engine, path, last);
  const auto saved = engine.tokens(seq);
  const auto shared = static_cast<uint32_t>(
      std::mismatch(saved.begin(), saved.end(), prompt.begin(), prompt.end()).first -
      saved.begin());
  if (2 * size_t{shared} < saved.size())
    refuse(path, "holds another prompt of " + std::to_string(saved.size()) + " tokens, of which " +
                     std::to_string(shared) + " are this one's");
  if (shared == prompt.size() && shared == saved.size()) {
    std::copy(last.begin(), last.end(), logits.begin());
    return {seq, shared};
  }
  // At least one token is read again: the answer begins with its logits.
  const uint32_t keep = std::min<uint32_t>(shared, static_cast<uint32_t>(prompt.size()) - 1);
  if (keep == saved.size()) return {seq, keep};
  if (const std::string plugin = plugin_with_history(engine.pipeline()); !plugin.empty())
    refuse(path, "shares " + std::to_string(shared) + " of its " + std::to_string(saved.size()) +
                     " tokens with this prompt, and " + plugin +
                     " keeps what the others decided: it cannot be cut back");
  engine.truncate(seq, keep);
  return {seq, keep};
}

void check_savable(Engine& engine, SequenceId seq, const std::string& path) {
  if (engine.kv_len(seq) == 0) engine.save(seq);  // a sequence that was loaded can be saved
  open_to_write(path);                            // and removed again
}

void save_prompt(Engine& engine, SequenceId seq, std::span<const float> logits,
                 const std::string& path) {
  Head head;
  head.n_logits = logits.size();
  const uint64_t sum = checksum(head, logits);
  OutputFile file = open_to_write(path);
  file.write(&head, sizeof(head));
  file.write(logits.data(), logits.size_bytes());
  file.write(&sum, sizeof(sum));
  engine.save(seq,
              [&](std::span<const std::byte> bytes) { file.write(bytes.data(), bytes.size()); });
  file.finish();
}

}  // namespace kvasir::tool
