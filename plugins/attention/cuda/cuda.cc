// Attention on an NVIDIA GPU over the blocks where they lie in device memory; of K and V in host
// memory the rows that a call names travel with it, in waves.
// Partial results carry (o, lse) and merge exactly; arXiv:2205.14135, arXiv:1805.02867.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/plugin.h>
#include <kvasir/sdk/view.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/attention_mass.h"
#include "kernels/cuda/attention_merge.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/attention_prefill.h"
#include "plugins/attention/cuda/call_lists.h"
#include "plugins/attention/cuda/carried_rows.h"
#include "plugins/attention/cuda/list_reader.h"
#include "plugins/attention/cuda/repeated_launches.h"
#include "plugins/shared/device_buffer.h"
#include "plugins/shared/device_work.h"
#include "plugins/shared/element_type.h"

namespace {
using namespace kvasir;
using attention::CallLists;
using attention::Geometry;
using sdk::address;
using sdk::DeviceBuffer;
using sdk::on_device;
using sdk::Packer;

// A query of 32 heads of 128 has 16.5 KiB of partial results per 256 keys: a thousand queries over
// 4K tokens fill the default, one query over 1M tokens needs 66 MiB.
constexpr const char* kArithmetic[] = {"auto", "f32"};
constexpr const char* kInstructions[] = {"auto", "portable", "hopper"};
enum InstructionsChoice { kAuto, kPortable, kHopper };
constexpr std::array kOptions = {
    sdk::enum_option({.key = "arithmetic",
                      .help = "of a prompt's queries: without --compute f32 products in the type "
                              "of K and V where both are f16, or both bf16 (auto), or f32 always"},
                     kArithmetic, 0),
    sdk::int_option({.key = "partial_mib",
                     .help = "MiB of device memory for partial results: a prompt's queries are "
                             "attended to in groups that fit, at least one at a time"},
                    256, 1, 65536),
    sdk::int_option(
        {.key = "carry_mib",
         .help = "MiB of device memory for K and V that lie in host memory: they travel "
                 "in waves of half of it, one while the one before is attended to"},
        256, 1, 65536),
    sdk::enum_option({.key = "instructions",
                      .help = "of prompts over f16 and bf16: wgmma of compute capability 9.0 "
                              "(hopper), those of every GPU since Ampere (portable), or hopper "
                              "where the device has them (auto)"},
                     kInstructions, 0),
};
constexpr uint32_t kMemKinds = KVASIR_MEM_BIT(KVASIR_MEM_HOST) | KVASIR_MEM_BIT(KVASIR_MEM_DEVICE);

bool is_on_device(const kvasir_view& view) { return view.mem_kind == KVASIR_MEM_DEVICE; }

class Cuda {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe(
      {.kind = KVASIR_KIND_ATTENTION,
       .id = "kvasir.cuda",
       .version = "0.1.0",
       .name = "CUDA attention",
       .vendor = "Kvasir",
       .license = "Apache-2.0",
       .summary = "Attention on an NVIDIA GPU over f32, f16, bf16, q8_0, q4_0 and fp8_e4m3 blocks.",
       .options = kOptions,
       .provides = KVASIR_PROVIDE_MASS | KVASIR_PROVIDE_LOG_WEIGHT |
                   KVASIR_PROVIDE_HEAD_LOG_WEIGHT | KVASIR_PROVIDE_TOKEN_ITEMS |
                   KVASIR_PROVIDE_DISTANCE,
       .dtypes = sdk::kElementTypes,
       .mem_kinds_read = kMemKinds,
       .mem_kinds_write = kMemKinds});

  Cuda(const sdk::Host&, const sdk::Options& options)
      : partial_bytes_(uint64_t{options.u32("partial_mib")} << 20),
        carry_bytes_(uint64_t{options.u32("carry_mib")} << 20),
        follows_model_(options.choice("arithmetic") == 0),
        instructions_choice_(static_cast<InstructionsChoice>(options.choice("instructions"))) {}
  ~Cuda() { cuda::destroy_stream(carry_stream_); }
  Cuda(const Cuda&) = delete;

