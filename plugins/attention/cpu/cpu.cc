// Attention on the CPU: SIMD kernels over the blocks where they lie, shared out to the host's pool.
// Partial results carry (o, lse) and merge exactly; arXiv:2205.14135, arXiv:1805.02867.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/plugin.h>
#include <kvasir/sdk/view.h>

#include <algorithm>
#include <array>
#include <memory>

#include "kernels/attention_decode.h"
#include "kernels/attention_mass.h"
#include "kernels/attention_prefill.h"
#include "kernels/attention_prefill_bf16.h"
#include "kernels/attention_state.h"
#include "kernels/simd_target.h"
#include "plugins/attention/cpu/key_rows.h"
#include "plugins/attention/cpu/node_queues.h"
#include "plugins/attention/cpu/tasks.h"
#include "plugins/shared/element_type.h"
#include "plugins/shared/placement.h"

namespace {
using namespace kvasir;
using attention::Geometry;
using attention::KeyRows;
using attention::Merge;
using attention::Task;

constexpr uint64_t kAlignment = 64;

constexpr const char* kArithmetic[] = {"auto", "f32"};
constexpr std::array kOptions = {
    sdk::enum_option(
        {.key = "arithmetic",
         .help = "without --compute f32: prompts in bf16 over K and V in f16 or bf16, decoded "
                 "tokens in integers over q8_0 and q4_0 (auto), or f32 always"},
        kArithmetic, 0),
};

class Cpu {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe(
      {.kind = KVASIR_KIND_ATTENTION,
       .id = "kvasir.cpu",
       .version = "0.1.0",
       .name = "CPU attention",
       .vendor = "Kvasir",
       .license = "Apache-2.0",
       .summary =
           "SIMD attention over f32, f16, bf16, q8_0, q4_0 and fp8_e4m3 blocks, AVX-512 and AVX2.",
       .options = kOptions,
       .provides = KVASIR_PROVIDE_MASS | KVASIR_PROVIDE_LOG_WEIGHT |
                   KVASIR_PROVIDE_HEAD_LOG_WEIGHT | KVASIR_PROVIDE_TOKEN_ITEMS |
                   KVASIR_PROVIDE_DISTANCE,
       .dtypes = sdk::kElementTypes});

  Cpu(const sdk::Host& host, const sdk::Options& options)
      : host_(host), follows_model_(options.choice("arithmetic") == 0) {}

  void bind(const kvasir_geometry& geometry) {
    geometry_ = std::make_unique<Geometry>(geometry);
    rounds_ = follows_model_ && geometry.may_round != 0;
    rounds_prompts_ = rounds_ && kernels::bf16_is_faster();
    in_tiles_ = kernels::uses_bf16_tiles();
    placement_ = std::make_unique<sdk::HeadPlacement>(host_, geometry_->n_kv_heads);
    queues_ = std::make_unique<attention::NodeQueues>(std::max(1u, placement_->n_nodes()));
    planner_ = std::make_unique<attention::TaskPlanner>(*geometry_, host_.max_workers(),
                                                        placement_->n_nodes() > 1);
    workers_.resize(host_.max_workers());
  }

  void plan(const kvasir_attn_shape& shape, kvasir_attn_plan& out) {
    const auto n_q = std::min(shape.max_queries, planner_->queries_per_task());
    const size_t heads = std::min<size_t>(geometry_->n_kv_heads, kernels::kMostDecodeHeads);
    const uint64_t task =
        std::max({kernels::attention_decode_scratch_bytes(kernel_shape(), heads),
                  kernels::attention_prefill_scratch_bytes(kernel_shape(), n_q),
                  kernels::attention_prefill_bf16_scratch_bytes(kernel_shape(), n_q),
                  kernels::attention_mass_scratch_bytes(kernel_shape(), shape.max_queries)});
    out.scratch_bytes = (task + kAlignment) * host_.max_workers();
  }

