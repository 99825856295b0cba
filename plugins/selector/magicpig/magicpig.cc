// MagicPIG: draw tokens by locality-sensitive hashing with known probability and weigh them by its
// inverse. Chen et al. 2024, arXiv:2410.16179.
// SPDX-License-Identifier: Apache-2.0
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "kernels/topk.h"
#include "plugins/sdk/mass.h"
#include "plugins/sdk/pooling.h"
#include "plugins/sdk/queries.h"
#include "plugins/sdk/sequences.h"
#include "plugins/sdk/vector_records.h"
#include "plugins/selector/magicpig/hash.h"
#include "plugins/selector/magicpig/tables.h"

namespace {
using namespace kvasir;
using namespace kvasir::magicpig;

constexpr double kFloor = 1e-4;       // -ln(u + 1e-4), as published
constexpr uint32_t kHashChunk = 256;  // tokens per task

constexpr const char* kStaticNames[] = {"window", "snapkv"};
constexpr const char* kLayoutNames[] = {"compact", "csr"};
constexpr const char* kKAliases[] = {"k", nullptr};
constexpr const char* kLAliases[] = {"l", nullptr};
constexpr std::array kOptions = {
    sdk::int_option({.key = "K",
                     .help = "bits per hash code; 0 = attend to everything",
                     .unit = "bits",
                     .aliases = kKAliases},
                    10, 0, 16),
    sdk::int_option(
        {.key = "L", .help = "tables; a token is drawn when two agree", .aliases = kLAliases}, 150,
        2, 4096),
    sdk::int_option({.key = "budget_tokens",
                     .help = "most tokens per layer, kv head and step; not set: what is drawn",
                     .unit = "tokens",
                     .flags = KVASIR_OPTION_OPTIONAL},
                    0, 1, INT32_MAX),
    sdk::int_option({.key = "seed",
                     .help = "of the planes; not set: the run's",
                     .flags = KVASIR_OPTION_OPTIONAL},
                    0, 0, INT64_MAX),
    sdk::enum_option({.key = "table_layout",
                      .help = "16-bit ids in segments of 64K tokens, or "
                              "32-bit ids as published"},
                     kLayoutNames, 0),
    sdk::enum_option({.key = "static",
                      .help = "what is always attended: sinks and window alone, or with "
                              "static_tokens that the prompt's end attends to most"},
                     kStaticNames, 0),
    sdk::int_option({.key = "static_tokens",
                     .help = "chosen per layer and kv head with static = snapkv",
                     .unit = "tokens"},
                    64, 1, INT32_MAX),
    sdk::int_option({.key = "static_queries",
                     .help = "last queries of the prompt that choose them",
                     .unit = "tokens"},
                    32, 1, INT32_MAX),
    sdk::int_option({.key = "static_kernel_size",
                     .help = "neighbours the mass is averaged over, odd",
                     .unit = "tokens"},
                    5, 1, 255),
};

// One kv head of one layer. Everything behind a pointer is shared with forks and never changes.
struct Head {
  std::shared_ptr<const std::vector<float>> mean;  // null: nothing hashed yet
  std::vector<std::shared_ptr<const Segment>> segments;
  std::vector<uint32_t> fixed;  // the static tokens among the candidates, ascending
};
struct Layer {
  std::vector<Head> heads;
  uint32_t prompt_end = 0;  // hashed by the first build: forgotten, all is built anew
  uint32_t hashed_end = 0;  // candidates from here on are attended as they are
  uint32_t votes_begin = 0, votes_end = 0;  // the prompt that votes
  std::vector<float> votes;                 // [kv head][votes_end] until the prompt's end
};
struct State {
  std::vector<Layer> layers;
};

// First candidate that is not before `token`.
uint64_t place_of(const sdk::Candidates& from, uint32_t token) {
  uint64_t low = 0, high = from.size();
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    from[middle] < token ? low = middle + 1 : high = middle;
  }
  return low;
}
bool contains(const sdk::Candidates& from, uint32_t token) {
  const uint64_t place = place_of(from, token);
  return place < from.size() && from[place] == token;
}

struct Drawn {
  uint32_t token;
  float log_weight;
};