  void validate(const kvasir_geometry& geometry) {
    if (std::max(geometry.head_dim, geometry.v_dim) > cuda::kMaxHeadDim) {
      throw sdk::Error(KVASIR_ERR_UNSUPPORTED,
                       "heads of " + std::to_string(std::max(geometry.head_dim, geometry.v_dim)) +
                           " elements, kvasir.cuda attends to at most " +
                           std::to_string(cuda::kMaxHeadDim) +
                           ": take [attention] plugin = \"cpu\" for this model");
    }
    const std::string problem = cuda::device_problem();
    if (!problem.empty()) throw sdk::Error(KVASIR_ERR_UNSUPPORTED, problem);
    if (instructions_choice_ != kHopper) return;
    const std::string missing = cuda::hopper_problem();
    if (!missing.empty()) {
      throw sdk::Error(KVASIR_ERR_UNSUPPORTED,
                       missing + ": take instructions = \"portable\" for kvasir.cuda");
    }
  }

  void bind(const kvasir_geometry& geometry) {
    validate(geometry);
    const bool has_hopper = instructions_choice_ != kPortable && cuda::hopper_problem().empty();
    instructions_ = has_hopper ? cuda::Instructions::kHopper : cuda::Instructions::kPortable;
    geometry_.emplace(geometry);
    builder_.emplace(*geometry_);
    carried_.emplace(*geometry_, builder_->formats());
    tables_.emplace(*geometry_);
    max_sequences_ = geometry.max_sequences;
    for (Wave& wave : waves_) wave.rows.most_bytes = carry_bytes_ / 2;
    const cuda::KvType stored = builder_->common_type();
    const bool is_half = stored == cuda::KvType::kF16 || stored == cuda::KvType::kBF16;
    const bool rounds = follows_model_ && geometry.may_round != 0;
    prefill_product_ = rounds && is_half ? stored : cuda::KvType::kF32;
    work_.open();
    on_device([&] { carry_stream_ = cuda::make_stream(); });
  }

  void plan(const kvasir_attn_shape& shape, kvasir_attn_plan& out) {
    const uint64_t units = uint64_t{geometry_->n_kv_heads} *
                           (shape.max_keys + cuda::kSplitSlots - 1) / cuda::kSplitSlots;
    const uint64_t per_query = units * unit_bytes(carries());
    const uint64_t partial =
        std::min(per_query * shape.max_queries, std::max(partial_bytes_, per_query));
    const uint64_t floats = uint64_t{geometry_->head_dim} + geometry_->v_dim + 1;
    out.scratch_bytes =
        partial + uint64_t{shape.max_queries} * geometry_->n_q_heads * floats * sizeof(float) +
        most_carried(shape.max_keys);
  }

  void run(const sdk::Step&, const kvasir_attn_in& in, kvasir_attn_out& views) {
    guarded([&] { run_on_device(in, views); });
  }

  void mass(const sdk::Step&, const kvasir_attn_in& in, const kvasir_attn_mass& views) {
    guarded([&] { mass_on_device(in, views); });
  }

  // ---- kvasir.device-list-reader/1 ----

  const void* get_extension(const char* id) const {
    const std::string_view asked = id;
    if (asked == KVASIR_EXT_DEVICE_LIST_READER) return attention::list_reader_table<Cuda>();
    if (asked == KVASIR_EXT_STREAM_USER) return sdk::stream_user_table<Cuda>();
    return nullptr;
  }
  void lend_stream(kvasir_stream_handle stream) {
    work_.lend(stream);
    repeated_.forget();
  }
  uint64_t kept_bytes(uint64_t n_blocks) const { return attention::BlockTables::bytes(n_blocks); }
  void run_with_lists(const kvasir_step& step, const kvasir_attn_in& in,
                      const kvasir_attn_lists& lists, kvasir_attn_out& views) {
    guarded([&] { run_listed(step, in, lists, views); });
  }
  void forget(uint64_t seq) {
    guarded([&] {
      cuda::wait(work_.stream());
      tables_->forget(seq);
    });
  }