  void run(const sdk::Step&, const kvasir_attn_in& in, kvasir_attn_out& views) {
    const Out out{sdk::floats(views.o, "o"), sdk::floats(views.lse, "lse")};
    planner_->plan(in, list_);
    if (side_.size() < list_.side_floats) side_.resize(list_.side_floats);
    for (const auto& pairs : list_.to_clear) clear(pairs, out);
    const auto node = [&](uint64_t i) {
      const Task& task = list_.tasks[list_.groups[i].first];
      return placement_->group_of(task.kv_head, task.part_of_range, task.n_parts_of_range);
    };
    share_out(list_.groups.size(), node,
              [&](uint64_t i, uint32_t worker) { attend(list_.groups[i], out, worker); });
    if (list_.merges.empty()) return;
    // One kv head is merged by one worker, in the order of the parts and slices.
    host_.parallel_for(geometry_->n_kv_heads, 1, [&](uint64_t begin, uint64_t end, uint32_t) {
      for (const Merge& m : list_.merges) {
        if (begin <= m.kv_head && m.kv_head < end) merge(m, out);
      }
    });
  }

  void mass(const sdk::Step&, const kvasir_attn_in& in, const kvasir_attn_mass& views) {
    plan_mass(in, views);
    const Mass out{sdk::floats(views.lse, "lse"), sdk::floats(views.value, "mass"), views.width};
    const auto node = [&](uint64_t i) {
      return placement_->group_of(mass_tasks_[i].range->kv_head, 0, 1);
    };
    share_out(mass_tasks_.size(), node,
              [&](uint64_t i, uint32_t worker) { add_mass(mass_tasks_[i], out, worker); });
  }

 private:
  struct Out {
    float* o;    // [queries][n_q_heads][v_dim]
    float* lse;  // [queries][n_q_heads]
  };
  struct Mass {
    const float* lse;  // [queries][n_q_heads]
    float* value;      // [keys][width]
    uint32_t width;
  };
  struct Worker {
    std::vector<KeyRows> keys;      // by head of a group
    std::vector<float> slice, run;  // results of a later slice, of a second run of element types
  };
  struct MassTask {
    const kvasir_attn_part* part;
    const kvasir_attn_range* range;
    uint64_t item_begin, item_end;
    uint64_t first_key;  // into out.value
    uint64_t n_keys;
  };

  // fn(item, worker) for each item, by workers of node(item); others help once they have none left.
  template <class Node, class Fn>
  void share_out(uint64_t n_items, const Node& node, const Fn& fn) {
    if (n_items <= 1) {
      if (n_items == 1) fn(0, 0);
      return;
    }
    queues_->fill(n_items, node);
    host_.parallel_for(host_.max_workers(), 0, [&](uint64_t, uint64_t, uint32_t worker) {
      const uint32_t group = placement_->group_of_worker(worker);
      while (const auto item = queues_->take(group)) fn(*item, worker);
    });
  }

  kernels::AttentionShape kernel_shape() const {
    kernels::AttentionShape shape;
    shape.group_size = geometry_->group_size();
    shape.head_dim = geometry_->head_dim;
    shape.v_dim = geometry_->v_dim;
    shape.softmax_scale = geometry_->softmax_scale;
    shape.softcap = geometry_->softcap;
    shape.in_integers = rounds_;
    return shape;
  }

  kernels::AttentionShape kernel_shape(const KeyRows::Run& run) const {
    kernels::AttentionShape shape = kernel_shape();
    shape.k_type = run.k_type;
    shape.v_type = run.v_type;
    return shape;
  }

  // Scratch of one task, aligned as the kernels want it whoever provides it.
  class Memory {
   public:
    Memory(const sdk::Host& host, uint32_t worker, uint64_t bytes)
        : scratch_(host, worker, bytes + kAlignment) {}
    void* get() const {
      const auto at = reinterpret_cast<uintptr_t>(scratch_.span().data());
      return scratch_.span().data() + ((kAlignment - at % kAlignment) % kAlignment);
    }

   private:
    sdk::Scratch<std::byte> scratch_;
  };