class MagicPig : public sdk::Sequences<State> {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe(
      {.kind = KVASIR_KIND_SELECTOR,
       .id = "kvasir.magicpig",
       .version = "0.1.0",
       .name = "MagicPIG",
       .vendor = "Kvasir",
       .license = "Apache-2.0",
       .summary = "Draws tokens by hashing, with weights that make attention unbiased.",
       .options = kOptions,
       .caps = KVASIR_CAP_OPAQUE_STATE,
       .needs = KVASIR_NEED_KEYS | KVASIR_NEED_HEAD_LOG_WEIGHT | KVASIR_NEED_TOKEN_ROWS |
                KVASIR_NEED_MASS,
       .dtypes = sdk::kKeyTypes});

  MagicPig(const sdk::Host& host, const sdk::Options& options)
      : host_(host),
        n_bits_(options.u32("K")),
        n_tables_(options.u32("L")),
        budget_(options.delivered("budget_tokens") ? options.u32("budget_tokens") : 0),
        layout_(static_cast<TableLayout>(options.choice("table_layout"))),
        static_tokens_(options.choice("static") == 0 ? 0 : options.u32("static_tokens")),
        static_queries_(options.u32("static_queries")),
        kernel_(options.u32("static_kernel_size")) {
    if (options.delivered("seed")) seed_ = static_cast<uint64_t>(options.i64("seed"));
    if (kernel_ % 2 == 0) {
      sdk::fail_invalid("static_kernel_size = " + std::to_string(kernel_) +
                        " is even: a token stands in the middle of its neighbours, use " +
                        std::to_string(kernel_ + 1));
    }
  }

  void validate(const kvasir_geometry& geometry) const {
    const uint64_t exact = uint64_t{static_tokens_} + geometry.block_size;
    if (budget_ != 0 && budget_ < exact) {
      sdk::fail_invalid("budget_tokens = " + std::to_string(budget_) +
                        " leaves nothing to draw: static tokens and one block take up to " +
                        std::to_string(exact) + ", raise it above");
    }
    if (geometry.k_state == KVASIR_K_UNROTATED) {
      sdk::fail_invalid(
          "magicpig hashes keys as attention sees them, after RoPE; another plugin "
          "of this strategy wants them stored before it: use one of the two");
    }
  }

