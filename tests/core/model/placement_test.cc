// Matrices that are loaded together: the same panels however many workers load them, and on the
// memory node of the worker that reads them.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <deque>
#include <random>

#include "core/model/layers/panel_matrix.h"
#include "core/platform/memory.h"
#include "tests/support/memory_node.h"

namespace {
using namespace kvasir;

constexpr uint32_t kOutputs = 64;  // of a panel

// Tensors of f32 and matrices for them, side by side in one region.
class Group {
 public:
  Group(uint32_t n_in, const std::vector<uint32_t>& n_out) {
    std::mt19937 random(n_in);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    size_t n_bytes = 0;
    for (const uint32_t n : n_out) {
      std::vector<float>& row = rows_.emplace_back(size_t{n_in} * n);
      std::generate(row.begin(), row.end(), [&] { return uniform(random); });
      tensors_.push_back({"w",
                          GgmlType::kF32,
                          {n_in, n},
                          reinterpret_cast<const std::byte*>(row.data()),
                          row.size(),
                          row.size() * sizeof(float)});
      PanelMatrix m = kept_as(GgmlType::kF32, Compute::kF32);
      m.n_in = n_in;
      m.n_out = n;
      n_bytes += m.n_bytes();
      n_panels_ += m.n_panels();
      matrices_.push_back(m);
    }
    memory_ = Region(n_bytes);
    std::byte* at = memory_.data();
    for (PanelMatrix& m : matrices_) {
      m.data = at;
      at += m.n_bytes();
    }
  }

  void load(ThreadPool& pool) {
    std::vector<PanelSource> sources;
    for (size_t i = 0; i < matrices_.size(); ++i) sources.push_back({&tensors_[i], &matrices_[i]});
    load_panels(sources, pool, file_);
  }
  uint64_t n_panels() const { return n_panels_; }
  std::byte* panel(uint64_t index) const {
    return memory_.data() + index * matrices_.front().panel_bytes();
  }
  size_t panel_bytes() const { return matrices_.front().panel_bytes(); }
  // Element [k, j] of matrix `which`, where the layout says that it lies.
  float at(size_t which, uint32_t k, uint32_t j) const {
    const PanelMatrix& m = matrices_[which];
    const auto* panel = reinterpret_cast<const float*>(m.data + j / kOutputs * m.panel_bytes());
    return panel[size_t{k} * kOutputs + j % kOutputs];
  }
  float source(size_t which, uint32_t k, uint32_t j) const {
    return rows_[which][size_t{j} * matrices_[which].n_in + k];
  }
  size_t size() const { return matrices_.size(); }
  const PanelMatrix& matrix(size_t which) const { return matrices_[which]; }

 private:
  static GgufFile empty_file() {
    static constexpr std::array<char, 24> kNoTensors = {'G', 'G', 'U', 'F', 3};
    return GgufFile::parse(std::as_bytes(std::span(kNoTensors)), "no file");
  }
  GgufFile file_ = empty_file();
  std::deque<std::vector<float>> rows_;
  std::vector<GgufTensor> tensors_;
  std::vector<PanelMatrix> matrices_;
  uint64_t n_panels_ = 0;
  Region memory_;
};

}  // namespace

TEST_SUITE_BEGIN("core/model/placement");

TEST_CASE("matrices that one product takes are loaded whole by any number of workers") {
  for (const uint32_t n_workers : {1u, 2u, 3u, 5u, 16u}) {
    CAPTURE(n_workers);
    ThreadPool pool(Topology::synthetic("numa:2 core:8 pu:1"), n_workers);
    Group group(37, {320, 70, 1});
    group.load(pool);
    uint64_t n_wrong = 0;
    for (size_t which = 0; which < group.size(); ++which)
      for (uint32_t j = 0; j < group.matrix(which).n_out; ++j)
        for (uint32_t k = 0; k < 37; ++k)
          n_wrong += group.at(which, k, j) != group.source(which, k, j);
    CHECK(n_wrong == 0);
  }
}

TEST_CASE("weights lie on the memory node of the worker that reads them") {
  if (!test::can_bind(1)) {
    MESSAGE("SKIPPED: memory cannot be placed on a second node here");
    return;
  }
  const Topology topology = Topology::detect();
  REQUIRE(topology.nodes().size() > 1);
  ThreadPool pool(topology);
  Group group(2048, {24 * kOutputs, 8 * kOutputs, 8 * kOutputs});  // 512 KiB per panel
  group.load(pool);
  std::vector<int> node_of_panel(group.n_panels());
  pool.parallel_for(group.n_panels(), 0, [&](uint64_t begin, uint64_t end, uint32_t worker) {
    std::fill_n(node_of_panel.begin() + static_cast<ptrdiff_t>(begin), end - begin,
                pool.os_node_of(worker));
  });
  // A huge page holds four panels: beside a border between nodes either may have it.
  uint64_t n_checked = 0;
  for (uint64_t panel = 4; panel + 4 < group.n_panels(); ++panel) {
    const auto* at = node_of_panel.data() + panel;
    if (!std::all_of(at - 4, at + 5, [&](int node) { return node == *at; })) continue;
    CAPTURE(panel);
    CHECK(test::node_at(group.panel(panel) + group.panel_bytes() / 2) == *at);
    ++n_checked;
  }
  CHECK(n_checked >= group.n_panels() / 4);
}