 private:
  // K and V of some slots of some ranges, and a launch over them.
  struct Wave {
    attention::CarriedWave rows;
    cuda::AttentionUnits units;
    std::vector<cuda::MassRange> mass_ranges;
    uint64_t parts = 0, ranges = 0, tiles = 0, mass = 0;  // addresses of its lists
  };
  // Arguments of place_lists().
  struct PlacedLists {
    uint64_t lists = 0;
    uint32_t n_lists = 0;
    uint64_t patches = 0;
    uint32_t n_patches = 0;
    bool empty() const { return lists == 0; }
  };
  struct Cut {
    std::span<const uint32_t> ranges;  // of units_
    uint64_t slot_begin, slot_end;
  };

  // What fails ends what was started: nothing may still use the buffers.
  template <class Fn>
  void guarded(Fn&& fn) const {
    on_device([&] {
      try {
        fn();
      } catch (...) {
        wait_for_all();
        throw;
      }
    });
  }
  void wait_for_all() const {
    cuda::wait(carry_stream_);
    cuda::wait(work_.stream());
  }

  size_t n_heads(uint64_t n_queries) const { return n_queries * geometry_->n_q_heads; }

  // Queries [begin, end) whose partial results fit together, at least one; units of each query.
  uint32_t end_of_group(const std::vector<uint64_t>& units, uint32_t begin) const {
    const uint64_t bytes = unit_bytes(carries());
    uint64_t n_units = 0;
    uint32_t end = begin;
    while (end < units.size()) {
      n_units += units[end];
      // A launch has less than 2^31 blocks.
      if (end > begin && (n_units * bytes > partial_bytes_ || n_units > INT32_MAX)) break;
      ++end;
    }
    return end;
  }

  std::vector<uint64_t> units_of_queries() const {
    std::vector<uint64_t> units(lists_.n_queries, 0);
    for (const cuda::AttentionRange& range : lists_.ranges) {
      const uint64_t n = cuda::n_units_of(builder_->shape(), range, lists_.by_token[range.part]);
      for (uint32_t q = range.q_begin; q < range.q_begin + range.n_q; ++q) units[q] += n;
    }
    return units;
  }

  // Partial results of a unit, with what a prompt's needs between waves.
  uint64_t unit_bytes(bool with_waves) const {
    const uint64_t state = geometry_->group_size() * cuda::kRowState * sizeof(float);
    return cuda::partial_bytes_per_unit(builder_->shape()) + (with_waves ? state : 0);
  }

  // Whether K and V of some blocks lie in host memory.
  bool carries() const {
    return std::any_of(
        geometry_->formats.begin(), geometry_->formats.end(),
        [](const kvasir_kv_format& format) { return format.mem_kind <= KVASIR_MEM_PINNED; });
  }
  // Most bytes of rows on the device, where keys are those of max_sequences sequences.
  uint64_t most_carried(uint64_t max_keys) const {
    if (!carries()) return 0;
    const uint64_t n_splits = (max_keys + cuda::kSplitSlots - 1) / cuda::kSplitSlots;
    return std::min(carry_bytes_, n_splits * carried_->split_bytes() * geometry_->n_kv_heads *
                                      std::max(1u, max_sequences_));
  }

  // The lists on the device.
  cuda::AttentionCall send_lists() {
    const uint64_t base = sdk::send(lists_.packer, sent_, work_.stream());
    placed_.resize(lists_.by_token.size());
    if (!placed_.empty())
      std::memcpy(placed_.data(), lists_.packer.at(lists_.parts),
                  placed_.size() * sizeof placed_[0]);
    cuda::AttentionCall call{};
    call.shape = builder_->shape();
    call.type = lists_.type;
    call.prefill_product = prefill_product_;
    call.instructions = instructions_;
    call.formats = base + lists_.formats;
    call.parts = base + lists_.parts;
    return call;
  }

  void run_on_device(const kvasir_attn_in& in, const kvasir_attn_out& views) {
    builder_->build(in, nullptr, lists_);
    to_place_ = {};
    finish(in, send_lists(), views);
  }

