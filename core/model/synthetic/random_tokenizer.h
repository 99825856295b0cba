// The tokenizer part of a random model's metadata: used by random_model.cc only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "core/model/gguf/gguf_writer.h"

namespace kvasir {

// Both return the number of tokens written: vocab_size where it is larger than the vocabulary
// (filled up with unused "[PADn]"), or the vocabulary's own.

// A byte-level BPE ("gpt2"): 256 bytes, merges learnt from a built-in word list, three ChatML
// control tokens. `pre` names the pre-tokenizer. Error when vocab_size is not 0 and below 259.
uint32_t set_synthetic_tokenizer(GgufWriter& writer, const std::string& pre, bool add_bos,
                                 uint32_t vocab_size);
// Every tokenizer.* key of `from`.
uint32_t copy_tokenizer(GgufWriter& writer, const GgufFile& from, uint32_t vocab_size);

}  // namespace kvasir
