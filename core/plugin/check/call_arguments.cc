// See call_arguments.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/check/call_arguments.h"

#include <xxhash.h>

#include <algorithm>
#include <cstddef>

#include "core/plugin/instance.h"

namespace kvasir {
namespace {

bool is_reachable(uint32_t mem_kind) { return mem_kind != KVASIR_MEM_DEVICE; }

uint64_t bytes_of(const kvasir_view& view) {
  uint64_t bytes = view.dtype == KVASIR_DTYPE_U8 ? 1 : 4;  // f32 and u32, contiguous
  for (uint32_t i = 0; i < view.rank; ++i) bytes *= view.shape[i];
  return bytes;
}

uint64_t n_items(const kvasir_attn_part& part) {
  uint64_t n = 0;
  for (uint32_t r = 0; r < part.n_ranges; ++r) n = std::max(n, part.ranges[r].item_end);
  return n;
}

uint64_t n_ranges(const kvasir_attn_in& in) {
  uint64_t n = 0;
  for (uint32_t p = 0; p < in.n_parts; ++p) n += in.parts[p].n_ranges;
  return n;
}

// How many lists a selection has room for.
uint64_t most_lists(const kvasir_selection& out, const kvasir_step& step,
                    const kvasir_geometry& g) {
  const uint64_t heads = out.scope == KVASIR_SCOPE_SEQUENCE  ? 1
                         : out.scope == KVASIR_SCOPE_KV_HEAD ? g.n_kv_heads
                                                             : g.n_q_heads;
  uint64_t lists = 0;
  for (uint32_t s = 0; s < step.n_seqs; ++s)
    lists += out.query_block ? (step.seqs[s].n_q + out.query_block - 1) / out.query_block : 1;
  return heads * lists;
}

}  // namespace

int64_t CheckedPlugin::allocated_now() const {
  return static_cast<int64_t>(allocated_bytes()) - static_cast<int64_t>(services.scratch_bytes());
}

CallArguments::CallArguments(CheckedPlugin* plugin) : plugin_(plugin) {
  if (!plugin) return;
  before_.emplace();
}

CallArguments::~CallArguments() = default;

kvasir_view CallArguments::input(const char* name, kvasir_view view) {
  if (is_reachable(view.mem_kind))
    view.data = const_cast<void*>(memory_.add_input(name, view.data, bytes_of(view)));
  return view;
}

kvasir_view CallArguments::output(const char* name, kvasir_view view) {
  if (is_reachable(view.mem_kind)) view.data = memory_.add_output(name, view.data, bytes_of(view));
  return view;
}

void CallArguments::watch(const kvasir_lease& lease, uint32_t n_tokens) {
  const auto formats = plugin_->formats();
  if (lease.state != KVASIR_LEASE_RESIDENT || !lease.k || lease.format >= formats.size()) return;
  const kvasir_kv_format& format = formats[lease.format];
  const uint64_t sum = sum_of(lease, n_tokens, format, plugin_->shape());
  if (sum == 0) return;
  const BlockSums::Known known = plugin_->checks.sums.known_at(lease.k);
  if (known.sum != 0 && known.n_tokens == n_tokens && known.sum != sum)
    throw PluginError(known.storage, "seal", KVASIR_ERR_IO,
                      "layer " + std::to_string(known.layer) + ", block " +
                          std::to_string(known.block) +
                          ": K or V of the sealed block is not what it was. No checked call of "
                          "another plugin changed it: the storage did, or a thread of some plugin");
  watched_.push_back({lease, n_tokens, sum});
}

const kvasir_lease* CallArguments::input_leases(const kvasir_lease* leases, uint64_t n,
                                                uint32_t n_tokens) {
  for (uint64_t i = 0; leases && i < n; ++i)
    watch(leases[i], n_tokens ? n_tokens : leases[i].n_tokens);
  return input("leases", leases, n);
}

const kvasir_selection* CallArguments::candidates(const kvasir_selection& lists) {
  kvasir_selection copy = lists;
  const uint64_t n = lists.list_offsets[lists.n_lists];
  copy.list_offsets = const_cast<uint64_t*>(
      input("candidates.list_offsets", lists.list_offsets, uint64_t{lists.n_lists} + 1));
  copy.list_flags =
      const_cast<uint32_t*>(input("candidates.list_flags", lists.list_flags, lists.n_lists));
  copy.index = const_cast<uint32_t*>(input("candidates.index", lists.index, n));
  return input("candidates", &copy, 1);
}

void CallArguments::watch_pages(const kvasir_slab& slab, const kvasir_step& step) {
  if (!is_reachable(slab.mem_kind)) return;
  const uint64_t n_heads = plugin_->geometry.n_kv_heads;
  const auto watch = [&](void* const* pages, uint64_t bytes) {
    for (uint64_t i = 0; pages && bytes != 0 && i < slab.seq_pages[step.n_seqs]; ++i)
      if (pages[i]) watched_pages_.push_back({pages[i], bytes, XXH3_64bits(pages[i], bytes)});
  };
  watch(slab.pages, slab.part_offset + n_heads * slab.page_bytes);
  watch(slab.open_pages, n_heads * slab.page_blocks * slab.open_bytes);
}

const kvasir_slab* CallArguments::slab(const kvasir_slab& slab, const kvasir_step& step,
                                       bool writes_records) {
  if (!writes_records) watch_pages(slab, step);
  kvasir_slab copy = slab;
  const uint64_t n = slab.seq_pages[step.n_seqs];
  copy.seq_pages = input("slab.seq_pages", slab.seq_pages, uint64_t{step.n_seqs} + 1);
  copy.pages = input("slab.pages", slab.pages, n);
  copy.open_pages = input("slab.open_pages", slab.open_pages, n);
  return input("slab", &copy, 1);
}

const kvasir_step* CallArguments::step(const kvasir_step& step, bool writes_records) {
  if (!plugin_) return &step;
  kvasir_step copy = step;
  copy.seqs = input("step.seqs", step.seqs, step.n_seqs);
  if (step.candidates) copy.candidates = candidates(*step.candidates);
  if (step.slab) copy.slab = slab(*step.slab, step, writes_records);
  return input("step", &copy, 1);
}

const kvasir_sel_in* CallArguments::select_in(const kvasir_sel_in& in, const kvasir_step& step) {
  if (!plugin_) return &in;
  kvasir_sel_in copy = in;
  copy.q = input("q", in.q);
  copy.x = input("x", in.x);
  copy.scores = input("scores", in.scores);
  if (in.score_offsets)
    copy.score_offsets =
        input("score_offsets", in.score_offsets, uint64_t{step.n_seqs} * in.n_score_heads + 1);
  if (in.lease_offsets) {
    copy.leases = input_leases(in.leases, in.lease_offsets[step.n_seqs]);
    copy.lease_offsets = input("lease_offsets", in.lease_offsets, uint64_t{step.n_seqs} + 1);
  }
  return input("in", &copy, 1);
}

kvasir_selection* CallArguments::selection(kvasir_selection& out, const kvasir_step& step) {
  if (!plugin_) return &out;
  const kvasir_geometry& g = plugin_->geometry;
  const uint64_t n_lists = most_lists(out, step, g);
  kvasir_selection& copy = selection_.emplace(Filled<kvasir_selection>{&out, out}).copy;
  copy.list_offsets = output("list_offsets", out.list_offsets, n_lists + 1);
  copy.list_flags = output("list_flags", out.list_flags, n_lists);
  copy.index = output("index", out.index, out.capacity);
  copy.log_weight =
      output("log_weight", out.log_weight, out.capacity * (g.n_q_heads / g.n_kv_heads));
  copy.o = output("o", out.o);
  copy.lse = output("lse", out.lse);
  return &copy;
}

const kvasir_update_item* CallArguments::items(std::span<const kvasir_update_item> items) {
  if (!plugin_) return items.data();
  std::vector<kvasir_update_item> copies(items.begin(), items.end());
  for (kvasir_update_item& item : copies) {
    if (item.lease) item.lease = input_leases(item.lease, 1, item.n_tokens);
    if (!item.mass) continue;
    const kvasir_view mass = input("mass", *item.mass);
    item.mass = input("mass view", &mass, 1);
  }
  return input("items", copies.data(), copies.size());
}

const kvasir_mass* CallArguments::mass(const kvasir_mass& mass, const kvasir_step& step) {
  if (!plugin_) return &mass;
  kvasir_mass copy = mass;
  copy.n_queries = input("n_queries", mass.n_queries, step.n_seqs);
  copy.list_offsets = input("list_offsets", mass.list_offsets, uint64_t{mass.n_lists} + 1);
  if (mass.index && mass.list_offsets)
    copy.index = input("index", mass.index, mass.list_offsets[mass.n_lists]);
  copy.value = input("value", mass.value);
  return input("mass", &copy, 1);
}

const kvasir_score_in* CallArguments::score_in(const kvasir_score_in& in) {
  if (!plugin_) return &in;
  kvasir_score_in copy = in;
  copy.q = input("q", in.q);
  return input("in", &copy, 1);
}

kvasir_score_out* CallArguments::score_out(kvasir_score_out& out, const kvasir_step& step,
                                           bool summed) {
  if (!plugin_) return &out;
  const kvasir_geometry& g = plugin_->geometry;
  const uint64_t n_heads = summed ? g.n_kv_heads : g.n_q_heads;
  kvasir_score_out& copy = score_out_.emplace(out);
  copy.offsets = input("offsets", out.offsets, step.n_seqs * n_heads + 1);
  copy.value = output("value", out.value);
  return &copy;
}

const kvasir_attn_in* CallArguments::attention_in(const kvasir_attn_in& in) {
  if (!plugin_) return &in;
  std::vector<kvasir_attn_part> parts(in.parts, in.parts + in.n_parts);
  for (kvasir_attn_part& part : parts) {
    const uint64_t n = n_items(part);
    part.ranges = input("ranges", part.ranges, part.n_ranges);
    part.leases = input_leases(part.leases, part.n_leases);
    part.items = input("items", part.items, n);
    if (part.weight_width)
      part.log_weight = input("log_weight", part.log_weight, n * part.weight_width);
    part.q = input("q", part.q);
    part.q_pos = input("q_pos", part.q_pos);
  }
  kvasir_attn_in copy = in;
  copy.parts = input("parts", parts.data(), parts.size());
  return input("in", &copy, 1);
}

kvasir_attn_out* CallArguments::attention_out(kvasir_attn_out& out) {
  if (!plugin_) return &out;
  kvasir_attn_out& copy = attention_out_.emplace(Filled<kvasir_attn_out>{&out, out}).copy;
  copy.o = output("o", out.o);
  copy.lse = output("lse", out.lse);
  return &copy;
}

const kvasir_attn_mass* CallArguments::attention_mass(const kvasir_attn_mass& out,
                                                      const kvasir_attn_in& in) {
  if (!plugin_) return &out;
  kvasir_attn_mass copy = out;
  copy.range_offsets = input("range_offsets", out.range_offsets, n_ranges(in) + 1);
  copy.lse = input("lse", out.lse);
  copy.value = output("value", out.value);
  return input("out", &copy, 1);
}

const kvasir_block_key* CallArguments::keys(std::span<const kvasir_block_key> keys) {
  if (!plugin_) return keys.data();
  const uint64_t block_size = plugin_->geometry.block_size;
  std::vector<kvasir_block_key> copies(keys.begin(), keys.end());
  for (kvasir_block_key& key : copies) {
    const uint64_t heads = key.kv_head == KVASIR_ALL_HEADS ? plugin_->geometry.n_kv_heads : 1;
    key.needed = input("needed", key.needed, (heads * block_size + 63) / 64);
  }
  return input("keys", copies.data(), copies.size());
}

kvasir_lease* CallArguments::leases(std::span<kvasir_lease> leases, const char* name) {
  return plugin_ ? output(name, leases.data(), leases.size()) : leases.data();
}

std::string CallArguments::finish() {
  if (!plugin_) return "";
  ++plugin_->checks.n_calls;
  std::string fault = memory_.finish();
  const auto say = [&](std::string text) {
    if (fault.empty()) fault = std::move(text);
  };
  if (selection_) {
    const kvasir_selection host = *selection_->original;
    kvasir_selection& out = *selection_->original;
    out = selection_->copy;
    out.list_offsets = host.list_offsets;
    out.list_flags = host.list_flags;
    out.index = host.index;
    out.log_weight = host.log_weight;
    out.o = host.o;
    out.lse = host.lse;
  }
  if (attention_out_) attention_out_->original->keys_skipped = attention_out_->copy.keys_skipped;
  for (const Watched& watched : watched_)
    if (sum_of(watched.lease, watched.n_tokens, plugin_->formats()[watched.lease.format],
               plugin_->shape()) != watched.sum)
      say("it changed K or V of a block that it was given to read (tokens from position " +
          std::to_string(watched.lease.pos_begin) + ")");
  for (const WatchedPage& page : watched_pages_)
    if (XXH3_64bits(page.data, page.bytes) != page.sum)
      say("it wrote to records in a call that may only read them");
  say(ProcessState::change(*before_, ProcessState(), plugin_->descriptors));
  return fault;
}

}  // namespace kvasir
