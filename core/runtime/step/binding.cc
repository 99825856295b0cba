// Binding and its checks; see binding.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/step/binding.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "core/plugin/dtypes.h"
#include "core/runtime/blocks/element_type.h"
#include "core/runtime/blocks/format_check.h"
#include "core/runtime/blocks/host_copies.h"
#include "core/runtime/blocks/memory_bridge.h"
#include "core/runtime/blocks/memory_kinds.h"
#include "core/runtime/engine.h"
#include "core/runtime/select/device_lists.h"
#include "core/runtime/sequence/slab.h"
#include "core/runtime/step/pipeline_checks.h"

namespace kvasir {
namespace {

bool needs_unrotated(const Pipeline& pipeline) {
  if (pipeline.strategy.cache.positions.value == Positions::kSlot) return true;
  uint64_t needs = 0;
  for (const auto& selector : pipeline.selectors) needs |= selector->desc().needs;
  if (pipeline.representative) needs |= pipeline.representative->desc().needs;
  return needs & KVASIR_NEED_UNROTATED_K;
}

// dense_layers, which must be there, those of dense_layer_every that are, and all that slide.
std::vector<uint64_t> dense_bits_of(const CacheConfig& cache, const ModelShape& shape) {
  const uint32_t n_layers = shape.n_layers;
  std::vector<uint64_t> bits((n_layers + 63) / 64, 0);
  for (const uint32_t layer : cache.dense_layers.value) {
    if (layer >= n_layers)
      throw input_error(cache.dense_layers.origin.text() + ": dense_layers names layer " +
                        std::to_string(layer) + ", but the model has layers 0 to " +
                        std::to_string(n_layers - 1));
    bits[layer / 64] |= uint64_t{1} << (layer % 64);
  }
  if (const uint32_t every = cache.dense_layer_every.value)
    for (uint32_t layer = 0; layer < n_layers; layer += every)
      bits[layer / 64] |= uint64_t{1} << (layer % 64);
  for (uint32_t layer = 0; layer < n_layers; ++layer)
    if (shape.sliding_window(layer)) bits[layer / 64] |= uint64_t{1} << (layer % 64);
  return bits;
}

kvasir_geometry geometry_of(const ModelShape& shape, const CacheConfig& cache,
                            const EngineOptions& options, bool unrotated) {
  kvasir_geometry g{};
  g.struct_size = sizeof(g);
  g.n_layers = shape.n_layers;
  g.n_q_heads = shape.n_q_heads;
  g.n_kv_heads = shape.n_kv_heads;
  g.head_dim = shape.head_dim;
  g.v_dim = shape.v_head_dim;
  g.block_size = cache.block_size.value;
  g.max_context = options.max_context;
  g.max_sequences = options.max_sequences;
  g.max_queries =
      std::max({cache.chunk_size.value, options.max_sequences, options.max_step_tokens});
  g.sink_tokens = cache.sink_tokens.value;
  g.window_tokens = cache.window_tokens.value;
  g.window_mode =
      cache.window_mode.value == WindowMode::kPrompt ? KVASIR_WINDOW_PROMPT : KVASIR_WINDOW_ROLLING;
  g.k_state = unrotated ? KVASIR_K_UNROTATED : KVASIR_K_ROTATED;
  g.gqa_reduce = static_cast<uint32_t>(cache.gqa_reduce.value);
  g.head_select_shared = cache.head_select_mode.value == HeadSelectMode::kShared;
  g.format_size = sizeof(kvasir_kv_format);
  g.softmax_scale = shape.attention_scale();
  g.softcap = shape.softmax_softcap;
  g.seed = options.seed;
  g.page_blocks = kSlabPageBlocks;
  return g;
}

// What the storage leases, and, of keys that it holds before RoPE, the copies that are attended.
std::vector<kvasir_kv_format> leased_formats(const Storage& storage, const kvasir_geometry& g,
                                             bool unrotated) {
  std::vector<kvasir_kv_format> formats = storage.formats();
  check_formats(storage, formats, g);
  const size_t n = unrotated ? formats.size() : 0;
  for (size_t i = 0; i < n; ++i) {
    if (!has_element_type(formats[i].dtype_k))
      throw input_error("storage " + storage.id() + ": keys stored before RoPE cannot be of type " +
                        dtype_list(KVASIR_DTYPE_BIT(formats[i].dtype_k)));
    kvasir_kv_format copy = formats[i];
    copy.dtype_k = KVASIR_DTYPE_F32;
    copy.k_head_stride = g.head_dim * sizeof(float);
    copy.k_token_stride = copy.k_head_stride * g.n_kv_heads;
    formats.push_back(copy);
  }
  return formats;
}

// What a plugin reads in general was compared with what the storage can hold; now it is known what
// the storage does hold.
void check_reads(const Instance& reader, std::span<const kvasir_kv_format> formats,
                 const Storage& storage) {
  const uint64_t read = reader.desc().dtypes;
  for (const kvasir_kv_format& format : formats) {
    const uint64_t held = KVASIR_DTYPE_BIT(format.dtype_k) | KVASIR_DTYPE_BIT(format.dtype_v);
    if (read == 0 || (held & read) == held) continue;
    throw input_error(reader.id() + " reads K and V of " + dtype_list(read) + "; " + storage.id() +
                      " holds them as " + dtype_list(held & ~read) +
                      ": set storage.type_k and storage.type_v to what it reads");
  }
}

void check_sliding(const Instance& attention) {
  if (attention.desc().provides & KVASIR_PROVIDE_DISTANCE) return;
  throw input_error(attention.id() +
                    " cannot limit how far a query sees, which the sliding windows of this model "
                    "need: choose a backend that does");
}

void check_layout(const Instance& owner, const RecordLayout& layout, uint32_t block_size) {
  if (layout.flags & KVASIR_LAYOUT_PER_TOKEN && layout.record_bytes % block_size != 0)
    throw PluginError(owner.id(), "layout", KVASIR_ERR_INVALID,
                      "record_bytes = " + std::to_string(layout.record_bytes) +
                          " is not a multiple of block_size, though it says one slice per token");
}

// What a plugin says that it takes is added up and allocated or refused by others: it must be a
// size that some machine has.
void check_claim(const Instance& plugin, const char* function, const char* of, uint64_t bytes,
                 uint64_t most = uint64_t{1} << 50) {
  if (bytes <= most) return;
  throw PluginError(plugin.id(), function, KVASIR_ERR_INTERNAL,
                    std::string(of) + " takes " + std::to_string(bytes) +
                        " bytes, it says, and may take " + std::to_string(most) +
                        " at most (a defect of the plugin)");
}

// Sixteen times K and V in f32, and what a page more takes.
uint64_t most_block_bytes(const kvasir_geometry& g) {
  return 16 * sizeof(float) * uint64_t{g.block_size} * g.n_kv_heads * (g.head_dim + g.v_dim) +
         (uint64_t{1} << 20);
}

template <class Sizes>
void check_state(const Instance& plugin, const char* function, const Sizes& sizes) {
  check_claim(plugin, function, "its state", sizes.state_bytes);
  check_claim(plugin, function, "its state at most", sizes.state_peak_bytes);
}

void bind_storage(Storage& storage, const kvasir_geometry& g, kvasir_storage_plan& plan) {
  if (!storage.is_bound()) storage.validate(g);
  plan = storage.plan(g);
  check_claim(storage, "plan", "a block", plan.block_bytes, most_block_bytes(g));
  check_claim(storage, "plan", "overhead", plan.overhead_bytes);
  if (!storage.is_bound()) storage.bind(g);
}

// Who reads a device's memory works there.
MemoryBytes bind_attention(Attention& attention, const kvasir_geometry& g) {
  if (!attention.is_bound()) {
    attention.validate(g);
    attention.bind(g);
  }
  const uint64_t bytes = attention.plan(g.max_queries, g.max_context).scratch_bytes;
  check_claim(attention, "plan", "scratch", bytes);
  return attention.reads(KVASIR_MEM_DEVICE) ? MemoryBytes(0, bytes) : MemoryBytes(bytes);
}

// What the backend keeps of all sequences.
MemoryBytes bytes_for_lists(const Pipeline& pipeline, const Binding& binding) {
  const kvasir_geometry& g = binding.geometry;
  const uint64_t n_blocks = (uint64_t{g.max_context} + g.block_size - 1) / g.block_size;
  const uint64_t bytes = pipeline.attention->kept_bytes(n_blocks);
  check_claim(*pipeline.attention, "kept_bytes", "what it keeps of a layer", bytes);
  return {0, bytes * binding.n_sparse_layers() * g.max_sequences};
}

// Whether the window's backend attends prompts to the context's blocks, which are of `formats`.
bool attends_prompts(const Pipeline& pipeline, std::span<const kvasir_kv_format> formats) {
  const auto& wanted = pipeline.strategy.cache.prompt_attention;
  if (wanted.value == PromptAttention::kContext) return false;
  const Instance& backend = *pipeline.window_attention;
  for (const kvasir_kv_format& format : formats) {
    if (can_read(backend, format)) continue;
    if (wanted.value == PromptAttention::kAuto) return false;
    throw input_error(wanted.origin.text() + ": prompt_attention = \"window\", and " +
                      backend.id() + " cannot read K and V where " + pipeline.storage->id() +
                      " holds them, or of their types: take \"context\", or a backend for the "
                      "window that reads both storages");
  }
  return true;
}

// Backends see blocks of their own storage alone, but for prompts; who else reads K and V sees
// those of both.
void bind_window(Pipeline& pipeline, Binding& binding) {
  kvasir_geometry &g = binding.geometry, &context = binding.context_geometry,
                  &window = binding.window_geometry;
  context = window = g;
  bind_storage(*pipeline.window_storage, window, binding.window_storage);
  const size_t n_context = binding.formats.size();
  const std::vector<kvasir_kv_format> newest = pipeline.window_storage->formats();
  check_formats(*pipeline.window_storage, newest, g);
  binding.formats.insert(binding.formats.end(), newest.begin(), newest.end());
  context.formats = g.formats = binding.formats.data();
  context.n_formats = static_cast<uint32_t>(n_context);
  g.n_formats = static_cast<uint32_t>(binding.formats.size());
  binding.prompts_by_window =
      attends_prompts(pipeline, std::span(binding.formats).first(n_context));
  const uint32_t first = binding.prompts_by_window ? 0 : context.n_formats;
  window.formats = binding.formats.data() + first;
  window.n_formats = g.n_formats - first;
}

}  // namespace

uint32_t Binding::n_sparse_layers() const {
  uint32_t n = geometry.n_layers;
  for (const uint64_t word : dense_bits) n -= static_cast<uint32_t>(std::popcount(word));
  return n;
}

uint32_t Binding::n_sliding_layers() const {
  return static_cast<uint32_t>(sliding_windows.size() -
                               std::count(sliding_windows.begin(), sliding_windows.end(), 0u));
}

std::shared_ptr<const Binding> bind_pipeline(const ModelShape& shape, bool may_round,
                                             Pipeline& pipeline, const EngineOptions& options) {
  const auto made = std::make_shared<Binding>();
  pipeline.bound_to.push_back(made);
  Binding& binding = *made;
  kvasir_geometry& g = binding.geometry;
  const CacheConfig& cache = pipeline.strategy.cache;
  binding.dense_bits = dense_bits_of(cache, shape);
  binding.sliding_windows = shape.sliding_windows;
  const bool unrotated = needs_unrotated(pipeline);
  g = geometry_of(shape, cache, options, unrotated);
  g.may_round = may_round;
  g.dense_layers = binding.dense_bits.data();
  if (pipeline.names_files && options.model_hash) g.model_hash = options.model_hash();
  if (!binding.sliding_windows.empty()) {
    g.sliding_windows = binding.sliding_windows.data();
    check_sliding(*pipeline.attention);
    if (pipeline.is_hybrid()) check_sliding(*pipeline.window_attention);
  }
  Storage& storage = *pipeline.storage;
  check_hybrid(pipeline, unrotated);
  bind_storage(storage, g, binding.storage);
  binding.formats = leased_formats(storage, g, unrotated);
  g.formats = binding.formats.data();
  g.n_formats = static_cast<uint32_t>(binding.formats.size());
  const size_t n_leased = binding.formats.size(), n_stored = n_leased / (unrotated ? 2 : 1);
  if (pipeline.is_hybrid()) bind_window(pipeline, binding);
  const std::span<const kvasir_kv_format> all(binding.formats);
  binding.copied_formats = copied_formats(all, g.block_size, g.head_dim, g.v_dim);
  binding.copied_geometry = g;
  binding.copied_geometry.formats = binding.copied_formats.data();
  const auto leased = all.first(n_leased), stored = all.first(n_stored),
             window = all.subspan(n_leased);
  check_memory_kinds(pipeline, stored, window, unrotated);
  check_reads(*pipeline.attention, leased, storage);
  if (pipeline.is_hybrid()) {
    check_reads(*pipeline.window_attention, window, *pipeline.window_storage);
    binding.attention_scratch =
        bind_attention(*pipeline.window_attention, binding.window_geometry) +
        bind_attention(*pipeline.attention, binding.context_geometry);
  } else {
    binding.attention_scratch = bind_attention(*pipeline.attention, g);
    if (pipeline.reference) binding.attention_scratch += bind_attention(*pipeline.reference, g);
  }
  const bool copies = is_host_memory(stored[0].mem_kind);  // for update(), of the window's blocks
  const auto check_stored = [&](const Instance& reader, bool at_select) {
    check_reads(reader, stored, storage);
    if (pipeline.is_hybrid() && (at_select || !copies))
      check_reads(reader, window, *pipeline.window_storage);
  };
  // Formats of what update() is given.
  const auto seen_by = [&](const Instance& reader, bool reads) -> const kvasir_geometry& {
    return reads && reads_copies(reader, all) ? binding.copied_geometry : g;
  };
  if (pipeline.representative) {
    Representative& representative = *pipeline.representative;
    check_stored(representative, false);
    const kvasir_geometry& seen = seen_by(representative, true);
    representative.validate(seen);
    representative.bind(seen);
    representative.read_layout();
    check_layout(representative, representative.layout(), g.block_size);
    check_state(representative, "layout", representative.layout());
    check_record_memory(representative, representative.layout(), storage);
  }
  for (auto& selector : pipeline.selectors) {
    if (reads_keys(*selector)) check_stored(*selector, selector->desc().needs & KVASIR_NEED_KEYS);
    const kvasir_geometry& seen = seen_by(*selector, reads_keys(*selector));
    selector->validate(seen);
    selector->bind(seen);
    selector->read_limits(cache.dense_below_tokens.value);
    check_layout(*selector, selector->layout(), g.block_size);
    check_state(*selector, "limits", selector->limits());
    check_record_memory(*selector, selector->layout(), storage);
    binding.constant_positions |= selector->limits().pos_mode == KVASIR_POS_CONSTANT;
  }
  check_together(pipeline, binding);
  binding.lists_stay = lists_can_stay(pipeline, g, binding.formats);
  if (binding.lists_stay) binding.attention_scratch += bytes_for_lists(pipeline, binding);
  return made;
}

bool can_share(const Pipeline& pipeline, const Pipeline& from) {
  const CacheConfig &ours = pipeline.strategy.cache, &theirs = from.strategy.cache;
  return ours.block_size.value == theirs.block_size.value &&
         needs_unrotated(pipeline) == needs_unrotated(from) &&
         same_plugin(pipeline, from, Kind::kStorage);
}

bool share_plugins(Pipeline& pipeline, const Pipeline& from) {
  if (!can_share(pipeline, from)) return false;
  pipeline.bound_to.insert(pipeline.bound_to.end(), from.bound_to.begin(), from.bound_to.end());
  pipeline.storage = from.storage;
  pipeline.window_storage = from.window_storage;
  if (!same_plugin(pipeline, from, Kind::kAttention) ||
      pipeline.strategy.cache.prompt_attention.value != from.strategy.cache.prompt_attention.value)
    return true;
  pipeline.attention = from.attention;
  pipeline.window_attention = from.window_attention;
  return true;
}

}  // namespace kvasir
