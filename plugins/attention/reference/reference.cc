// Attention in double precision, one key after the other: what every other backend is compared
// with. It shares nothing with kvasir.cpu but the formula.
//   logit = softcap(softmax_scale * q.k) + log_weight
//   lse = ln sum exp(logit),  o = sum exp(logit - lse) v,  mass = exp(logit - lse)
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/plugin.h>
#include <kvasir/sdk/view.h>

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "kernels/reference/attention.h"
#include "plugins/shared/element_type.h"

namespace {
using namespace kvasir;
using Parts = sdk::Strided<const kvasir_attn_part>;
using Ranges = sdk::Strided<const kvasir_attn_range>;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// One key of a range and its value.
struct Key {
  const void* k;
  const void* v;
  kernels::ElementType k_type, v_type;
  uint32_t pos;
  const float* log_weight;  // of its item, or null
};

class Reference {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe(
      {.kind = KVASIR_KIND_ATTENTION,
       .id = "kvasir.reference",
       .version = "0.1.0",
       .name = "Reference attention",
       .vendor = "Kvasir",
       .license = "Apache-2.0",
       .summary = "Attention in double precision, slow: the oracle of the other backends.",
       .provides = KVASIR_PROVIDE_MASS | KVASIR_PROVIDE_LOG_WEIGHT |
                   KVASIR_PROVIDE_HEAD_LOG_WEIGHT | KVASIR_PROVIDE_TOKEN_ITEMS |
                   KVASIR_PROVIDE_DISTANCE,
       .dtypes = sdk::kElementTypes});

  Reference(const sdk::Host& host, const sdk::Options&) : host_(host) {}

  void bind(const kvasir_geometry& geometry) {
    geometry_ = geometry;
    formats_.clear();
    const sdk::Strided<const kvasir_kv_format> formats(geometry.formats, geometry.n_formats,
                                                       geometry.format_size);
    for (const kvasir_kv_format& format : formats) formats_.push_back(format);
    if (geometry.n_kv_heads == 0 || geometry.n_q_heads % geometry.n_kv_heads != 0) {
      sdk::fail_invalid("n_kv_heads must divide n_q_heads");
    }
  }

  void plan(const kvasir_attn_shape&, kvasir_attn_plan& out) { out.scratch_bytes = 0; }

  void run(const sdk::Step&, const kvasir_attn_in& in, kvasir_attn_out& views) {
    const Out out{sdk::floats(views.o, "o"), sdk::floats(views.lse, "lse")};
    check(in);
    host_.parallel_for(geometry_.n_kv_heads, 1, [&](uint64_t begin, uint64_t end, uint32_t) {
      for (auto head = static_cast<uint32_t>(begin); head < end; ++head) run_head(head, in, out);
    });
  }

  void mass(const sdk::Step&, const kvasir_attn_in& in, const kvasir_attn_mass& out) {
    check(in);
    float* const value = sdk::floats(out.value, "mass");
    const float* const lse = sdk::floats(out.lse, "lse");
    uint64_t range_index = 0;
    for (const kvasir_attn_part& part : Parts(in.parts, in.n_parts, in.part_size)) {
      for (const kvasir_attn_range& range : Ranges(part.ranges, part.n_ranges, part.range_size)) {
        const uint64_t first = out.range_offsets[range_index];
        const uint64_t n = out.range_offsets[++range_index] - first;
        mass_range(part, range, n, out.width, lse, value + first * out.width);
      }
    }
  }

 private:
  struct Out {
    float* o;    // [queries][n_q_heads][v_dim]
    float* lse;  // [queries][n_q_heads]
  };

  static void check(const kvasir_attn_in& in) {
    for (const kvasir_attn_part& part : Parts(in.parts, in.n_parts, in.part_size)) {
      if (part.q.mem_kind > KVASIR_MEM_PINNED)
        sdk::fail_invalid("q lies in memory that this plugin cannot read or write");
      sdk::positions(part.q_pos, "q_pos");
    }
  }

  uint32_t group_size() const { return geometry_.n_q_heads / geometry_.n_kv_heads; }

  // ---- the keys of a range, one by one, in the order mass() numbers them ----

  const kvasir_lease& lease(const kvasir_attn_part& part, uint64_t ordinal) const {
    if (ordinal >= part.n_leases) sdk::fail_invalid("an item names a lease that does not exist");
    const sdk::Strided<const kvasir_lease> leases(part.leases, part.n_leases, part.lease_size);
    const kvasir_lease& found = leases[ordinal];
    const bool is_held =
        found.state == KVASIR_LEASE_RESIDENT || found.state == KVASIR_LEASE_PARTIAL;
    if (!is_held || !found.k || !found.v) {
      sdk::fail_invalid("a lease to be attended is not resident: acquire or prefetch it first");
    }
    if (found.format >= formats_.size()) sdk::fail_invalid("a lease names an unknown format");
    return found;
  }