  const float* heads_of(const kvasir_attn_part& part, uint32_t query, uint32_t kv_head) const {
    const auto* at = static_cast<const std::byte*>(part.q.data) + query * part.q.stride[0];
    const uint64_t head = uint64_t{kv_head} * geometry_->group_size();
    return reinterpret_cast<const float*>(at) + head * geometry_->head_dim;
  }
  size_t first_head(uint32_t query, uint32_t kv_head) const {
    return uint64_t{query} * geometry_->n_q_heads + uint64_t{kv_head} * geometry_->group_size();
  }

  // Where a result goes: into the call's arrays, or to a place of its own.
  struct Target {
    float *o, *lse;
    size_t o_stride, lse_stride;
  };
  Target compact(float* o, uint32_t n_q) const {
    const size_t group = geometry_->group_size();
    return {o, o + n_q * group * geometry_->v_dim, group * geometry_->v_dim, group};
  }
  Target compact(std::vector<float>& memory, uint32_t n_q) const {
    memory.resize(result_floats(n_q));
    return compact(memory.data(), n_q);
  }
  size_t result_floats(uint32_t n_q) const {
    return n_q * geometry_->group_size() * (size_t{geometry_->v_dim} + 1);
  }
  template <class Work>  // a Task or a Merge
  Target target(const Work& work, uint64_t side, const Out& out) {
    if (side != attention::kDirect) return compact(side_.data() + side, work.n_q);
    const size_t head = first_head(work.q_begin, work.kv_head);
    return {out.o + head * geometry_->v_dim, out.lse + head,
            size_t{geometry_->n_q_heads} * geometry_->v_dim, geometry_->n_q_heads};
  }

  void clear(const attention::TaskList::Pairs& pairs, const Out& out) const {
    for (uint32_t q = pairs.q_begin; q < pairs.q_begin + pairs.n_q; ++q) {
      const size_t head = first_head(q, pairs.kv_head);
      std::fill_n(out.o + head * geometry_->v_dim, geometry_->group_size() * geometry_->v_dim,
                  0.0f);
      std::fill_n(out.lse + head, geometry_->group_size(), kernels::kEmptyLse);
    }
  }

  const Task& task_of(const attention::TaskList::Group& group, uint32_t i) const {
    return list_.tasks[group.first + size_t{i} * group.stride];
  }

  // Slice by slice, each merged at once.
  void attend(const attention::TaskList::Group& group, const Out& out, uint32_t worker) {
    const Task& first = task_of(group, 0);
    const uint64_t n_items = first.item_end - first.item_begin;
    const size_t floats = result_floats(first.n_q);
    std::vector<float>& later = workers_[worker].slice;
    uint64_t begin = 0;
    do {
      const uint64_t end = std::min(begin + first.slice_items, n_items);
      if (begin != 0) later.resize(group.n * floats);
      const auto to = [&](uint32_t i) {
        const Task& task = task_of(group, i);
        return begin == 0 ? target(task, task.side, out)
                          : compact(later.data() + i * floats, task.n_q);
      };
      attend_slice(group, begin, end, to, worker);
      if (begin != 0)
        for (uint32_t i = 0; i < group.n; ++i) {
          const Task& task = task_of(group, i);
          merge_ranges(to(i), task.n_q, target(task, task.side, out));
        }
      begin = end;
    } while (begin < n_items);
  }

  // Items [begin, end) of the tasks' own. to(i): where the result of task i goes.
  template <class To>
  void attend_slice(const attention::TaskList::Group& group, uint64_t begin, uint64_t end,
                    const To& to, uint32_t worker) {
    std::vector<KeyRows>& keys = workers_[worker].keys;
    if (keys.size() < group.n) keys.resize(group.n);
    for (uint32_t i = 0; i < group.n; ++i) {
      const Task& task = task_of(group, i);
      const uint32_t* q_pos = attention::positions_of(*task.part) + task.q_begin;
      keys[i].build(*geometry_, *task.part, task.kv_head, task.item_begin + begin,
                    task.item_begin + end, task.prefill ? std::nullopt : std::optional(*q_pos));
      if (i == 0 && !task.prefill) keys[i].ask_for_first();
    }
    if (group.n > 1 && have_one_type(std::span(keys).first(group.n)))
      return attend_heads(group, to, worker);
    for (uint32_t i = 0; i < group.n; ++i) attend_runs(task_of(group, i), keys[i], to(i), worker);
  }