  void bind(const kvasir_geometry& geometry) {
    geometry_ = geometry;
    if (!seed_) seed_ = geometry.seed;
    if (n_bits_ != 0)
      planes_ = std::make_unique<Planes>(*seed_, n_bits_, n_tables_, geometry.head_dim);
    for (const auto& format :
         sdk::Strided(geometry.formats, geometry.n_formats, geometry.format_size)) {
      formats_.push_back(format);
    }
  }

  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_TOKEN;
    out.scope = KVASIR_SCOPE_Q_HEAD;
    out.max_units = budget_;
    out.dense_below_tokens = uint64_t{geometry_.sink_tokens} + geometry_.window_tokens;
    if (static_tokens_ == 0) return;
    out.mass_at = KVASIR_MASS_AT_PREFILL;
    out.mass_level = KVASIR_MASS_TOKEN;
    out.mass_reduce = KVASIR_MASS_SUM_KV_HEAD;
    out.mass_last_queries = static_queries_;
  }

  void layout(kvasir_layout& out) const {  // no slab, only update()
    out.flags = KVASIR_LAYOUT_WANT_PROMPT_END | KVASIR_LAYOUT_WANT_FINAL;
  }

  kvasir_status seq_truncate(std::span<const uint64_t> seqs, std::span<const uint32_t> kv_len);
  void observe(const sdk::Step& step, const kvasir_mass& mass);
  void update(const sdk::Step& step, const sdk::UpdateItems& items);
  void select(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out);

 private:
  using Rows = std::vector<std::pair<uint32_t, const kvasir_lease*>>;  // token, its block

  uint32_t group_size() const { return geometry_.n_q_heads / geometry_.n_kv_heads; }
  Layer& layer_of(uint64_t seq, uint32_t layer) {
    State& state = state_of(seq);
    if (state.layers.empty()) state.layers.resize(geometry_.n_layers);
    Layer& of = state.layers.at(layer);
    if (of.heads.empty()) of.heads.resize(geometry_.n_kv_heads);
    return of;
  }
  // Bytes of one key.
  const std::byte* key(const kvasir_lease& lease, uint32_t kv_head, uint32_t token) const {
    if (!lease.k || lease.format >= formats_.size()) {
      sdk::fail_invalid("the block of token " + std::to_string(token) + " has no keys at hand");
    }
    const kvasir_kv_format& format = formats_[lease.format];
    return sdk::head_keys(lease, format, kv_head) +
           token % geometry_.block_size * format.k_token_stride;
  }
  kernels::ElementType type_of(const kvasir_lease& lease) const {
    return sdk::key_type({nullptr, formats_[lease.format].dtype_k, 0, 0});
  }
  void read_key(const kvasir_lease& lease, uint32_t kv_head, uint32_t token, float* out) const {
    const std::byte* row = key(lease, kv_head, token);
    kernels::convert_to_f32(type_of(lease), row, out, geometry_.head_dim);
  }

  void hash(Layer& layer, const Rows& rows);
  void add_segments(Head& head, const Rows& rows, std::span<const uint16_t> code,
                    std::span<const float> norm) const;
  std::vector<float> mean_of(const Rows& rows, uint32_t kv_head) const;
  void choose_static(Layer& layer, const kvasir_step_row& row) const;
  void draw(const sdk::Step& step, const kvasir_sel_in& in, const sdk::Queries& queries,
            uint32_t list);
  void draw_head(const Head& head, const sdk::Candidates& from, const uint16_t* code,
                 std::vector<Drawn>& out) const;
  void weigh(const Head& head, const kvasir_lease* leases, uint32_t kv_head, const float* q,
             std::vector<Drawn>& drawn) const;
  void thin(uint32_t layer, uint32_t kv_head, uint32_t kv_len, size_t room,
            std::span<std::vector<Drawn>> rows) const;
  uint64_t fingerprint(const sdk::Step& step, const sdk::Queries& queries) const;

  sdk::Host host_;
  uint32_t n_bits_, n_tables_, budget_;
  TableLayout layout_;
  uint32_t static_tokens_, static_queries_, kernel_;
  std::optional<uint64_t> seed_;
  kvasir_geometry geometry_{};
  std::vector<kvasir_kv_format> formats_;
  std::unique_ptr<const Planes> planes_;
  std::vector<std::vector<Drawn>> drawn_;  // of the latest select(): [row][q_head]
  uint64_t drawn_for_ = 0;                 // its fingerprint while the host fetches a larger buffer
};

// ------------------------------------------------------------------ tables

// Tokens of the generation are cut off; a cut inside the prompt changes the mean: all anew.
kvasir_status MagicPig::seq_truncate(std::span<const uint64_t> seqs,
                                     std::span<const uint32_t> kv_len) {
  bool rebuild = false;
  for (size_t i = 0; i < seqs.size(); ++i) {
    for (Layer& layer : state_of(seqs[i]).layers) {
      if (kv_len[i] >= layer.hashed_end) continue;
      if (kv_len[i] < layer.prompt_end) {
        rebuild = true;
        layer = {};
        continue;
      }
      layer.hashed_end = kv_len[i];
      for (Head& head : layer.heads) {
        while (!head.segments.empty() && head.segments.back()->begin() >= kv_len[i]) {
          head.segments.pop_back();
        }
        if (!head.segments.empty() && head.segments.back()->end() > kv_len[i]) {
          head.segments.back() = head.segments.back()->cut(kv_len[i]);
        }
      }
    }
  }
  return rebuild ? KVASIR_REBUILD : KVASIR_OK;
}