  Key key(const kvasir_attn_part& part, uint32_t kv_head, uint64_t item, uint64_t ordinal,
          uint64_t token) const {
    const kvasir_lease& from = lease(part, ordinal);
    if (token >= from.n_tokens) sdk::fail_invalid("an item names a token its block does not have");
    const kvasir_kv_format& f = formats_[from.format];
    const uint64_t head = from.kv_head == KVASIR_ALL_HEADS ? kv_head : 0;
    Key out{};
    out.k = static_cast<const char*>(from.k) + head * f.k_head_stride + token * f.k_token_stride;
    out.v = static_cast<const char*>(from.v) + head * f.v_head_stride + token * f.v_token_stride;
    out.k_type = sdk::element_type(f.dtype_k);
    out.v_type = sdk::element_type(f.dtype_v);
    out.pos =
        from.token_pos ? from.token_pos[token] : from.pos_begin + static_cast<uint32_t>(token);
    out.log_weight = part.log_weight ? part.log_weight + item * part.weight_width : nullptr;
    return out;
  }

  std::vector<Key> keys(const kvasir_attn_part& part, const kvasir_attn_range& range) const {
    std::vector<Key> out;
    for (uint64_t i = range.item_begin; i < range.item_end; ++i) {
      const uint64_t item = part.items ? part.items[i] : i;
      if (part.unit == KVASIR_UNIT_TOKEN) {
        out.push_back(
            key(part, range.kv_head, i, item / geometry_.block_size, item % geometry_.block_size));
        continue;
      }
      const uint32_t n = lease(part, item).n_tokens;
      for (uint32_t t = 0; t < n; ++t) out.push_back(key(part, range.kv_head, i, item, t));
    }
    return out;
  }

  // ---- the query heads of a group against the keys ----

  static bool sees(const kvasir_attn_part& part, uint32_t query, const Key& key) {
    const int64_t distance =
        int64_t{static_cast<const uint32_t*>(part.q_pos.data)[query]} - int64_t{key.pos};
    if (distance < 0 || distance < int64_t{part.dist_min}) return false;
    return part.dist_max == UINT32_MAX || distance < int64_t{part.dist_max};
  }

  const float* query_head(const kvasir_attn_part& part, uint32_t query, uint32_t q_head) const {
    return reinterpret_cast<const float*>(static_cast<const char*>(part.q.data) +
                                          query * part.q.stride[0] + q_head * part.q.stride[1]);
  }

  // Of a key and each query head of its group, -inf where it is hidden.   [key][group_size]
  // A row is read as doubles once for the group: that took most of the time.
  std::vector<double> logits(const kvasir_attn_part& part, uint32_t query, uint32_t kv_head,
                             const std::vector<Key>& keys) const {
    const size_t head_dim = geometry_.head_dim, group = group_size();
    std::vector<double> q, k(head_dim), out(keys.size() * group, kMinusInfinity);
    for (uint32_t g = 0; g < group; ++g) {
      const float* of = query_head(part, query, kv_head * group_size() + g);
      q.insert(q.end(), of, of + head_dim);
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      const Key& key = keys[i];
      if (!sees(part, query, key)) continue;
      kernels::reference::elements(key.k, head_dim, key.k_type, k.data());
      for (size_t g = 0; g < group; ++g) {
        double dot = 0;
        for (size_t d = 0; d < head_dim; ++d) dot += q[g * head_dim + d] * k[d];
        double& x = out[i * group + g];
        x = double{geometry_.softmax_scale} * dot;
        const double cap = geometry_.softcap;
        if (cap != 0) x = cap * std::tanh(x / cap);
        if (key.log_weight) x += key.log_weight[part.weight_width == 1 ? 0 : g];
      }
    }
    return out;
  }

  // ---- run ----

  struct State {  // of one (query, query head), over all parts
    double lse = kMinusInfinity;
    std::vector<double> o;
    bool named = false;
  };

