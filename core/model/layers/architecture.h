// The families of models that we compute. What sets one family apart from another stands in its
// record and nowhere else: the reader of files, the layers and the made-up models ask the record. A
// new family starts with a new record.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/model/layers/rope.h"

namespace kvasir {

struct Architecture {
  std::string_view name;  // general.architecture of its files, which also begins their keys
  RopePairing pairing;
  // Every model of the family has biases on its queries, keys and values (norms over the heads of
  // its queries and keys). A model of another family may have them, too.
  bool qkv_bias, qk_norm;
  // Of a made-up model: tokenizer.ggml.pre and add_bos_token, as most models of the family have.
  std::string_view pretokenizer;
  bool add_bos;
};

// When there is no such family: Error(kInput) that begins with `where` and lists the names of those
// there are.
const Architecture& architecture(std::string_view name, const std::string& where = "");

std::vector<std::string> architecture_names();

}  // namespace kvasir
