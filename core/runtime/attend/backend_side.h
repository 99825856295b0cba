// One attention backend, and the way to where it works.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "core/plugin/instance.h"
#include "core/runtime/attend/mass.h"
#include "core/runtime/attend/part.h"
#include "core/runtime/attend/reference_check.h"
#include "core/runtime/blocks/memory_bridge.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

// Its parts are those with the same by_window. o [queries][n_q_heads][v_dim] and lse
// [queries][n_q_heads] are of all queries of the pass.
class BackendSide {
 public:
  BackendSide(const RunContext& context, Attention& backend, MemoryBridge& bridge, bool is_window);
  bool takes(const Part& part) const { return part.by_window == is_window_; }
  bool has_parts(const Pass& pass, const std::deque<Part>& parts) const;
  bool works_on_device() const { return backend_.reads(KVASIR_MEM_DEVICE); }

  // Moves the queries of its parts, and their positions, to where the backend reads them.
  void hand_over_queries(std::deque<Part>& parts);
  // Writes o and lse of the pairs of query and head that its parts of the pass name. Throws
  // PluginError.
  // lists: u32 on the device, where parts have items there, else null.
  void run(const Pass& pass, const std::deque<Part>& parts, const AttentionRows& to,
           const kvasir_view* lists = nullptr);
  // run(), if it has parts, into memory of its own, from where merge() merges it with what o and
  // lse say already. The sides may do this at the same time.
  void run_alone(const Pass& pass, const std::deque<Part>& parts);
  void merge(const Pass& pass, const std::deque<Part>& parts, float* o, float* lse);
  uint64_t keys_skipped() const { return keys_skipped_; }  // by the last run, as the backend says
  // Stands in a result until the backend writes it.
  static constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();
  // Throws PluginError: `result` ("lse", "output") of the query is not finite. It is the storage's
  // where K or V of its parts is not, else the backend's.
  [[noreturn]] void refuse(const Pass& pass, const std::deque<Part>& parts, const char* result,
                           uint64_t query) const;
  // Views of all of o and lse.
  kvasir_view o_of(const AttentionRows& rows, uint64_t n_queries) const;
  kvasir_view lse_of(const AttentionRows& rows, uint64_t n_queries) const;
  // Fills in the values of its parts of the call. lse: as after the last run, merged.
  void ask_mass(const Pass& pass, const kvasir_view& lse, MassCall& call);

 private:
  // The results of the pieces of this call: what other calls wrote beside them stays.
  void bring_back(const std::vector<Piece>& pieces, const kvasir_view& written,
                  const kvasir_view& into);
  void call(const kvasir_step& step, const kvasir_attn_in& in, const kvasir_view* lists,
            kvasir_attn_out& out);
  // Of o_ and lse_: "", or which of them is not.
  const char* not_finite(uint64_t query, uint64_t head) const;
  void check_skipped(uint32_t layer) const;
  void check_mass(uint32_t layer, const MassCall::Share& share) const;

  const RunContext& c_;
  Attention& backend_;
  MemoryBridge& bridge_;
  bool is_window_;
  ReferenceCheck reference_;
  std::deque<MemoryBridge::Buffer> queries_;  // with their rotations and positions
  MemoryBridge::Buffer o_hold_, lse_hold_, mass_lse_hold_, mass_hold_;
  // Of the call that runs.
  std::vector<kvasir_attn_part> abi_parts_;
  std::vector<kvasir_attn_list> lists_;
  std::vector<kvasir_attn_owner> owners_;  // [parts]
  std::vector<float> o_, lse_;             // of run_alone()
  uint64_t keys_skipped_ = 0;
};

}  // namespace kvasir