  // Whether one kernel call serves all of them.
  static bool have_one_type(std::span<const KeyRows> keys) {
    if (keys[0].runs().size() != 1) return false;
    const KeyRows::Run& first = keys[0].runs()[0];
    return std::all_of(keys.begin(), keys.end(), [&](const KeyRows& head) {
      return head.runs().size() == 1 && head.runs()[0].k_type == first.k_type &&
             head.runs()[0].v_type == first.v_type;
    });
  }

  template <class To>
  void attend_heads(const attention::TaskList::Group& group, const To& to, uint32_t worker) {
    const std::vector<KeyRows>& keys = workers_[worker].keys;
    const kernels::AttentionShape shape = kernel_shape(keys[0].runs()[0]);
    std::array<kernels::DecodeHead, kernels::kMostDecodeHeads> heads;
    for (uint32_t i = 0; i < group.n; ++i)
      heads[i] = decode_head(task_of(group, i), keys[i].rows(keys[i].runs()[0]), to(i));
    const Memory memory(host_, worker, kernels::attention_decode_scratch_bytes(shape, group.n));
    kernels::attention_decode(shape, std::span(heads).first(group.n), memory.get());
  }

  // Keys of another element type: a partial result of their own, merged at once.
  void attend_runs(const Task& task, const KeyRows& keys, const Target& to, uint32_t worker) {
    if (keys.runs().empty()) return attend_run(task, {}, {}, to, worker);
    bool first = true;
    for (const KeyRows::Run& run : keys.runs()) {
      if (first) {
        attend_run(task, run, keys.rows(run), to, worker);
      } else {
        const Target more = compact(workers_[worker].run, task.n_q);
        attend_run(task, run, keys.rows(run), more, worker);
        merge_ranges(more, task.n_q, to);
      }
      first = false;
    }
  }

  kernels::DecodeHead decode_head(const Task& task, std::span<const kernels::KvRows> rows,
                                  const Target& to) const {
    return {heads_of(*task.part, task.q_begin, task.kv_head), rows, to.o, to.lse};
  }

  void attend_run(const Task& task, const KeyRows::Run& run, std::span<const kernels::KvRows> rows,
                  const Target& to, uint32_t worker) {
    const kernels::AttentionShape shape = kernel_shape(run);
    if (!task.prefill) {
      const Memory memory(host_, worker, kernels::attention_decode_scratch_bytes(shape, 1));
      const kernels::DecodeHead head = decode_head(task, rows, to);
      return kernels::attention_decode(shape, std::span(&head, 1), memory.get());
    }
    kernels::QueryTile tile;
    tile.q = heads_of(*task.part, task.q_begin, task.kv_head);
    tile.o = to.o;
    tile.lse = to.lse;
    tile.n_q = task.n_q;
    tile.q_stride = static_cast<size_t>(task.part->q.stride[0]) / sizeof(float);
    tile.o_stride = to.o_stride;
    tile.lse_stride = to.lse_stride;
    tile.mask = {attention::positions_of(*task.part) + task.q_begin, task.part->dist_min,
                 task.part->dist_max};
    if (rounds_prompts_ && kernels::has_attention_prefill_bf16(shape)) {
      const Memory memory(host_, worker,
                          kernels::attention_prefill_bf16_scratch_bytes(shape, task.n_q));
      return kernels::attention_prefill_bf16(shape, tile, rows, memory.get(), in_tiles_);
    }
    const Memory memory(host_, worker, kernels::attention_prefill_scratch_bytes(shape, task.n_q));
    kernels::attention_prefill(shape, tile, rows, memory.get());
  }

  void merge_ranges(const Target& from, uint32_t n_q, const Target& into) const {
    const size_t v_dim = geometry_->v_dim;
    for (size_t q = 0; q < n_q; ++q) {
      for (size_t g = 0; g < geometry_->group_size(); ++g) {
        kernels::merge_attention(
            into.o + q * into.o_stride + g * v_dim, into.lse + q * into.lse_stride + g,
            from.o + q * from.o_stride + g * v_dim, from.lse[q * from.lse_stride + g], v_dim);
      }
    }
  }