  // With lists that are on the device, and the tables that they count in.
  void run_listed(const kvasir_step& step, const kvasir_attn_in& in, const kvasir_attn_lists& lists,
                  const kvasir_attn_out& views) {
    attention::check_lists(in, lists);
    tables_->begin();
    part_tables_.assign(in.n_parts, {});
    for (const kvasir_attn_list& list :
         sdk::Strided<const kvasir_attn_list>(lists.lists, lists.n_lists, lists.list_size)) {
      attention::PartTable& table = part_tables_[list.part];
      if (table.blocks) continue;
      const sdk::Strided<const kvasir_attn_owner> owners(lists.owners, in.n_parts,
                                                         lists.owner_size);
      table = tables_->update(owners[list.part], step.layer, attention::parts_of(in)[list.part],
                              work_.stream());
    }
    const attention::DeviceLists there{lists, part_tables_};
    builder_->build(in, &there, lists_);
    const uint64_t patches = tables_->pack(lists_.packer);
    const cuda::AttentionCall call = send_lists();
    to_place_ = {address(sent_.data()) + lists_.chosen, lists_.n_chosen,
                 address(sent_.data()) + patches, tables_->n_patches()};
    finish(in, call, views);
    tables_->commit();
  }

  // The lists that are on the device, before the first launch that reads them.
  void place(const PlacedLists& placed) {
    if (placed.empty()) return;
    cuda::place_lists(placed.lists, placed.n_lists, placed.patches, placed.n_patches,
                      work_.stream());
  }

  // Attends, once the lists are there.
  void finish(const kvasir_attn_in& in, cuda::AttentionCall call, const kvasir_attn_out& views) {
    const bool to_host = !is_on_device(views.o);
    if (to_host != !is_on_device(views.lse))
      sdk::fail_invalid("o and lse must lie in the same kind of memory");
    const size_t heads = n_heads(lists_.n_queries), o_floats = heads * geometry_->v_dim;
    call.o = to_host ? results_.ensure((o_floats + heads) * sizeof(float), work_.stream())
                     : address(views.o.data);
    call.lse = to_host ? call.o + o_floats * sizeof(float) : address(views.lse.data);

    named_.clear();
    attend(in, call);
    place(std::exchange(to_place_, {}));  // of no queries
    if (is_cut_) repeat_marked(in, call);
    if (to_host) {
      host_results_.resize(o_floats + heads);
      cuda::copy_to_host(host_results_.data(), results_.data(),
                         host_results_.size() * sizeof(float), work_.stream());
    }
    if (to_host || !work_.is_lent()) cuda::wait(work_.stream());
    if (to_host) store(host_results_.data(), host_results_.data() + o_floats, views);
  }

  // All ranges of lists_.
  void attend(const kvasir_attn_in& in, const cuda::AttentionCall& call) {
    is_cut_ = false;
    const std::vector<uint64_t> units = units_of_queries();
    for (uint32_t begin = 0; begin < lists_.n_queries;) {
      const uint32_t end = end_of_group(units, begin);
      attend_group(in, call, begin, end);
      begin = end;
    }
  }

  void attend_group(const kvasir_attn_in& in, cuda::AttentionCall call, uint32_t begin,
                    uint32_t end) {
    cuda::plan_units(call.shape, lists_.ranges, lists_.by_token, begin, end, units_);
    const std::vector<Cut> cuts = cuts_of_units();
    const bool is_cut = cuts.size() > 1 && units_.n_prefill_blocks != 0;
    is_cut_ = is_cut_ || is_cut;
    const uint64_t heads = units_.n_units * geometry_->group_size();
    call.partial_o = partial_.ensure(units_.n_units * unit_bytes(is_cut), work_.stream());
    call.partial_lse = call.partial_o + heads * geometry_->v_dim * sizeof(float);
    if (is_cut) call.row_state = call.partial_lse + heads * sizeof(float);
    group_.clear();
    const uint64_t spans = group_.put(units_.spans), pairs = group_.put(units_.pairs);
    cuda::cut_units(call.shape, units_, in_place_, 0, UINT64_MAX, there_);
    const uint64_t ranges = group_.put(there_.ranges), tiles = group_.put(there_.tiles);
    const uint64_t base = sdk::send(group_, sent_group_, work_.stream());
    call.spans = base + spans;
    call.pairs = base + pairs;
    call.n_pairs = static_cast<uint32_t>(units_.pairs.size());
    call.ranges = base + ranges;
    call.tiles = base + tiles;
    named_.insert(named_.end(), units_.pairs.begin(), units_.pairs.end());
    if (cuts.empty() && units_.n_prefill_blocks == 0) return launch_decode(call);
    place(std::exchange(to_place_, {}));
    launch(call, there_, call.ranges, call.tiles);
    for_each_wave(
        in, cuts, true, [](Wave&) {},
        [&](const Wave& wave) {
          cuda::AttentionCall of_wave = call;
          of_wave.parts = wave.parts;
          launch(of_wave, wave.units, wave.ranges, wave.tiles);
        });
    cuda::attention_merge(call, work_.stream());
  }

