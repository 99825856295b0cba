// Attention that a selector hands over itself, for keys that no list names.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <string>
#include <vector>

namespace kvasir {

struct ListBuffer;
struct Piece;

// Of all queries of a step, f32; lse = -inf: nothing for that query and head.
struct Contribution {
  std::vector<float> o;    // [queries][n_q_heads][v_dim]
  std::vector<float> lse;  // [queries][n_q_heads]
};

// Empty: what a call contributed to the pieces' queries is valid, or it contributed nothing;
// otherwise what is wrong with it.
std::string check_contribution(const ListBuffer& result, const std::vector<Piece>& pieces,
                               const kvasir_geometry& geometry);
// Adds the piece's queries to `into`, which is sized where it is empty. False: the call contributed
// nothing.
bool take_contribution(const ListBuffer& result, const Piece& piece,
                       const kvasir_geometry& geometry, Contribution& into);

}  // namespace kvasir
