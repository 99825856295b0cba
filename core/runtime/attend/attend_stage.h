// From selections to attention: parts, residency, the backend's run, attention mass afterwards.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/platform/beside_thread.h"
#include "core/runtime/attend/backend_side.h"
#include "core/runtime/attend/mass.h"
#include "core/runtime/attend/part.h"
#include "core/runtime/attend/rotation.h"
#include "core/runtime/select/contribution.h"
#include "core/runtime/select/selector_call.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

class AttendStage {
 public:
  explicit AttendStage(const RunContext& context);

  // selections[i] belongs to pass.pieces[i], whose place is set to i. Several pieces may be of one
  // sequence, in the order of their queries. A piece whose blocks are lost or whose attention fails
  // ends its sequence and leaves the pass, the others go on. `contribution` (null: none) is merged
  // with the result, which must be on the host then. On the host lse has no place of the caller's.
  void attend(Pass& pass, const std::vector<const LayerSelection*>& selections,
              const Contribution* contribution, const AttentionRows& to);
  // The same before the host knows what is chosen: where selections say so, the indices are in
  // `lists` on the device. read() reads them into the selections, and says whether that is what is
  // there; then all is counted as attend() counts it. It may answer whether the result is finite,
  // too, where that is on the device (null: it is not). False: something was wrong, and the pass is
  // to be attended with the selections as they are now, as if nothing had been done.
  bool attend_unread(Pass& pass, const std::vector<const LayerSelection*>& selections,
                     const AttentionRows& to, const kvasir_view& lists,
                     const std::function<bool(FiniteQuestion*)>& read);
  // As if the last attend() of `other`, over the same blocks, had been made here: for strategies
  // that share a dense prefill.
  void adopt(const AttendStage& other);
  // Mass over the queries at positions >= from_pos[i] of pass.pieces[i], which are pieces of the
  // last attend() by their places; a piece whose from_pos lies beyond its queries gets none.
  // window_only drops keys before the window. values = false: only which keys were attended; the
  // backend need not know mass. [pieces][kv_head]
  std::vector<std::vector<HeadMass>> mass(const Pass& pass, const std::vector<uint32_t>& from_pos,
                                          bool window_only, bool values);

 private:
  void begin(const Pass& pass, const AttentionRows& to);
  // Makes the parts of all pieces that can be attended; the others leave the pass. counts: what
  // they attend to, in the counters.
  void make_parts(Pass& pass, const std::vector<const LayerSelection*>& selections, bool counts);
  // The parts say what the selections do.
  void put_lists(const Pass& pass, const std::vector<const LayerSelection*>& selections);
  // Over the parts of the pieces. Throws PluginError.
  void run(const Pass& pass, const Contribution* contribution);
  // Of run(), calls of backends, with items in `lists` on the device where that is not null; and
  // what is said of their results.
  void start(const Pass& pass, const kvasir_view* lists);
  void accept(const Pass& pass, bool is_finite = false);  // is_finite: all of it, as is known
  // Of o and lse on the device, where the pieces have all queries: lse follows o.
  std::optional<FiniteQuestion> question_of(const Pass& pass) const;
  void run_sides(const Pass& pass, const kvasir_view* lists);
  void run_both(const Pass& pass);
  // o, lse: of all queries, on the host.
  void check_finite(const Pass& pass, const Piece& piece, const float* o, const float* lse) const;
  // The same of what is on the device, which is read where it is not.
  void check_finite_there(const Pass& pass);
  // What the pieces had there is as nobody had written it.
  void forget_there(const Pass& pass);
  void merge(const Contribution& contribution, const std::vector<Piece>& pieces);

  const RunContext& c_;
  Rotation rotation_;
  std::deque<Part> parts_;         // of the last attend()
  std::deque<BackendSide> sides_;  // the context's, or the only one; in hybrid mode the window's
  // Hybrid mode with a backend that works on a device, which has this thread, while the other one
  // has the pool.
  BackendSide* on_device_ = nullptr;
  std::unique_ptr<BesideThread> beside_;
  std::vector<float> lse_;  // [queries][n_q_heads] of the last attend(), on the host
  // Of the last attend(): where its result is, and of how many queries.
  AttentionRows to_{};
  uint64_t n_queries_ = 0;
};

}  // namespace kvasir