// The candidates of the first prompt, or what came after: prompt end, blocks that leave the window,
// and blocks fed again after a cut.
void MagicPig::update(const sdk::Step& step, const sdk::UpdateItems& items) {
  if (n_bits_ == 0) return;
  std::vector<Rows> rows(step.n_rows());
  const bool again = step.raw().moment == KVASIR_D5, decode = step.raw().moment == KVASIR_D4;
  for (const kvasir_update_item& item : items) {
    const kvasir_step_row& row = step.row(item.row);
    const Layer& layer = layer_of(row.seq, step.layer());
    const bool first = layer.hashed_end == 0;
    const bool wanted = item.flags & KVASIR_ITEM_PROMPT_END ||
                        (item.flags & KVASIR_ITEM_FINAL && (decode || !first)) || (again && first);
    if (!wanted) continue;
    const uint32_t begin = item.block * geometry_.block_size;
    const bool final = item.flags & KVASIR_ITEM_FINAL;
    const uint32_t end = std::min(begin + item.n_tokens, final ? UINT32_MAX : row.unit_end);
    for (uint32_t t = std::max({begin, layer.hashed_end, row.unit_begin}); t < end; ++t) {
      rows[item.row].emplace_back(t, item.lease);
    }
  }
  for (uint32_t r = 0; r < step.n_rows(); ++r) {
    Layer& layer = layer_of(step.row(r).seq, step.layer());
    if (step.raw().moment == KVASIR_P4) choose_static(layer, step.row(r));
    if (rows[r].empty()) continue;
    const bool first = layer.hashed_end == 0;
    hash(layer, rows[r]);
    layer.hashed_end = rows[r].back().first + 1;
    if (first) layer.prompt_end = layer.hashed_end;
  }
}

std::vector<float> MagicPig::mean_of(const Rows& rows, uint32_t kv_head) const {
  std::vector<double> sum(geometry_.head_dim);
  std::vector<float> k(geometry_.head_dim);
  for (const auto& [token, lease] : rows) {
    read_key(*lease, kv_head, token, k.data());
    for (uint32_t d = 0; d < geometry_.head_dim; ++d) sum[d] += k[d];
  }
  for (uint32_t d = 0; d < geometry_.head_dim; ++d) {
    k[d] = static_cast<float>(sum[d] / static_cast<double>(rows.size()));
  }
  return k;
}

void MagicPig::hash(Layer& layer, const Rows& rows) {
  const uint32_t dim = geometry_.head_dim;
  host_.parallel_for(geometry_.n_kv_heads, 1, [&](uint64_t begin, uint64_t end, uint32_t) {
    for (auto kv_head = static_cast<uint32_t>(begin); kv_head < end; ++kv_head) {
      auto& mean = layer.heads[kv_head].mean;
      if (!mean) mean = std::make_shared<const std::vector<float>>(mean_of(rows, kv_head));
    }
  });
  std::vector<uint16_t> code(rows.size() * n_tables_);
  std::vector<float> norm(rows.size());
  for (uint32_t kv_head = 0; kv_head < geometry_.n_kv_heads; ++kv_head) {
    const std::vector<float>& mean = *layer.heads[kv_head].mean;
    host_.parallel_for(rows.size(), kHashChunk, [&](uint64_t begin, uint64_t end, uint32_t) {
      std::vector<float> centred((end - begin) * dim), work;
      for (uint64_t i = begin; i < end; ++i) {
        float* k = centred.data() + (i - begin) * dim;
        read_key(*rows[i].second, kv_head, rows[i].first, k);
        double square = 0.0;
        for (uint32_t d = 0; d < dim; ++d) {
          k[d] -= mean[d];
          square += double{k[d]} * k[d];
        }
        norm[i] = static_cast<float>(std::sqrt(square));
      }
      planes_->codes(centred.data(), dim, end - begin, code.data() + begin * n_tables_, work);
    });
    add_segments(layer.heads[kv_head], rows, code, norm);
  }
}

// New segments behind the old ones; while the last is not larger than what follows it the two
// become one, so that there are few however long the generation is.
void MagicPig::add_segments(Head& head, const Rows& rows, std::span<const uint16_t> code,
                            std::span<const float> norm) const {
  std::vector<uint32_t> tokens;
  for (const auto& row : rows) tokens.push_back(row.first);
  const uint64_t limit = max_segment_tokens(layout_);
  for (size_t begin = 0, end; begin < tokens.size(); begin = end) {
    end = begin;
    while (end < tokens.size() && tokens[end] - tokens[begin] < limit) ++end;
    const size_t n = end - begin;
    head.segments.push_back(std::make_shared<const Segment>(
        layout_, n_bits_, n_tables_, std::span(tokens).subspan(begin, n),
        code.subspan(begin * n_tables_, n * n_tables_), norm.subspan(begin, n)));
    while (head.segments.size() > 1) {
      const Segment& last = *head.segments.back();
      const Segment& before = *head.segments[head.segments.size() - 2];
      if (before.end() - before.begin() > last.end() - last.begin() ||
          last.end() - before.begin() > limit) {
        break;
      }
      auto joined = before.joined(last);
      head.segments.pop_back();
      head.segments.back() = std::move(joined);
    }
  }
}

