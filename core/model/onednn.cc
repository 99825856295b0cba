// Calls into oneDNN. Its own threads (libgomp's) would fight with our pool for the cores, so every
// thread that calls it first says that it is to stay alone.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/onednn.h"

#include <cstring>
#include <map>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "kernels/panel_product.h"

// libgomp's; declared here because clang has no <omp.h> without its own OpenMP runtime.
extern "C" void omp_set_num_threads(int n);

namespace kvasir {
namespace {

void stay_single_threaded() {
  thread_local const bool done = [] {
    omp_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

constexpr int64_t kPanel = kernels::kPanelWidth;

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::matmul::primitive_desc make_bf16(const PanelShape& s) {
  using dnnl::memory;
  const memory::desc x({s.n, s.n_in}, memory::data_type::bf16, memory::format_tag::ab);
  const memory::desc w({s.n_in, s.cols}, memory::data_type::bf16, memory::dims{kPanel, 1});
  const memory::desc y({s.n, s.cols}, memory::data_type::f32, memory::dims{s.y_stride, 1});
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (s.accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
  return {dnnl::matmul::desc(x, w, y), attr, cpu_engine()};
}

}  // namespace

void onednn_f32(const PanelShape& s, const float* x, const float* w, float* y) {
  stay_single_threaded();
  const auto status = dnnl_sgemm('N', 'N', s.n, s.cols, s.n_in, 1.0f, x, s.n_in, w, kPanel,
                                 s.accumulate ? 1.0f : 0.0f, y, s.y_stride);
  if (status != dnnl_success) {
    throw Error(ErrorKind::kInternal, "oneDNN's f32 product of " + std::to_string(s.n) + " x " +
                                          std::to_string(s.n_in) + " x " + std::to_string(s.cols) +
                                          " failed with status " + std::to_string(status));
  }
}

struct OneDnnBf16::Impl {
  struct Entry {
    dnnl::matmul::primitive_desc desc;
    dnnl::matmul primitive;
  };
  using Key = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, bool>;
  struct Worker {
    dnnl::stream stream{cpu_engine()};
    std::vector<std::byte> scratch;
    std::map<Key, Entry> products;  // own map: no lock in the loop
  };
  std::vector<Worker> workers;

  static const Entry& find(Worker& worker, const PanelShape& s) {
    const Key key{s.n, s.n_in, s.cols, s.y_stride, s.accumulate};
    const auto found = worker.products.find(key);
    if (found != worker.products.end()) return found->second;
    if (worker.products.size() >= 512) worker.products.clear();
    auto desc = make_bf16(s);
    dnnl::matmul primitive(desc);
    return worker.products.emplace(key, Entry{std::move(desc), std::move(primitive)}).first->second;
  }
};

OneDnnBf16::OneDnnBf16(uint32_t n_workers) : impl_(std::make_unique<Impl>()) {
  impl_->workers.resize(n_workers);
}

OneDnnBf16::~OneDnnBf16() = default;

bool OneDnnBf16::supported() {
  stay_single_threaded();
  try {
    const auto desc = make_bf16({64, 64, 64, 64, false});
    return std::string(desc.impl_info_str()).find("ref") == std::string::npos;
  } catch (const dnnl::error&) {
    return false;
  }
}

void OneDnnBf16::multiply(const PanelShape& shape, const uint16_t* x, const void* w, float* y,
                          uint32_t worker_index) try {
  stay_single_threaded();
  auto& worker = impl_->workers[worker_index];
  const auto& [desc, primitive] = Impl::find(worker, shape);
  worker.scratch.resize(std::max(worker.scratch.size(), desc.scratchpad_desc().get_size() + 64));
  const auto memory = [](const dnnl::memory::desc& md, const void* data) {
    return dnnl::memory(md, cpu_engine(), const_cast<void*>(data));
  };
  primitive.execute(worker.stream,
                    {{DNNL_ARG_SRC, memory(desc.src_desc(), x)},
                     {DNNL_ARG_WEIGHTS, memory(desc.weights_desc(), w)},
                     {DNNL_ARG_DST, memory(desc.dst_desc(), y)},
                     {DNNL_ARG_SCRATCHPAD, memory(desc.scratchpad_desc(), worker.scratch.data())}});
} catch (const dnnl::error& e) {
  throw Error(ErrorKind::kInternal, std::string("oneDNN's bf16 product failed: ") + e.message);
}

}  // namespace kvasir
