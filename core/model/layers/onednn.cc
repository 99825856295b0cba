// Calls into oneDNN. Its own threads (libgomp's) would compete with our pool for the cores, so each
// thread that calls it first limits libgomp to that one thread.
//
// oneDNN 2.6's fast product ("brgemm") takes our panels as they are (its formats BA16a64b and
// BA16a64b2a), but only writes to a contiguous result: 64 columns wide, added to the rows of y
// afterwards. Per core of an AVX-512 machine: 111 GFLOP/s in f32, 222 in bf16. A row's result does
// not depend on how many rows there are; that of the plain product (dnnl_sgemm) does, so it is not
// used.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/onednn.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/model/layers/panel_matrix.h"
#include "kernels/panel_product.h"
#include "kernels/row_ops.h"
#include "kernels/simd_target.h"

// libgomp's; declared here because clang has no <omp.h> without its own OpenMP runtime.
extern "C" void omp_set_num_threads(int n);

namespace kvasir {
namespace {

using dnnl::memory;

void stay_single_threaded() {
  thread_local const bool done = [] {
    omp_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::matmul::primitive_desc make_product(Compute compute, uint32_t n, uint32_t n_in) {
  const bool bf16 = compute == Compute::kBF16;
  const auto type = bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const auto packed = bf16 ? memory::format_tag::BA16a64b2a : memory::format_tag::BA16a64b;
  const memory::desc x({n, n_in}, type, memory::format_tag::ab);
  const memory::desc w({n_in, kPanel}, type, packed);
  const memory::desc y({n, kPanel}, memory::data_type::f32, memory::format_tag::ab);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return {dnnl::matmul::desc(x, w, y), attr, cpu_engine()};
}

// The other implementations accept the format, too, at a thousandth of the speed.
bool is_fast(const dnnl::matmul::primitive_desc& desc) {
  return std::string(desc.impl_info_str()).starts_with("brg");
}

struct Entry {
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul primitive;
};

// What one worker needs, so that there is no lock in the loop.
struct Worker {
  dnnl::stream stream{cpu_engine()};
  std::vector<float> result;                                // [n, 64]
  std::vector<std::byte> scratch;                           // oneDNN's, below 1 KiB without AMX
  std::map<std::pair<uint32_t, uint32_t>, Entry> products;  // by n and n_in

  const Entry& find(Compute compute, uint32_t n, uint32_t n_in) {
    const std::pair key{n, n_in};
    const auto found = products.find(key);
    if (found != products.end()) return found->second;
    if (products.size() >= 512) products.clear();  // steps of ever new widths
    auto desc = make_product(compute, n, n_in);
    scratch.resize(std::max(scratch.size(), desc.scratchpad_desc().get_size()));
    dnnl::matmul primitive(desc);
    return products.emplace(key, Entry{std::move(desc), std::move(primitive)}).first->second;
  }
};

}  // namespace

const char* name(Compute compute) {
  switch (compute) {
    case Compute::kBF16:
      return "bf16";
    case Compute::kInt8:
      return "int8";
    default:
      return "f32";
  }
}

bool compute_supported(Compute compute) {
  return compute != Compute::kBF16 || OneDnnProducts::supported(compute);
}

Compute plain_compute() {
  const bool bf16 = kernels::bf16_is_faster() && compute_supported(Compute::kBF16);
  return bf16 ? Compute::kBF16 : Compute::kF32;
}

struct OneDnnProducts::Impl {
  Compute compute;
  std::vector<Worker> workers;
};

OneDnnProducts::OneDnnProducts(Compute compute, uint32_t n_workers)
    : impl_(std::make_unique<Impl>()) {
  impl_->compute = compute;
  impl_->workers.resize(n_workers);
}

OneDnnProducts::~OneDnnProducts() = default;

std::string OneDnnProducts::library() {
  const dnnl_version_t& version = *dnnl_version();
  return std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
         std::to_string(version.patch) + " " + version.hash + " isa " +
         std::to_string(static_cast<int>(dnnl::get_effective_cpu_isa()));
}

bool OneDnnProducts::supported(Compute compute) try {
  stay_single_threaded();
  return is_fast(make_product(compute, 64, 64));
} catch (const dnnl::error&) {
  return false;
}

void OneDnnProducts::multiply(const PanelShape& s, const void* x, const void* w, float* y,
                              uint32_t worker_index) try {
  stay_single_threaded();
  Worker& worker = impl_->workers[worker_index];
  std::vector<float>& result = worker.result;
  result.resize(std::max(result.size(), size_t{s.n} * kPanel));
  const auto& [desc, primitive] = worker.find(impl_->compute, s.n, s.n_in);
  const auto wrap = [](const memory::desc& md, const void* data) {
    return memory(md, cpu_engine(), const_cast<void*>(data));
  };
  primitive.execute(worker.stream,
                    {{DNNL_ARG_SRC, wrap(desc.src_desc(), x)},
                     {DNNL_ARG_WEIGHTS, wrap(desc.weights_desc(), w)},
                     {DNNL_ARG_DST, wrap(desc.dst_desc(), result.data())},
                     {DNNL_ARG_SCRATCHPAD, wrap(desc.scratchpad_desc(), worker.scratch.data())}});
  for (size_t r = 0; r < s.n; ++r) {
    const float* from = result.data() + r * kPanel;
    float* to = y + r * s.y_stride;
    if (s.accumulate) {
      kernels::add_to(from, s.cols, to);
    } else {
      std::memcpy(to, from, s.cols * sizeof(float));
    }
  }
} catch (const dnnl::error& e) {
  throw Error(ErrorKind::kInternal, std::string("oneDNN's matrix product failed: ") + e.message);
}

}  // namespace kvasir