// ------------------------------------------------------------------ static tokens

void MagicPig::observe(const sdk::Step& step, const kvasir_mass& mass) {
  const uint32_t n_heads = geometry_.n_kv_heads;
  sdk::check_mass(mass, step.n_rows() * n_heads);
  for (uint32_t r = 0; r < step.n_rows(); ++r) {
    const kvasir_step_row& row = step.row(r);
    Layer& layer = layer_of(row.seq, step.layer());
    if (layer.votes.empty() || layer.votes_begin != row.prompt_begin ||
        layer.votes_end != row.prompt_end) {
      layer.votes.assign(uint64_t{n_heads} * row.prompt_end, 0.0f);
      layer.votes_begin = row.prompt_begin;
      layer.votes_end = row.prompt_end;
    }
    for (uint32_t head = 0; head < n_heads; ++head) {
      float* to = layer.votes.data() + uint64_t{head} * row.prompt_end;
      sdk::for_each_mass(mass, uint64_t{r} * n_heads + head, [&](uint32_t token, float value) {
        if (token < row.prompt_end) to[token] += value;
      });
    }
  }
}

// The candidates with the most mass, averaged over neighbours (SnapKV, arXiv:2404.14469).
void MagicPig::choose_static(Layer& layer, const kvasir_step_row& row) const {
  if (static_tokens_ == 0 || layer.votes.empty()) return;
  const uint32_t end = std::min(row.unit_end, layer.votes_end);
  const uint32_t begin = std::min(row.unit_begin, end), n = end - begin;
  std::vector<float> pooled(end);
  std::vector<uint64_t> scratch(kernels::top_k_scratch_bytes(n) / sizeof(uint64_t) + 1);
  for (uint32_t head = 0; head < geometry_.n_kv_heads; ++head) {
    sdk::pool(sdk::Pooling::kAverage, layer.votes.data() + uint64_t{head} * layer.votes_end, end,
              kernel_, pooled.data());
    auto& fixed = layer.heads[head].fixed;
    fixed.resize(std::min(n, static_tokens_));
    kernels::top_k(pooled.data() + begin, n, fixed.size(), fixed.data(), scratch.data());
    for (uint32_t& token : fixed) token += begin;
  }
  layer.votes = {};
}

// ------------------------------------------------------------------ drawing

void MagicPig::select(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out) {
  const uint32_t n_rows = step.n_rows() * geometry_.n_q_heads;
  if (n_bits_ == 0) {
    return sdk::flag_rows(out, KVASIR_SCOPE_Q_HEAD, n_rows, KVASIR_ROW_ALL);
  }
  const sdk::Queries queries(in.q, geometry_.n_q_heads, geometry_.head_dim);
  const uint64_t wanted = fingerprint(step, queries);
  if (drawn_for_ != wanted) {
    drawn_.assign(n_rows, {});
    for (uint32_t r = 0; r < step.n_rows(); ++r) layer_of(step.row(r).seq, step.layer());
    host_.parallel_for(uint64_t{step.n_rows()} * geometry_.n_kv_heads, 1,
                       [&](uint64_t begin, uint64_t end, uint32_t) {
                         for (auto i = static_cast<uint32_t>(begin); i < end; ++i) {
                           draw(step, in, queries, i);
                         }
                       });
  }
  drawn_for_ = wanted;  // when the buffer is too small, the next call finds the same draw
  sdk::lay_out_rows(out, KVASIR_SCOPE_Q_HEAD, n_rows, [&](uint32_t i) { return drawn_[i].size(); });
  drawn_for_ = 0;
  out.weight_width = 1;
  for (uint32_t i = 0; i < n_rows; ++i) {
    uint64_t at = out.row_offsets[i];
    for (const Drawn& d : drawn_[i]) {
      out.index[at] = d.token;
      out.log_weight[at++] = d.log_weight;
    }
  }
}