  // One part for the query heads of a group: (o, lse) in two passes.
  std::vector<State> attend(const kvasir_attn_part& part, uint32_t query, uint32_t kv_head,
                            const std::vector<Key>& keys) const {
    const size_t v_dim = geometry_.v_dim, group = group_size();
    std::vector<State> states(group);
    std::vector<double> p = logits(part, query, kv_head, keys), v(v_dim);
    for (size_t g = 0; g < group; ++g) {
      states[g].o.assign(v_dim, 0.0);
      to_probabilities(p, g, states[g]);
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!sees(part, query, keys[i])) continue;
      kernels::reference::elements(keys[i].v, v_dim, keys[i].v_type, v.data());
      for (size_t g = 0; g < group; ++g) {
        const double weight = p[i * group + g];
        if (weight == kMinusInfinity) continue;
        for (size_t d = 0; d < v_dim; ++d) states[g].o[d] += weight * v[d];
      }
    }
    return states;
  }

  // Column g from logits, those of -inf left as they are, and their lse.
  void to_probabilities(std::vector<double>& x, size_t g, State& state) const {
    double high = kMinusInfinity;
    for (size_t i = g; i < x.size(); i += group_size())
      if (!std::isnan(high)) high = std::isnan(x[i]) ? x[i] : std::max(high, x[i]);
    if (high == kMinusInfinity) return;
    double sum = 0;
    for (size_t i = g; i < x.size(); i += group_size()) {
      if (x[i] == kMinusInfinity) continue;
      x[i] = std::exp(x[i] - high);
      sum += x[i];
    }
    state.lse = high + std::log(sum);
    for (size_t i = g; i < x.size(); i += group_size())
      if (x[i] != kMinusInfinity) x[i] /= sum;
  }

  void run_head(uint32_t kv_head, const kvasir_attn_in& in, const Out& out) const {
    std::vector<State> states;  // [query][head of the group]
    for (const kvasir_attn_part& part : Parts(in.parts, in.n_parts, in.part_size)) {
      for (const kvasir_attn_range& range : Ranges(part.ranges, part.n_ranges, part.range_size)) {
        if (range.kv_head != kv_head) continue;
        states.resize(std::max(states.size(), (size_t{range.q_begin} + range.n_q) * group_size()));
        add_range(part, range, states);
      }
    }
    for (size_t i = 0; i < states.size(); ++i) {
      if (states[i].named) store(states[i], i, kv_head, out);
    }
  }

  void add_range(const kvasir_attn_part& part, const kvasir_attn_range& range,
                 std::vector<State>& states) const {
    const std::vector<Key> range_keys = keys(part, range);
    for (uint32_t query = range.q_begin; query < range.q_begin + range.n_q; ++query) {
      std::vector<State> more = attend(part, query, range.kv_head, range_keys);
      for (uint32_t g = 0; g < group_size(); ++g) {
        State& state = states[size_t{query} * group_size() + g];
        if (state.named) {
          kernels::reference::merge_attention(state.o.data(), &state.lse, more[g].o.data(),
                                              more[g].lse, geometry_.v_dim);
        } else {
          state = std::move(more[g]);
          state.named = true;
        }
      }
    }
  }

  void store(const State& state, size_t index, uint32_t kv_head, const Out& out) const {
    const size_t query = index / group_size();
    const size_t q_head = size_t{kv_head} * group_size() + index % group_size();
    const size_t at = query * geometry_.n_q_heads + q_head;
    for (uint32_t d = 0; d < geometry_.v_dim; ++d) {
      out.o[at * geometry_.v_dim + d] = static_cast<float>(state.o[d]);
    }
    out.lse[at] = static_cast<float>(state.lse);
  }

  // ---- mass ----

  void mass_range(const kvasir_attn_part& part, const kvasir_attn_range& range, uint64_t n,
                  uint32_t width, const float* all_lse, float* value) const {
    const std::vector<Key> range_keys = keys(part, range);
    if (range_keys.size() != n)
      sdk::fail_invalid("mass: range_offsets do not fit the keys of a range");
    std::vector<double> sum(n * width, 0.0);
    for (uint32_t query = range.q_begin; query < range.q_begin + range.n_q; ++query) {
      const std::vector<double> x = logits(part, query, range.kv_head, range_keys);
      for (uint32_t g = 0; g < group_size(); ++g) {
        const uint32_t q_head = range.kv_head * group_size() + g;
        const double lse = all_lse[size_t{query} * geometry_.n_q_heads + q_head];
        if (lse == kMinusInfinity) continue;
        for (size_t k = 0; k < n; ++k)
          sum[k * width + (width == 1 ? 0 : g)] += std::exp(x[k * group_size() + g] - lse);
      }
    }
    for (size_t i = 0; i < sum.size(); ++i) value[i] = static_cast<float>(sum[i]);
  }

  sdk::Host host_;
  kvasir_geometry geometry_{};
  std::vector<kvasir_kv_format> formats_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_ATTENTION, "kvasir.reference", "0.1.0", Reference)