  // Of decoded tokens whose keys are all there: all layers of a step, and those of later steps that
  // attend to as many blocks, have the same arguments.
  void launch_decode(cuda::AttentionCall call) {
    cuda::describe_units(there_, call);
    call.n_pairs = static_cast<uint32_t>(units_.pairs.size());
    const PlacedLists placed = std::exchange(to_place_, {});
    const attention::RepeatedLaunches::Arguments arguments = {
        placed.lists,     placed.n_lists, placed.patches,
        placed.n_patches, call.formats,   call.parts,
        call.ranges,      call.spans,     call.pairs,
        call.tiles,       call.n_ranges,  call.n_pairs,
        call.n_blocks,    call.partial_o, call.partial_lse,
        call.o,           call.lse,       static_cast<uint64_t>(call.type)};
    repeated_.start(arguments, work_.stream(), [&] {
      place(placed);
      cuda::attention_decode(call, work_.stream());
      cuda::attention_merge(call, work_.stream());
    });
  }

  void launch(cuda::AttentionCall call, const cuda::AttentionUnits& units, uint64_t ranges,
              uint64_t tiles) {
    call.ranges = ranges;
    call.tiles = tiles;
    cuda::describe_units(units, call);
    cuda::attention_decode(call, work_.stream());
    cuda::attention_prefill(call, work_.stream());
  }

  // What travels of units_.ranges, cut so that half of carry_bytes_ holds each wave; in_place_ gets
  // the others. Ranges are cut side by side, so that a wave has work for all of the device.
  std::vector<Cut> cuts_of_units() {
    in_place_.clear();
    travelling_.clear();
    for (uint32_t i = 0; i < units_.ranges.size(); ++i)
      (lists_.is_carried[units_.ranges[i].part] ? travelling_ : in_place_).push_back(i);
    std::vector<Cut> cuts;
    if (travelling_.empty()) return cuts;
    const uint64_t most = std::max<uint64_t>(carry_bytes_ / 2 / carried_->split_bytes(), 1);
    for (size_t first = 0; first < travelling_.size(); first += most) {
      const auto group = std::span(travelling_)
                             .subspan(first)
                             .first(std::min<uint64_t>(most, travelling_.size() - first));
      uint64_t n_slots = 1;  // a range without items is in a wave, too
      for (const uint32_t i : group) n_slots = std::max(n_slots, units_.ranges[i].slot_end);
      const uint64_t step =
          std::min(most / group.size(), carried_->most_splits()) * cuda::kSplitSlots;
      for (uint64_t slot = 0; slot < n_slots; slot += step)
        cuts.push_back({group, slot, slot + step});
    }
    return cuts;
  }

  // Calls compute(wave) wave after wave, while the next one travels. more(wave) adds to its lists.
  template <class More, class Compute>
  void for_each_wave(const kvasir_attn_in& in, std::span<const Cut> cuts, bool with_values,
                     const More& more, const Compute& compute) {
    const auto start = [&](size_t i) {
      if (i == cuts.size()) return;
      Wave& wave = waves_[i % 2];
      cuda::cut_units(builder_->shape(), units_, cuts[i].ranges, cuts[i].slot_begin,
                      cuts[i].slot_end, wave.units);
      carried_->start(in, placed_, wave.units.ranges, with_values, carry_stream_, wave.rows);
      Packer& lists = wave.rows.lists;
      wave.ranges = lists.put(wave.units.ranges);
      wave.tiles = lists.put(wave.units.tiles);
      more(wave);
      const uint64_t base = sdk::send(lists, wave.rows.sent_lists, carry_stream_);
      wave.parts = base + wave.rows.parts;
      for (uint64_t* field : {&wave.ranges, &wave.tiles, &wave.mass}) *field += base;
    };
    if (!cuts.empty()) cuda::wait(work_.stream());  // what came before has the rows of its waves
    start(0);
    for (size_t i = 0; i < cuts.size(); ++i) {
      wait_for_all();  // the wave is there, and nobody reads the one before any more
      compute(waves_[i % 2]);
      start(i + 1);
    }
  }