uint64_t MagicPig::fingerprint(const sdk::Step& step, const sdk::Queries& queries) const {
  uint64_t sum = mix(step.layer() + 1);
  for (uint32_t r = 0; r < step.n_rows(); ++r) {
    const kvasir_step_row& row = step.row(r);
    const uint64_t numbers[] = {row.seq, row.kv_len, row.unit_begin, row.unit_end};
    sum = XXH3_64bits_withSeed(numbers, sizeof numbers, sum);
    sum = XXH3_64bits_withSeed(queries.head(row.q_begin, 0),
                               uint64_t{geometry_.n_q_heads} * geometry_.head_dim * sizeof(float),
                               sum);
  }
  return sum | 1;  // never 0
}

// The rows of one sequence and kv head: what each query head draws, then, in every row, what is
// attended for certain.
void MagicPig::draw(const sdk::Step& step, const kvasir_sel_in& in, const sdk::Queries& queries,
                    uint32_t list) {
  const uint32_t r = list / geometry_.n_kv_heads, kv_head = list % geometry_.n_kv_heads;
  const uint32_t group = group_size();
  const kvasir_step_row& row = step.row(r);
  const Layer& layer = state_of(row.seq).layers[step.layer()];
  const Head& head = layer.heads[kv_head];
  const sdk::Candidates from = step.candidates(r, kv_head);
  std::vector<Drawn> certain;  // static, or not hashed yet
  for (const uint32_t token : head.fixed) {
    if (contains(from, token)) certain.push_back({token, 0.0f});
  }
  const uint32_t known = certain.empty() ? 0 : certain.back().token + 1;
  for (uint64_t i = place_of(from, std::max(layer.hashed_end, known)); i < from.size(); ++i) {
    certain.push_back({from[i], 0.0f});
  }
  const std::span rows(drawn_.data() + uint64_t{r} * geometry_.n_q_heads + kv_head * group, group);
  const float* q = queries.head(row.q_begin, kv_head * group);
  if (head.mean) {
    std::vector<uint16_t> code(uint64_t{group} * n_tables_);
    std::vector<float> work;
    planes_->codes(q, geometry_.head_dim, group, code.data(), work);
    for (uint32_t g = 0; g < group; ++g) {
      draw_head(head, from, code.data() + uint64_t{g} * n_tables_, rows[g]);
      weigh(head, in.leases + in.lease_offsets[r], kv_head, q + uint64_t{g} * geometry_.head_dim,
            rows[g]);
    }
    if (budget_ > certain.size()) {
      thin(step.layer(), kv_head, row.kv_len, budget_ - certain.size(), rows);
    }
  }
  for (std::vector<Drawn>& drawn : rows) {
    const auto middle = static_cast<ptrdiff_t>(drawn.size());
    drawn.insert(drawn.end(), certain.begin(), certain.end());
    std::inplace_merge(drawn.begin(), drawn.begin() + middle, drawn.end(),
                       [](const Drawn& a, const Drawn& b) { return a.token < b.token; });
  }
  // A window that hands over many tokens at once: they are more than the budget for one step.
  if (budget_ != 0 && budget_ <= certain.size()) {
    thin(step.layer(), kv_head, row.kv_len, budget_, rows);
  }
}

// Candidates that agree with the query in two tables at least, static ones left out.
void MagicPig::draw_head(const Head& head, const sdk::Candidates& from, const uint16_t* code,
                         std::vector<Drawn>& out) const {
  constexpr uint64_t kTwo = 0x0202020202020202;  // a byte that reached 2, of 8 at once
  std::vector<uint8_t> hits;
  for (const auto& segment : head.segments) {
    const uint32_t n = segment->end() - segment->begin();
    hits.assign((n + 7) / 8 * 8, 0);
    segment->count(code, hits.data());
    for (uint32_t at = 0; at < n; at += 8) {
      uint64_t eight;
      std::memcpy(&eight, hits.data() + at, sizeof eight);
      if (!(eight & kTwo)) continue;
      for (uint32_t id = at; id < at + 8; ++id) {
        const uint32_t token = segment->begin() + id;
        if (hits[id] < 2 || !contains(from, token)) continue;
        if (std::binary_search(head.fixed.begin(), head.fixed.end(), token)) continue;
        out.push_back({token, 0.0f});
      }
    }
  }
}

