// See blend_arm.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/blend_arm.h"

#include <algorithm>
#include <charconv>

#include "core/config/strategy.h"
#include "core/error.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/planning.h"

namespace kvasir::tool {
namespace {

std::optional<double> share_of(const std::string& text) {
  double share = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, share);
  if (parsed.ec != std::errc() || parsed.ptr != end || !(share >= 0 && share <= 1)) return {};
  return share;
}

std::optional<BlendMode> mode_of(const std::string& text) {
  const auto& names = blend_mode_names();
  const auto at = std::find(names.begin(), names.end(), text);
  if (at == names.end()) return {};
  return static_cast<BlendMode>(at - names.begin());
}

std::vector<double> milliseconds(const std::vector<LayerLoad>& loads, double LayerLoad::*part) {
  std::vector<double> out;
  for (const LayerLoad& layer : loads) out.push_back(1e3 * (layer.*part));
  return out;
}

}  // namespace

BlendArm parse_blend_arm(const std::string& text, const BlendConfig& base,
                         const std::string& flag) {
  BlendArm arm{text, base};
  const size_t colon = text.find(':');
  const std::string head = text.substr(0, colon);
  const std::optional<BlendMode> mode = mode_of(head);
  if (!mode && colon == text.npos) {
    if (const auto share = share_of(text)) {
      arm.config.mode = BlendMode::kRatio;
      arm.config.ratio = *share;
      return arm;
    }
  }
  if (!mode) {
    const std::string near = nearest_name(head, blend_mode_names());
    throw input_error(flag + " " + text + ": expected " + kBlendArmHelp +
                      (near.empty() ? "" : "; did you mean '" + near + "'?"));
  }
  arm.config.mode = *mode;
  if (colon == text.npos) return arm;
  const auto share = share_of(text.substr(colon + 1));
  if (!share || !has_ratio(*mode))
    throw input_error(
        flag + " " + text +
        ": a share from 0 to 1 stands behind ratio, random or oracle, as random:0.15");
  arm.config.ratio = *share;
  return arm;
}

std::vector<BlendArm> parse_blend_arms(const std::string& list, const BlendConfig& base,
                                       const std::string& flag) {
  std::vector<BlendArm> arms;
  for (const std::string& part : split(list, ','))
    arms.push_back(parse_blend_arm(part, base, flag));
  return arms;
}

std::optional<TokenId> leading_bos(const Tokenizer& tokenizer) {
  return tokenizer.add_bos() ? std::optional(tokenizer.bos()) : std::nullopt;
}

std::optional<TokenId> chunk_bos(const Tokenizer& tokenizer, const BlendConfig& config) {
  return config.chunks_behind_bos ? leading_bos(tokenizer) : std::nullopt;
}

std::vector<TokenId> chunk_tokens(const Tokenizer& tokenizer, const std::string& text,
                                  const std::string& what) {
  auto tokens = tokenizer.encode(text, {.add_bos = false, .parse_special = false});
  if (tokens.empty()) throw input_error(what + " is empty: it needs a token at least");
  return tokens;
}

void check_blend_memory(const Session& session, const Engine& engine, uint32_t n_tokens,
                        bool oracle) {
  const uint64_t n_sequences = oracle ? 3 : 2;
  const std::string lacking =
      lacking_text(n_sequences * engine.sequence_bytes(0, n_tokens), session.sequence_memory());
  if (!lacking.empty())
    throw Error(ErrorKind::kResource, "chunks of " + std::to_string(n_tokens) +
                                          " tokens and prompts that reuse them need for K and V " +
                                          lacking + " are left: give fewer or shorter chunks");
}

Json to_json(const BlendReport& r) {
  Json tiers = Json::object();
  for (const TierTime& tier : r.tiers) tiers[name(tier.tier)] = 1e3 * tier.load_layer;
  return {{"mode", name(r.mode)},
          {"ratio", r.ratio},
          {"reason", r.reason},
          {"chunk_tokens", r.chunk_tokens},
          {"recomputed_share", r.recomputed_share()},
          {"recomputed_per_layer", r.recomputed},
          {"load_ms_per_layer", milliseconds(r.loads, &LayerLoad::load)},
          {"wait_ms_per_layer", milliseconds(r.loads, &LayerLoad::wait)},
          {"load_ms", 1e3 * r.load_seconds()},
          {"overlap_share", r.overlap_share()},
          {"tier", r.tier ? Json(name(*r.tier)) : Json(nullptr)},
          {"tier_load_ms_per_layer", tiers},
          {"place_ms", 1e3 * r.place_seconds},
          {"recompute_ms", 1e3 * r.recompute_seconds},
          {"question_ms", 1e3 * r.question_seconds},
          {"ttft_ms", 1e3 * r.seconds()}};
}

std::string to_text(const BlendReport& r) {
  const auto [least, most] = std::minmax_element(r.recomputed.begin(), r.recomputed.end());
  std::string out = format(
      "blend: %s, %u tokens of chunks, %u to %u of them computed per layer (%.1f %% on average), "
      "first token after %.1f ms (chunks %.1f, computed again %.1f, question %.1f)\n",
      has_ratio(r.mode) ? format("%s %g", name(r.mode), r.ratio).c_str() : name(r.mode),
      r.chunk_tokens, *least, *most, 100 * r.recomputed_share(), 1e3 * r.seconds(),
      1e3 * r.place_seconds, 1e3 * r.recompute_seconds, 1e3 * r.question_seconds);
  if (r.load_seconds() > 0)
    out += format("blend: chunks loaded in %.1f ms, %.1f %% of that while layers were computed\n",
                  1e3 * r.load_seconds(), 100 * r.overlap_share());
  if (!r.reason.empty()) out += "blend: " + r.reason + "\n";
  return out;
}

}  // namespace kvasir::tool