  void merge(const Merge& m, const Out& out) {
    merge_ranges(target(m, m.from, out), m.n_q, target(m, m.into, out));
  }

  // Slices of keys: no two tasks write the same key, so nothing is merged.
  void plan_mass(const kvasir_attn_in& in, const kvasir_attn_mass& out) {
    constexpr uint64_t kTaskKeys = 1024;
    if (out.width != 1 && out.width != geometry_->group_size()) {
      sdk::fail_invalid("mass width " + std::to_string(out.width) +
                        " is neither 1 nor the group size");
    }
    mass_tasks_.clear();
    uint64_t range_index = 0;
    for (const kvasir_attn_part& part : attention::parts_of(in)) {
      attention::check_part_on_host(*geometry_, part);
      for (const kvasir_attn_range& range : attention::ranges_of(part)) {
        attention::check_range(*geometry_, part, range);
        uint64_t key = out.range_offsets[range_index];
        MassTask task{&part, &range, range.item_begin, range.item_begin, key, 0};
        for (uint64_t i = range.item_begin; i < range.item_end; ++i) {
          const uint64_t n = attention::keys_of_item(*geometry_, part, i);
          task.n_keys += n;
          key += n;
          task.item_end = i + 1;
          if (task.n_keys < kTaskKeys && i + 1 < range.item_end) continue;
          mass_tasks_.push_back(task);
          task = {&part, &range, i + 1, i + 1, key, 0};
        }
        if (key != out.range_offsets[++range_index]) {
          sdk::fail_invalid("mass: range " + std::to_string(range_index - 1) + " has " +
                            std::to_string(key - out.range_offsets[range_index - 1]) +
                            " keys, its offsets say another number");
        }
      }
    }
  }

  void add_mass(const MassTask& task, const Mass& out, uint32_t worker) {
    Worker& w = workers_[worker];
    const kvasir_attn_range& range = *task.range;
    if (w.keys.empty()) w.keys.resize(1);
    KeyRows& keys = w.keys[0];
    keys.build(*geometry_, *task.part, range.kv_head, task.item_begin, task.item_end, {});
    float* value = out.value + task.first_key * out.width;
    std::fill_n(value, task.n_keys * out.width, 0.0f);
    kernels::MassQueries queries;
    queries.q = heads_of(*task.part, range.q_begin, range.kv_head);
    queries.lse = out.lse + first_head(range.q_begin, range.kv_head);
    queries.n_q = range.n_q;
    queries.q_stride = static_cast<size_t>(task.part->q.stride[0]) / sizeof(float);
    queries.lse_stride = geometry_->n_q_heads;
    queries.mask = {attention::positions_of(*task.part) + range.q_begin, task.part->dist_min,
                    task.part->dist_max};
    for (const KeyRows::Run& run : keys.runs()) {
      const kernels::AttentionShape shape = kernel_shape(run);
      const Memory memory(host_, worker, kernels::attention_mass_scratch_bytes(shape, range.n_q));
      kernels::attention_mass(shape, queries, keys.rows(run), out.width, value, memory.get());
      for (const kernels::KvRows& rows : keys.rows(run)) {
        value += uint64_t{rows.end - rows.begin} * out.width;
      }
    }
  }

  sdk::Host host_;
  const bool follows_model_;
  bool rounds_ = false;          // what is multiplied may be rounded
  bool rounds_prompts_ = false;  // to bf16, where that is faster
  bool in_tiles_ = false;        // of AMX
  std::unique_ptr<Geometry> geometry_;
  std::unique_ptr<sdk::HeadPlacement> placement_;
  std::unique_ptr<attention::NodeQueues> queues_;
  std::unique_ptr<attention::TaskPlanner> planner_;
  std::vector<Worker> workers_;
  attention::TaskList list_;
  std::vector<MassTask> mass_tasks_;
  std::vector<float> side_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_ATTENTION, "kvasir.cpu", "0.1.0", Cpu)
