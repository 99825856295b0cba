// A backend that writes down what it attends to (recording.h), and computes as `inner` does.
// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "plugins/shared/vector_records.h"
#include "tests/plugins/fakes/fake.h"
#include "tests/plugins/fakes/inner_backend.h"
#include "tests/plugins/fakes/recording.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr kvasir_option_schema kOptions[] = {sdk::option(
    KVASIR_OPTION_PATH, {.key = "inner", .help = "who computes", .flags = KVASIR_OPTION_OPTIONAL},
    {KVASIR_OPTION_PATH, 0, 0, 0.0, "", nullptr})};

class RecordingAttention : public InnerBackend {
 public:
  static constexpr kvasir_desc kDesc =
      fake_desc(KVASIR_KIND_ATTENTION, "kvasir.test.recording_attention", kOptions,
                {.provides = KVASIR_PROVIDE_MASS | KVASIR_PROVIDE_LOG_WEIGHT |
                             KVASIR_PROVIDE_HEAD_LOG_WEIGHT | KVASIR_PROVIDE_TOKEN_ITEMS |
                             KVASIR_PROVIDE_DISTANCE});

  RecordingAttention(const sdk::Host& host, const sdk::Options& options)
      : InnerBackend(host.raw(), options.delivered("inner") ? options.path("inner") : "") {}
  const void* get_extension(const char* id) {
    return std::string_view(id) == kRecordingExtension ? &book_ : nullptr;
  }

  void run(const sdk::Step& step, const kvasir_attn_in& in, kvasir_attn_out& out) {
    InnerBackend::run(step, in, out);
    if (book_.armed == 0) return;
    RecordedRun& run = book_.runs.emplace_back();
    run.layer = step.layer(), run.moment = step.moment();
    run.in_prefill = step.phase() == KVASIR_PHASE_PREFILL;
    std::map<uint64_t, const kvasir_attn_part*> serving;  // one part of each sequence
    for (const auto& part : sdk::Strided(in.parts, in.n_parts, in.part_size))
      for (const auto& range : sdk::Strided(part.ranges, part.n_ranges, part.range_size)) {
        run.ranges.push_back(spread(step, part, range));
        serving.emplace(run.ranges.back().seq, &part);
      }
    if (book_.armed == 1) return;
    const kvasir_view& q = in.parts->q;
    for (uint64_t i = 0; i < q.shape[0]; ++i) {
      const auto* query = reinterpret_cast<const float*>(static_cast<const char*>(q.data) +
                                                         static_cast<int64_t>(i) * q.stride[0]);
      run.q.insert(run.q.end(), query, query + q.shape[1] * q.shape[2]);
    }
    for (uint32_t s = 0; s < step.n_seqs(); ++s) {
      run.k.emplace_back(size_t{g_.n_kv_heads} * step.seq(s).kv_len * g_.head_dim);
      if (const auto found = serving.find(step.seq(s).id); found != serving.end())
        copy_keys(*found->second, step.seq(s).kv_len, run.k.back().data());
    }
  }

 private:
  // A range's items as single tokens.
  RecordedRange spread(const sdk::Step& step, const kvasir_attn_part& part,
                       const kvasir_attn_range& range) const {
    RecordedRange out{0, 0, range.kv_head, range.n_q, part.dist_min, part.dist_max, 0, {}, {}};
    if (part.log_weight) out.weight_width = part.weight_width;
    for (uint32_t s = 0; s < step.n_seqs(); ++s)
      if (range.q_begin - step.seq(s).q_begin < step.seq(s).n_q)
        out.seq = step.seq(s).id, out.kv_len = step.seq(s).kv_len;
    const bool is_token = part.unit == KVASIR_UNIT_TOKEN;
    for (uint64_t at = range.item_begin; at < range.item_end; ++at) {
      const uint64_t item = part.items ? part.items[at] : at;
      const kvasir_lease& lease = lease_of(part, is_token ? item / g_.block_size : item);
      const auto first = is_token ? static_cast<uint32_t>(item % g_.block_size) : 0;
      for (uint32_t t = first; t < (is_token ? first + 1 : lease.n_tokens); ++t) {
        out.token.push_back(lease.token_pos ? lease.token_pos[t] : lease.pos_begin + t);
        for (uint32_t w = 0; w < out.weight_width; ++w)
          out.weight.push_back(part.log_weight[at * out.weight_width + w]);
      }
    }
    return out;
  }
  void copy_keys(const kvasir_attn_part& part, uint32_t kv_len, float* to) const {
    for (uint32_t i = 0; i < g_.n_kv_heads * kv_len; ++i, to += g_.head_dim) {
      const uint32_t token = i % kv_len;
      const kvasir_lease& lease = lease_of(part, token / g_.block_size);
      if (!lease.k) continue;
      const kvasir_kv_format& f = g_.formats[lease.format];
      const std::byte* k =
          sdk::head_keys(lease, f, i / kv_len) + token % g_.block_size * f.k_token_stride;
      const auto type = sdk::element_type(f.dtype_k);
      kernels::convert_to_f32(type, k, to, g_.head_dim);
    }
  }
  static const kvasir_lease& lease_of(const kvasir_attn_part& part, uint64_t i) {
    return sdk::Strided(part.leases, part.n_leases, part.lease_size)[i];
  }
  Recording book_;
};
}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_ATTENTION, "kvasir.test.recording_attention", "0.1.0",
                  RecordingAttention)