  // Queries of prompts with numbers that the product's type does not hold, whose keys were not
  // there at once: as decoded tokens are.
  void repeat_marked(const kvasir_attn_in& in, const cuda::AttentionCall& call) {
    std::vector<float> lse(n_heads(lists_.n_queries));
    cuda::copy_to_host(lse.data(), reinterpret_cast<const void*>(call.lse),
                       lse.size() * sizeof(float), work_.stream());
    cuda::wait(work_.stream());
    const size_t group = geometry_->group_size();
    std::vector<cuda::AttentionRange> again;
    for (const cuda::AttentionRange& range : lists_.ranges)
      for (uint32_t query = range.q_begin; query < range.q_begin + range.n_q; ++query) {
        const auto first =
            lse.begin() + static_cast<ptrdiff_t>(n_heads(query) + range.kv_head * group);
        const bool is_marked = std::any_of(first, first + static_cast<ptrdiff_t>(group),
                                           [](float x) { return std::isnan(x); });
        if (!range.is_prefill || !is_marked) continue;
        again.push_back(range);
        again.back().q_begin = query;
        again.back().n_q = 1;
        again.back().is_prefill = 0;
      }
    if (again.empty()) return;
    lists_.ranges = std::move(again);
    attend(in, call);
  }

  // The pairs that ranges name; others stay untouched.
  void store(const float* o, const float* lse, const kvasir_attn_out& views) const {
    float* const to_o = sdk::floats(views.o, "o");
    float* const to_lse = sdk::floats(views.lse, "lse");
    const size_t group = geometry_->group_size(), v_dim = geometry_->v_dim;
    for (const cuda::AttentionPair& pair : named_) {
      const size_t head = n_heads(pair.query) + pair.kv_head * group;
      std::copy_n(o + head * v_dim, group * v_dim, to_o + head * v_dim);
      std::copy_n(lse + head, group, to_lse + head);
    }
  }

  void mass_on_device(const kvasir_attn_in& in, const kvasir_attn_mass& views) {
    builder_->build(in, nullptr, lists_);
    const uint64_t n_keys = plan_mass(in, views);
    const uint64_t lse = is_on_device(views.lse)
                             ? 0
                             : lists_.packer.put(sdk::floats(views.lse, "lse"),
                                                 n_heads(lists_.n_queries) * sizeof(float));
    cuda::MassCall call{};
    call.attention = send_lists();
    const uint64_t base = call.attention.parts - lists_.parts;
    for (cuda::MassRange& range : mass_ranges_)
      if (range.item_keys != 0) range.item_keys += base;
    call.width = views.width;
    call.lse = is_on_device(views.lse) ? address(views.lse.data) : base + lse;
    const bool to_host = !is_on_device(views.value);
    const uint64_t bytes = n_keys * views.width * sizeof(float);
    call.value = to_host ? results_.ensure(bytes, work_.stream()) : address(views.value.data);

    const std::vector<Cut> cuts = cuts_of_units();
    cuda::cut_units(builder_->shape(), units_, in_place_, 0, UINT64_MAX, there_);
    group_.clear();
    const uint64_t ranges = group_.put(there_.ranges);
    std::vector<cuda::MassRange> mass_ranges;
    const uint64_t mass = group_.put(number_units(there_.ranges, mass_ranges));
    const uint64_t at = sdk::send(group_, sent_group_, work_.stream());
    launch_mass(call, there_.ranges, at + ranges, at + mass);
    for_each_wave(
        in, cuts, false,
        [&](Wave& wave) {
          wave.mass = wave.rows.lists.put(number_units(wave.units.ranges, wave.mass_ranges));
        },
        [&](const Wave& wave) {
          cuda::MassCall of_wave = call;
          of_wave.attention.parts = wave.parts;
          launch_mass(of_wave, wave.units.ranges, wave.ranges, wave.mass);
        });
    if (to_host)
      cuda::copy_to_host(sdk::floats(views.value, "mass"), results_.data(), bytes, work_.stream());
    cuda::wait(work_.stream());
  }