// log_weight = -ln(u + 1e-4), u from the exact cosine of query and centred key. Keys are gathered,
// so that one kernel call takes all of them.
void MagicPig::weigh(const Head& head, const kvasir_lease* leases, uint32_t kv_head, const float* q,
                     std::vector<Drawn>& drawn) const {
  const uint32_t dim = geometry_.head_dim;
  if (drawn.empty()) return;
  double square = 0.0, q_mean = 0.0;
  for (uint32_t d = 0; d < dim; ++d) {
    square += double{q[d]} * q[d];
    q_mean += double{q[d]} * (*head.mean)[d];
  }
  const kernels::ElementType type = type_of(leases[drawn[0].token / geometry_.block_size]);
  const uint64_t row_bytes = dim * kernels::element_bytes(type);
  std::vector<std::byte> rows(drawn.size() * row_bytes);
  for (size_t i = 0; i < drawn.size(); ++i) {
    const std::byte* k =
        key(leases[drawn[i].token / geometry_.block_size], kv_head, drawn[i].token);
    std::copy_n(k, row_bytes, rows.data() + i * row_bytes);
  }
  std::vector<float> dots(drawn.size());
  const sdk::Scratch<float> scratch(sdk::Host(nullptr, kDesc.id), 0,
                                    kernels::score_scratch_bytes(1, dim) / sizeof(float));
  kernels::score_dot(q, 1, {rows.data(), row_bytes, drawn.size(), dim, type}, dots.data(),
                     drawn.size(), scratch.data());
  auto segment = head.segments.begin();
  for (size_t i = 0; i < drawn.size(); ++i) {
    while (drawn[i].token >= (*segment)->end()) ++segment;
    const double length = std::sqrt(square) * (*segment)->norm(drawn[i].token);
    const double cosine = length > 0.0 ? (dots[i] - q_mean) / length : 0.0;
    const double u = draw_probability(cosine, n_bits_, n_tables_);
    drawn[i].log_weight = static_cast<float>(-std::log(u + kFloor));
  }
}

// More were drawn for the group than there is room: of the M tokens the `room` with the smallest
// random number stay, each with probability room / M, and weigh M / room times as much.
void MagicPig::thin(uint32_t layer, uint32_t kv_head, uint32_t kv_len, size_t room,
                    std::span<std::vector<Drawn>> rows) const {
  std::vector<uint32_t> tokens;
  for (const auto& row : rows) {
    for (const Drawn& d : row) tokens.push_back(d.token);
  }
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  if (tokens.size() <= room) return;
  const uint64_t salt =
      mix(mix(*seed_ ^ (uint64_t{layer} << 40 | uint64_t{kv_head} << 32 | kv_len)));
  const auto lot = [&](uint32_t token) { return mix(salt + token * uint64_t{0x9e3779b97f4a7c15}); };
  auto kept = tokens;
  std::nth_element(kept.begin(), kept.begin() + static_cast<ptrdiff_t>(room), kept.end(),
                   [&](uint32_t a, uint32_t b) { return lot(a) < lot(b); });
  kept.resize(room);
  std::sort(kept.begin(), kept.end());
  const auto more =
      static_cast<float>(std::log(static_cast<double>(tokens.size()) / static_cast<double>(room)));
  for (auto& row : rows) {
    std::erase_if(row, [&](const Drawn& d) {
      return !std::binary_search(kept.begin(), kept.end(), d.token);
    });
    for (Drawn& d : row) d.log_weight += more;
  }
}

}  // namespace

KVASIR_PLUGIN_NOTE(KVASIR_KIND_BIT(KVASIR_KIND_SELECTOR), "kvasir.magicpig\0", "0.1.0");

kvasir_status kvasir_plugin_entry(const kvasir_host* host, kvasir_request* request,
                                  kvasir_err* err) noexcept {
  return sdk::entry<MagicPig>(host, request, err);
}
