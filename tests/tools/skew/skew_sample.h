// A small model on two threads, and tokens to skew it by.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/model/synthetic/random_model.h"
#include "core/platform/thread_pool.h"
#include "tests/support/temp_dir.h"

namespace kvasir::test {

struct SkewModel {
  TempDir dir;
  ThreadPool pool{Topology::synthetic("numa:1 core:2 pu:1"), 2, false};
  RandomModelSpec spec;  // 8 query heads over 2 kv heads of 16
  SkewModel() {
    spec.n_layers = 3;
    spec.d_model = 64;
    spec.d_ff = 96;
    spec.n_q_heads = 8;
    spec.n_kv_heads = 2;
    spec.head_dim = 16;
    spec.vocab_size = 300;
    spec.context_length = 512;
    spec.type = GgmlType::kF32;
    spec.norm_spread = 0.3f;
  }
  GgufFile write(const std::string& name) const {
    write_random_model(spec, dir.path(name));
    return GgufFile::open(dir.path(name));
  }
  std::unique_ptr<Model> load(const GgufFile& file) {
    return Model::load(file, pool, {Compute::kF32, 512});
  }
};

inline std::vector<int32_t> skew_sample(size_t n) {
  std::mt19937 random(4);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 300);
  return ids;
}

}  // namespace kvasir::test
