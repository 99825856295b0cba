// Cutting, saving and loading; see state.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/selector/magicpig/state.h"

#include <algorithm>

namespace kvasir::magicpig {
namespace {

constexpr uint64_t kStateFormat = 0x316769706967616d;  // "magipig1"

void save_head(const Head& head, sdk::StateWriter& out) {
  out.put_list(head.fixed);
  out.put(static_cast<uint8_t>(head.mean != nullptr));
  if (!head.mean) return;
  out.put_list(*head.mean);
  out.put(static_cast<uint32_t>(head.segments.size()));
  for (const auto& segment : head.segments) {
    const Segment::Entries entries = segment->entries();
    out.put_list(entries.tokens);
    out.put_list(entries.code);
    out.put_list(entries.norm);
  }
}

// Tokens in [begin, end).
std::shared_ptr<const Segment> load_segment(const StateShape& shape, uint32_t begin, uint32_t end,
                                            sdk::StateReader& in) {
  const auto tokens = in.take_ascending(end, "hashed tokens");
  if (tokens.empty() || tokens[0] < begin ||
      tokens.back() - tokens[0] >= max_segment_tokens(shape.layout)) {
    in.damaged("a run of hashed tokens is out of order or range");
  }
  const uint64_t n_codes = uint64_t{tokens.size()} * shape.n_tables;
  const auto code = in.take_list<uint16_t>(n_codes, "the list of hash codes");
  const auto good = [&](uint32_t c) { return c >> shape.n_bits == 0; };
  if (code.size() != n_codes || !std::all_of(code.begin(), code.end(), good)) {
    in.damaged("hash codes are too few or too large");
  }
  const auto norm = in.take_numbers<float>(tokens.size(), true, "norms of keys");
  return std::make_shared<const Segment>(shape.layout, shape.n_bits, shape.n_tables, tokens, code,
                                         norm);
}

Head load_head(const StateShape& shape, uint32_t hashed_end, sdk::StateReader& in) {
  Head head;
  head.fixed = in.take_ascending(shape.max_context, "static tokens");
  const bool hashed = in.take_flag();
  if (hashed != (hashed_end > 0)) in.damaged("a head has no mean key, or has one for nothing");
  if (!hashed) return head;
  head.mean = std::make_shared<const std::vector<float>>(
      in.take_numbers<float>(shape.head_dim, false, "a mean key"));
  const auto n = in.take<uint32_t>();
  for (uint32_t i = 0, begin = 0; i < n; ++i) {
    head.segments.push_back(load_segment(shape, begin, hashed_end, in));
    begin = head.segments.back()->end();
  }
  return head;
}

}  // namespace

uint32_t Layer::drawn_end(uint32_t unit_end, uint32_t block_size) const {
  return std::min(hashed_end, std::max(prompt_hashed, unit_end / block_size * block_size));
}

bool Layer::truncate(uint32_t kv_len, uint32_t window_tokens) {
  votes = {};  // cut, a prompt has no end to vote at
  if (kv_len < mean_end) {
    *this = {};
    return false;
  }
  if (kv_len < prompt_end) {  // it ends here now, and so do its candidates
    prompt_end = kv_len;
    prompt_hashed = std::min(prompt_hashed, kv_len - std::min(kv_len, std::max(window_tokens, 1u)));
  }
  const auto is_cut = [&](uint32_t token) { return token >= kv_len; };
  std::erase_if(skipped, is_cut);
  for (Head& head : heads) {
    std::erase_if(head.fixed, is_cut);
    while (!head.segments.empty() && head.segments.back()->begin() >= kv_len) {
      head.segments.pop_back();
    }
    if (!head.segments.empty() && head.segments.back()->end() > kv_len) {
      head.segments.back() = head.segments.back()->cut(kv_len);
    }
  }
  hashed_end = std::min(hashed_end, kv_len);
  return true;
}

void save_state(const State& state, sdk::StateWriter& out) {
  out.put(kStateFormat);
  out.put(static_cast<uint32_t>(state.layers.size()));
  for (const Layer& layer : state.layers) {
    for (const uint32_t x :
         {layer.mean_end, layer.prompt_end, layer.prompt_hashed, layer.hashed_end}) {
      out.put(x);
    }
    out.put_list(layer.skipped);
    layer.votes.save(out);
    out.put(static_cast<uint8_t>(!layer.heads.empty()));
    for (const Head& head : layer.heads) save_head(head, out);
  }
}

State load_state(const StateShape& shape, sdk::StateReader& in) {
  in.expect(kStateFormat, "the format");
  State state;
  const auto n_layers = in.take<uint32_t>();
  if (n_layers != 0 && n_layers != shape.n_layers) in.damaged("the number of layers differs");
  state.layers.resize(n_layers);
  for (Layer& layer : state.layers) {
    for (uint32_t* x :
         {&layer.mean_end, &layer.prompt_end, &layer.prompt_hashed, &layer.hashed_end}) {
      *x = in.take<uint32_t>();
      if (*x > shape.max_context) in.damaged("it ends beyond the context");
    }
    layer.skipped = in.take_ascending(shape.max_context, "tokens that were not hashed");
    layer.votes = sdk::VoteSums::load(shape.n_kv_heads, shape.max_context, in);
    if (!in.take_flag()) {
      if (layer.hashed_end != 0) in.damaged("a layer has hashed tokens, but no heads");
      continue;
    }
    for (uint32_t i = 0; i < shape.n_kv_heads; ++i) {
      layer.heads.push_back(load_head(shape, layer.hashed_end, in));
    }
  }
  return state;
}

}  // namespace kvasir::magicpig
