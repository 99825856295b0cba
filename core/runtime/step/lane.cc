// Failed pieces; see lane.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/step/lane.h"

namespace kvasir {

void Lane::drop_failed() {
  std::erase_if(redone, [](const Redo& redo) { return redo.piece.has_failed(); });
  std::erase_if(pieces, [](const Piece& piece) { return piece.has_failed(); });
  for (Followers& f : followers)
    for (size_t i = f.pieces.size(); i-- > 0;) {
      if (f.leaders[i]->fault) f.pieces[i].seq->fail(f.leaders[i]->fault);
      if (!f.pieces[i].has_failed()) continue;
      f.pieces.erase(f.pieces.begin() + static_cast<ptrdiff_t>(i));
      f.leaders.erase(f.leaders.begin() + static_cast<ptrdiff_t>(i));
    }
}

}  // namespace kvasir
