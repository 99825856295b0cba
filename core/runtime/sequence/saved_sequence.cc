// Saving and loading sequences; see saved_sequence.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/sequence/saved_sequence.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/plugin/dtypes.h"
#include "core/runtime/sequence/byte_stream.h"
#include "core/runtime/sequence/sliding_window.h"

namespace kvasir {
namespace {

constexpr char kMagic[8] = {'K', 'V', 'A', 'S', 'E', 'Q', '0', '2'};

// By name.
using Settings = std::vector<std::pair<std::string, std::string>>;

// What changes K, V or what plugins make of them: it must be the same on both sides.
// Values, wherever they came from: a default is what it stands for.
Settings fingerprint(const RunContext& c) {
  const kvasir_geometry& g = c.geometry;
  Settings lines;
  const auto say = [&](const std::string& key, const std::string& value) {
    lines.emplace_back(key, value);
  };
  const auto add = [&](const std::string& key, uint64_t value) { say(key, std::to_string(value)); };
  add("model hash", c.model_hash ? c.model_hash() : 0);
  say("compute", name(c.model.compute()));
  if (c.model.compute() == Compute::kInt8) say("plain matrices", name(plain_compute()));
  add("attention may round (unless --compute f32)", c.model.may_round());
  add("deterministic", c.model.tokens_are_independent());
  if (const std::string placement = c.model.placement().text(); !placement.empty())
    say("on a device", placement);
  add("layers", g.n_layers);
  add("query heads", g.n_q_heads);
  add("kv heads", g.n_kv_heads);
  add("head_dim", g.head_dim);
  add("v_dim", g.v_dim);
  add("key rotation", g.k_state);
  for (const ExplainLine& line : explain(c.pipeline.strategy))
    if (line.key.starts_with("cache.") && line.key != "cache.chunk_size" &&
        (line.key != "cache.foresee" || c.cache.foresee.value == Foresee::kChoose) &&
        line.key != "cache.prompt_attention" && line.key != "cache.on_fault" &&
        line.key != "cache.slow_call_seconds" && line.key != "cache.transfer_seconds")
      say(line.key, line.value);
  size_t n_selectors = 0;
  for (const Pipeline::Explained& section : c.pipeline.explained) {
    if (section.kind == Kind::kAttention) continue;
    std::string table = table_name(section.kind);
    if (section.kind == Kind::kSelector && c.pipeline.selectors.size() > 1)
      table.append(".").append(std::to_string(n_selectors++));
    if (!section.holds.empty()) table.append(".").append(section.holds);
    say(table + ".plugin", section.id);
    for (const auto& option : section.options)
      if (option.value != ResolvedOptions::kSetAside &&
          option.value != ResolvedOptions::kOverruled && option.value != ResolvedOptions::kNotSet)
        say(table + "." + option.key, option.value);
  }
  say("type of K", dtype_list(KVASIR_DTYPE_BIT(g.formats[0].dtype_k)));
  say("type of V", dtype_list(KVASIR_DTYPE_BIT(g.formats[0].dtype_v)));
  for (const auto& selector : c.pipeline.selectors)
    say("version of " + selector->id(), selector->version());
  for (const SlabOwner& owner : c.owners) {
    const Instance& plugin = owner.plugin();
    add("records of " + plugin.id(), owner.layout.record_bytes);
    add("open records of " + plugin.id(), owner.layout.open_bytes);
    add("parts behind the records of " + plugin.id(), owner.layout.page_bytes);
    add("record format of " + plugin.id(), owner.layout.format);
  }
  return lines;
}

std::vector<Instance*> stateful(const RunContext& c) {
  std::vector<Instance*> out;
  for (const auto& selector : c.pipeline.selectors)
    if (selector->keeps_sequences()) out.push_back(selector.get());
  if (c.pipeline.representative && c.pipeline.representative->keeps_sequences())
    out.push_back(c.pipeline.representative.get());
  return out;
}

void write_selection(ByteWriter& out, const LayerSelection& s) {
  for (const bool flag : {s.valid, s.dense, s.unchosen, s.speculated}) out.number<uint8_t>(flag);
  for (const uint32_t x : {s.unit, s.width, s.sink_end, s.window_begin, s.reuse_steps, s.made_at})
    out.number(x);
  for (const auto* heads : {&s.heads, &s.standing}) {
    out.number<uint64_t>(heads->size());
    for (const HeadSelection& head : *heads) {
      out.number<uint8_t>(head.all);
      out.list(head.index);
      out.list(head.weight);
    }
  }
}

LayerSelection read_selection(ByteReader& in, const RunContext& c, uint32_t kv_len) {
  LayerSelection s;
  s.valid = in.number<uint8_t>();
  s.dense = in.number<uint8_t>();
  s.unchosen = in.number<uint8_t>();
  s.speculated = in.number<uint8_t>();
  for (uint32_t* x : {&s.unit, &s.width, &s.sink_end, &s.window_begin, &s.reuse_steps, &s.made_at})
    *x = in.number<uint32_t>();
  if (s.unit > KVASIR_UNIT_TOKEN || s.width > c.group_size() || s.sink_end > s.window_begin ||
      s.window_begin > kv_len)
    in.refuse("a selection is damaged");
  const uint64_t units =
      s.unit == KVASIR_UNIT_BLOCK ? kv_len / c.geometry.block_size : uint64_t{kv_len};
  for (auto* heads : {&s.heads, &s.standing}) {
    heads->resize(in.count(c.geometry.n_kv_heads, "heads"));
    for (HeadSelection& head : *heads) {
      head.all = in.number<uint8_t>();
      head.index = in.ascending(units, "selected units");
      head.weight = in.list<float>(units * c.group_size(), "weights");
      if (head.weight.size() != head.index.size() * s.width) in.refuse("a selection is damaged");
      for (const float weight : head.weight)
        if (!(weight < INFINITY)) in.refuse("a weight is damaged");
    }
  }
  const auto fits = [&](size_t n) { return n == 1 || n == c.geometry.n_kv_heads; };
  if ((s.valid && !s.dense && !fits(s.heads.size())) ||
      (!s.standing.empty() && !fits(s.standing.size())))
    in.refuse("a selection is damaged");
  return s;
}

// What stands before the tokens of a block: where they lie.
constexpr uint8_t kNoBlock = 0, kBlock = 1, kWindowBlock = 2;  // the last of the window's storage

// K and V of the tokens of every block of a list, as they lie in storage.
template <class Count>
void write_blocks(ByteWriter& out, const BlockStore& store, const BlockList& list,
                  Count&& n_tokens) {
  out.number<uint64_t>(list.blocks.size());
  for (uint32_t block = 0; block < list.blocks.size(); ++block) {
    if (!list.blocks[block]) {
      out.number(kNoBlock);
      continue;
    }
    out.number(store.in_window(list.leases[block]) ? kWindowBlock : kBlock);
    const std::vector<std::byte> tokens = store.save_tokens(list.leases[block], n_tokens(block));
    out.bytes(tokens.data(), tokens.size());
  }
}

template <class Count>
void read_blocks(ByteReader& in, BlockStore& store, BlockList& list, uint32_t layer,
                 uint32_t kv_head, uint32_t block_size, uint64_t expected, Count&& n_tokens) {
  const uint64_t n = in.count(expected, "blocks");
  if (n != expected) in.refuse("blocks are missing");
  std::vector<BlockStore::Full> full;
  for (uint32_t block = 0; block < n; ++block) {
    const uint32_t tokens = n_tokens(block);
    const auto where = in.number<uint8_t>();
    if (where == kNoBlock) {
      list.blocks.resize(block + 1);
      list.leases.resize(block + 1);
      continue;
    }
    const bool in_window = where == kWindowBlock;
    if (where > kWindowBlock || (in_window && !store.has_window())) in.refuse("a block is damaged");
    if (in_window && kv_head != KVASIR_ALL_HEADS) in.refuse("a block is damaged");
    store.open_block(list, layer, block, kv_head, in_window);
    const kvasir_lease& lease = list.leases[block];
    store.load_tokens(lease, tokens, in.bytes(store.bytes_of_tokens(lease, tokens)));
    store.set_tokens(list, block, tokens);
    if (tokens == block_size) full.push_back({&list, block, block + 1});
  }
  store.seal(full);
  store.release_step(list);
}

void write_slab(ByteWriter& out, const SlabLayout& layout, const SlabPages& pages) {
  for (const auto& [list, bytes] : {std::pair{&pages.pages, layout.page_bytes()},
                                    std::pair{&pages.open_pages, layout.open_page_bytes()}}) {
    out.number<uint64_t>(list->size());
    for (const SlabPage& page : *list) {
      out.number<uint8_t>(page != nullptr);
      if (!page) continue;
      const std::vector<std::byte> records = layout.save_page(page, bytes);
      out.bytes(records.data(), records.size());
    }
  }
}

void read_slab(ByteReader& in, const SlabLayout& layout, SlabPages& pages, uint64_t most) {
  for (const auto& [list, bytes] : {std::pair{&pages.pages, layout.page_bytes()},
                                    std::pair{&pages.open_pages, layout.open_page_bytes()}}) {
    list->resize(in.count(most, "pages of records"));
    for (SlabPage& page : *list) {
      if (!in.number<uint8_t>()) continue;
      if (bytes == 0) in.refuse("it holds records that its plugins do not keep");
      page = layout.load_page(in.bytes(bytes));
    }
  }
}

void write_layer(ByteWriter& out, const RunContext& c, LayerState& state, uint32_t kv_len) {
  const uint32_t b = c.geometry.block_size;
  c.store.make_all_resident(state);
  write_blocks(out, c.store, state,
               [&](uint32_t block) { return std::min(b, kv_len - block * b); });
  out.number(state.packed.end);
  for (PackedHead& head : state.packed.heads) {
    c.store.make_all_resident(head);
    out.list(*head.live);
    write_blocks(out, c.store, head, [&](uint32_t block) {
      return std::min(b, static_cast<uint32_t>(head.live->size()) - block * b);
    });
    c.store.release_step(head);
  }
  c.store.release_step(state);
  out.number<uint64_t>(state.dead.size());
  for (const auto& head : state.dead) out.flags(head);
  out.number<uint64_t>(state.restricted.size());
  for (const auto& head : state.restricted) out.list(head);
  out.number(state.restricted_unit);
  out.number(state.restricted_end);
  write_selection(out, state.selection);
  out.number(state.final_blocks);
  for (size_t owner = 0; owner < c.owners.size(); ++owner)
    write_slab(out, c.owners[owner].slab, state.slabs[owner]);
}

void read_packed(ByteReader& in, const RunContext& c, LayerState& state, uint32_t layer,
                 uint32_t kv_len) {
  const uint32_t b = c.geometry.block_size;
  state.packed.end = in.number<uint32_t>();
  if (state.packed.end == 0) return;
  if (state.packed.end % b != 0 || state.packed.end > kv_len)
    in.refuse("its packed part is damaged");
  state.packed.heads.resize(c.geometry.n_kv_heads);
  for (uint32_t head = 0; head < c.geometry.n_kv_heads; ++head) {
    PackedHead& packed = state.packed.heads[head];
    auto live = in.ascending(state.packed.end, "living tokens");
    const auto n = static_cast<uint32_t>(live.size());
    packed.live = std::make_shared<const std::vector<uint32_t>>(std::move(live));
    read_blocks(in, c.store, packed, layer, head, b, (n + b - 1) / b,
                [&](uint32_t block) { return std::min(b, n - block * b); });
  }
}

// A token that a head may attend to must be somewhere.
void check_held(const ByteReader& in, const RunContext& c, const LayerState& state, uint32_t layer,
                uint32_t kv_len) {
  const uint32_t b = c.geometry.block_size;
  const uint32_t first = first_seen(kv_len, c.sliding_window(layer));
  for (uint32_t head = 0; head < c.geometry.n_kv_heads; ++head)
    for (uint32_t token = first; token < kv_len; ++token) {
      const bool dead =
          !state.dead.empty() && token < state.dead[head].size() && state.dead[head][token];
      if (dead) continue;
      const bool held = token >= state.packed.end
                            ? state.blocks[token / b] != nullptr
                            : std::binary_search(state.packed.heads[head].live->begin(),
                                                 state.packed.heads[head].live->end(), token);
      if (!held) in.refuse("tokens are missing that were not evicted");
    }
}

void read_layer(ByteReader& in, const RunContext& c, LayerState& state, uint32_t layer,
                uint32_t kv_len) {
  const uint32_t b = c.geometry.block_size, heads = c.geometry.n_kv_heads;
  read_blocks(in, c.store, state, layer, KVASIR_ALL_HEADS, b, (kv_len + b - 1) / b,
              [&](uint32_t block) { return std::min(b, kv_len - block * b); });
  read_packed(in, c, state, layer, kv_len);
  state.dead.resize(in.count(heads, "heads"));
  state.live.resize(state.dead.size());
  for (size_t head = 0; head < state.dead.size(); ++head) {
    state.dead[head] = in.flags(kv_len);
    for (uint32_t token = 0; token < state.dead[head].size(); ++token)
      if (!state.dead[head][token]) state.live[head].push_back(token);
  }
  state.restricted.resize(in.count(heads, "heads"));
  for (auto& head : state.restricted) head = in.ascending(kv_len, "reachable units");
  for (const size_t n : {state.dead.size(), state.restricted.size()})
    if (n != 0 && n != heads) in.refuse("heads are missing");
  if (state.packed.end && state.dead.empty()) in.refuse("its packed part is damaged");
  state.restricted_unit = in.number<uint32_t>();
  state.restricted_end = in.number<uint32_t>();
  state.selection = read_selection(in, c, kv_len);
  state.final_blocks = in.number<uint32_t>();
  if (state.restricted_unit > KVASIR_UNIT_TOKEN || state.final_blocks > kv_len / b)
    in.refuse("a layer is damaged");
  if (!state.blocks.empty() && !state.blocks.back()) in.refuse("its last block is missing");
  check_held(in, c, state, layer, kv_len);
  for (size_t owner = 0; owner < c.owners.size(); ++owner)
    read_slab(in, c.owners[owner].slab, state.slabs[owner], state.blocks.size() + 1);
}

void check_fingerprint(ByteReader& in, const RunContext& c) {
  Settings saved(in.count(100'000, "settings"));
  for (auto& [key, value] : saved) {
    key = in.text();
    value = in.text();
  }
  const Settings ours = fingerprint(c);
  const auto find = [](const Settings& among, const std::string& key) {
    return std::find_if(among.begin(), among.end(), [&](const auto& s) { return s.first == key; });
  };
  for (const auto& [key, value] : ours) {
    const auto theirs = find(saved, key);
    if (theirs == saved.end())
      in.refuse("it was saved without " + key + ", which is " + value + " here");
    if (theirs->second != value)
      in.refuse("it was saved with " + key + " = " + theirs->second + ", which is " + value +
                " here");
  }
  for (const auto& [key, value] : saved)
    if (find(ours, key) == ours.end())
      in.refuse("it was saved with " + key + " = " + value + ", which is not set here");
}

}  // namespace

void save_sequence(const RunContext& c, Sequence& seq, const ByteSink& sink) {
  if (!c.store.can_pack())
    throw input_error("storage " + c.pipeline.storage->id() +
                      " keeps blocks of several element types: these cannot be saved");
  const std::vector<Instance*> plugins = stateful(c);
  std::vector<std::vector<std::byte>> states;
  states.reserve(plugins.size());
  for (Instance* plugin : plugins) states.push_back(plugin->save_state(seq.id));
  ByteWriter out(sink);
  out.bytes(kMagic, sizeof(kMagic));
  const Settings lines = fingerprint(c);
  out.number<uint64_t>(lines.size());
  for (const auto& [key, value] : lines) {
    out.text(key);
    out.text(value);
  }
  out.list(seq.tokens);
  for (const uint32_t x : {seq.prompt_begin, seq.prompt_end, seq.decode_index}) out.number(x);
  for (LayerState& layer : seq.layers) write_layer(out, c, layer, seq.kv_len);
  for (const auto& state : states) out.list(state);
  out.finish();
}

void load_sequence(const RunContext& c, std::span<const std::byte> bytes, const std::string& name,
                   Sequence& seq) {
  ByteReader frame(bytes, name);
  if (bytes.size() < sizeof(kMagic) + sizeof(uint64_t) ||
      std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0)
    throw input_error(name + ": not a saved sequence (or one of another version)");
  uint64_t checksum;
  const auto body = bytes.first(bytes.size() - sizeof(checksum));
  std::memcpy(&checksum, bytes.data() + body.size(), sizeof(checksum));
  if (checksum != XXH3_64bits(body.data(), body.size()))
    frame.refuse("its checksum is wrong, the file is damaged");
  ByteReader in(body.subspan(sizeof(kMagic)), name);
  check_fingerprint(in, c);
  seq.tokens = in.list<int32_t>(c.geometry.max_context, "tokens");
  seq.kv_len = static_cast<uint32_t>(seq.tokens.size());
  for (uint32_t* x : {&seq.prompt_begin, &seq.prompt_end, &seq.decode_index})
    *x = in.number<uint32_t>();
  if (seq.prompt_begin > seq.prompt_end || seq.prompt_end > seq.kv_len ||
      seq.decode_index > seq.kv_len)
    in.refuse("its prompt's bounds are damaged");
  const auto vocab = static_cast<int64_t>(c.model.shape().vocab_size);
  for (const int32_t token : seq.tokens)
    if (token < 0 || token >= vocab) in.refuse("a token is not of this vocabulary");
  for (uint32_t layer = 0; layer < c.geometry.n_layers; ++layer)
    read_layer(in, c, seq.layers[layer], layer, seq.kv_len);
  for (Instance* plugin : stateful(c)) {
    const auto n = in.number<uint64_t>();
    plugin->load_state(seq.id, in.bytes(n));
  }
  if (!in.at_end()) in.refuse("it goes on after its end");
}

}  // namespace kvasir
