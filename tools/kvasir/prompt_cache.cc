// See prompt_cache.h. The file: magic, number of logits, logits, XXH3 of all that, then the bytes
// of Engine::save(), which check themselves.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/prompt_cache.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "tools/kvasir/options.h"

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

// The part behind the logits.
std::span<const std::byte> read_head(const std::string& bytes, const std::string& path,
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
  return std::as_bytes(std::span(bytes)).subspan(fixed);
}

}  // namespace

CachedPrompt restore_prompt(Engine& engine, const std::string& path,
                            std::span<const TokenId> prompt, std::span<float> logits) {
  if (!std::filesystem::exists(path)) return {engine.open(), 0};
  const std::string bytes = read_file(path, "--prompt-cache");
  std::vector<float> last(logits.size());
  const SequenceId seq = engine.load(read_head(bytes, path, last), path);
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
  // At least one token is read again: it is what the answer begins from.
  const uint32_t keep = std::min<uint32_t>(shared, static_cast<uint32_t>(prompt.size()) - 1);
  if (keep < saved.size()) engine.truncate(seq, keep);
  return {seq, keep};
}

void save_prompt(Engine& engine, SequenceId seq, std::span<const float> logits,
                 const std::string& path) {
  const std::vector<std::byte> bytes = engine.save(seq);
  Head head;
  head.n_logits = logits.size();
  const uint64_t sum = checksum(head, logits);
  const std::string partial = path + ".partial";
  std::ofstream file(partial, std::ios::binary | std::ios::trunc);
  const auto write = [&](const void* data, size_t n) {
    file.write(static_cast<const char*>(data), static_cast<std::streamsize>(n));
  };
  write(&head, sizeof(head));
  write(logits.data(), logits.size_bytes());
  write(&sum, sizeof(sum));
  write(bytes.data(), bytes.size());
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(partial, path, error);
  if (file && !error) return;
  std::filesystem::remove(partial, error);
  throw input_error("--prompt-cache " + path + ": cannot be written; is the disk full?");
}

}  // namespace kvasir::tool