  // Those of a launch, with its units.
  const std::vector<cuda::MassRange>& number_units(const std::vector<cuda::AttentionRange>& ranges,
                                                   std::vector<cuda::MassRange>& out) const {
    out.clear();
    uint64_t n_units = 0;
    for (const cuda::AttentionRange& range : ranges) {
      out.push_back(mass_ranges_[range.first_unit]);
      out.back().first_unit = n_units;
      n_units += n_splits(range);
    }
    return out;
  }
  static uint64_t n_splits(const cuda::AttentionRange& range) {  // of a launch
    return (range.slot_end - range.slot_begin + cuda::kSplitSlots - 1) / cuda::kSplitSlots;
  }

  void launch_mass(cuda::MassCall call, const std::vector<cuda::AttentionRange>& list,
                   uint64_t ranges, uint64_t mass_ranges) {
    call.attention.ranges = ranges;
    call.attention.n_ranges = static_cast<uint32_t>(list.size());
    call.ranges = mass_ranges;
    for (const cuda::AttentionRange& range : list) call.n_units += n_splits(range);
    cuda::attention_mass(call, work_.stream());
  }

  // units_.ranges are all ranges, whose first_unit is their place among mass_ranges_. Returns the
  // number of keys.
  uint64_t plan_mass(const kvasir_attn_in& in, const kvasir_attn_mass& views) {
    mass_ranges_.clear();
    units_.ranges = lists_.ranges;
    uint64_t n_keys = 0;
    size_t index = 0;
    for (const kvasir_attn_part& part : attention::parts_of(in)) {
      for (const kvasir_attn_range& range : attention::ranges_of(part)) {
        cuda::AttentionRange& whole = units_.ranges[index];
        whole.first_unit = index;
        whole.slot_end = cuda::n_slots_of(builder_->shape(), whole, lists_.by_token[whole.part]);
        cuda::MassRange to{0, n_keys, 0};
        item_keys_.clear();
        uint64_t keys = 0;
        for (uint64_t i = range.item_begin; i < range.item_end; ++i) {
          item_keys_.push_back(keys);
          keys += attention::keys_of_item(*geometry_, part, i);
        }
        if (part.unit == KVASIR_UNIT_BLOCK) to.item_keys = lists_.packer.put(item_keys_);
        mass_ranges_.push_back(to);
        n_keys += keys;
        if (n_keys != views.range_offsets[++index]) {
          sdk::fail_invalid("mass: range " + std::to_string(index - 1) + " has " +
                            std::to_string(keys) + " keys, its offsets say another number");
        }
      }
    }
    return n_keys;
  }

  const uint64_t partial_bytes_, carry_bytes_;
  const bool follows_model_;
  const InstructionsChoice instructions_choice_;
  cuda::Instructions instructions_ = cuda::Instructions::kPortable;
  uint32_t max_sequences_ = 0;
  cuda::KvType prefill_product_ = cuda::KvType::kF32;
  std::optional<Geometry> geometry_;
  std::optional<attention::CallBuilder> builder_;
  std::optional<attention::CarriedRows> carried_;
  std::optional<attention::BlockTables> tables_;
  std::vector<attention::PartTable> part_tables_;  // of a call
  PlacedLists to_place_;                           // before its first launch
  sdk::DeviceWork work_;
  cuda::Stream carry_stream_;
  attention::RepeatedLaunches repeated_;  // outlives the buffers, and so all that is started
  CallLists lists_;
  std::vector<cuda::AttentionPart> placed_;  // those of lists_, as the device has them
  cuda::AttentionUnits units_, there_;  // of a group of queries; of these what is on the device
  std::vector<uint32_t> in_place_, travelling_;  // of units_.ranges
  std::array<Wave, 2> waves_;
  bool is_cut_ = false;  // some prompt's keys were not on the device at once
  Packer group_;
  DeviceBuffer sent_, sent_group_, partial_, results_;
  std::vector<float> host_results_;
  std::vector<cuda::AttentionPair> named_;
  std::vector<cuda::MassRange> mass_ranges_;
  std::vector<uint64_t> item_keys_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_ATTENTION, "kvasir.cuda", "0.1.0", Cuda)
