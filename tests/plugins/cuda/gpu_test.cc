// What kvasir.gpu, and kvasir.gpu_tiered (KVASIR_TEST_IS_TIERED), do beside the cases of every
// storage: tokens in device memory, its memory for others, and a device that is full. On the
// emulation, where every access is checked, and on a device.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/ext/draft/device_memory.h>
#include <kvasir/ext/draft/stream.h>
#include <kvasir/sdk/view.h>

#include <cmath>
#include <cstring>
#include <random>
#include <tuple>

#include "kernels/convert.h"
#include "plugins/shared/element_type.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"
#ifdef KVASIR_CUDA_EMULATION
#include "kernels/cuda/emulation/capture.h"
#include "kernels/cuda/emulation/memory.h"
#endif

namespace {
using namespace kvasir;
using namespace kvasir::test;

#ifdef KVASIR_TEST_IS_TIERED
constexpr const char* kInstead = "plugin = \"tiered\"";
#else
constexpr const char* kInstead = "plugin = \"dram\"";
#endif
constexpr uint32_t kHeads = 2, kBlock = 16;
constexpr uint32_t kDim = 32;  // where a case does not say another

kvasir_block_key key(uint32_t block, uint32_t kv_head = KVASIR_ALL_HEADS) {
  return {{1, 2}, 0, block, kv_head, 0, 0, nullptr};
}

struct Gpu {
  CompletingHost host;
  PluginInstance<kvasir_storage> storage;
  kvasir_geometry geometry = small_geometry();

  explicit Gpu(const OptionValues& options = {}, uint32_t dim = kDim)
      : storage(host, KVASIR_TEST_STORAGE, options) {
    geometry.head_dim = geometry.v_dim = dim;
    storage.bind(geometry);
  }
  kvasir_status try_write(const kvasir_block_key& k, kvasir_lease& out) {
    return storage->acquire(storage.self(), &k, 1, sizeof k, KVASIR_ACQUIRE_WRITE, &out, sizeof out,
                            storage.err());
  }
  kvasir_lease write(const kvasir_block_key& k) {
    kvasir_lease out{};
    REQUIRE_MESSAGE(try_write(k, out) == KVASIR_OK, storage.text());
    return out;
  }
  kvasir_status write_tokens(const kvasir_token_span& span, const std::vector<float>& k,
                             const std::vector<float>& v) {
    const uint32_t dim = geometry.head_dim;
    const uint64_t n = k.size() / (kHeads * dim);
    const kvasir_view k_view = sdk::host_view(k.data(), {n, kHeads, dim});
    const kvasir_view v_view = sdk::host_view(v.data(), {n, kHeads, dim});
    return storage->write_tokens(storage.self(), &span, 1, sizeof span, &k_view, &v_view,
                                 storage.err());
  }
  kvasir_status save(const kvasir_token_span& span, std::vector<uint8_t>& bytes) {
    return storage->save_tokens(storage.self(), &span, 1, sizeof span, bytes.data(), bytes.size(),
                                storage.err());
  }
  kvasir_status load(const kvasir_token_span& span, const std::vector<uint8_t>& bytes) {
    return storage->load_tokens(storage.self(), &span, 1, sizeof span, bytes.data(), bytes.size(),
                                storage.err());
  }
  kvasir_status copy(const kvasir_token_copy& c) {
    return storage->copy_tokens(storage.self(), &c, 1, sizeof c, storage.err());
  }
  const kvasir_device_memory& memory() {
    const void* table = storage->base.get_extension(storage.self(), KVASIR_EXT_DEVICE_MEMORY);
    REQUIRE(table != nullptr);
    return *static_cast<const kvasir_device_memory*>(table);
  }
};

std::vector<float> numbers(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

// What save_tokens() gives of tokens [0, n) that were written: [kv head][token], K before V.
std::vector<uint8_t> saved(uint32_t dtype, const std::vector<float>& k, const std::vector<float>& v,
                           uint32_t n) {
  const kernels::ElementType type = sdk::element_type(dtype);
  const size_t dim = k.size() / (n * kHeads), row = kernels::row_bytes(type, dim);
  std::vector<uint8_t> out;
  for (uint32_t head = 0; head < kHeads; ++head)
    for (uint32_t t = 0; t < n; ++t)
      for (const std::vector<float>* x : {&k, &v}) {
        out.resize(out.size() + row);
        kernels::convert_from_f32(type, x->data() + (t * kHeads + head) * dim,
                                  out.data() + out.size() - row, dim);
      }
  return out;
}

}  // namespace

TEST_SUITE("plugins/cuda/gpu") {
  TEST_CASE("tokens are written, saved, loaded and copied, in every type") {
    const std::tuple<const char*, uint32_t, uint32_t> types[] = {
        {"f32", KVASIR_DTYPE_F32, 32},          {"f16", KVASIR_DTYPE_F16, 33},
        {"bf16", KVASIR_DTYPE_BF16, 32},        {"q8_0", KVASIR_DTYPE_Q8_0, 32},
        {"q4_0", KVASIR_DTYPE_Q4_0, 32},        {"fp8_e4m3", KVASIR_DTYPE_FP8_E4M3, 32},
        {"fp8_e4m3", KVASIR_DTYPE_FP8_E4M3, 33}};
    for (const auto& [name, dtype, dim] : types) {
      CAPTURE(name);
      CAPTURE(dim);
      Gpu gpu({{"type_k", name}, {"type_v", name}}, dim);
      const kvasir_lease first = gpu.write(key(0)), second = gpu.write(key(1));
      const uint32_t n = 5;
      const auto k = numbers(n * kHeads * dim, 1), v = numbers(n * kHeads * dim, 2);
      REQUIRE_MESSAGE(gpu.write_tokens({&first, 3, n}, k, v) == KVASIR_OK, gpu.storage.text());
      const std::vector<uint8_t> wanted = saved(dtype, k, v, n);
      std::vector<uint8_t> bytes(wanted.size());
      REQUIRE_MESSAGE(gpu.save({&first, 3, n}, bytes) == KVASIR_OK, gpu.storage.text());
      CHECK(bytes == wanted);
      REQUIRE(gpu.load({&second, kBlock - n, n}, wanted) == KVASIR_OK);
      // One head of the tokens that were loaded, over those of the first block.
      REQUIRE(gpu.load({&first, 3, n}, std::vector<uint8_t>(wanted.size(), 0)) == KVASIR_OK);
      REQUIRE(gpu.copy({&second, &first, kBlock - n, 3, n, 1}) == KVASIR_OK);
      REQUIRE(gpu.save({&first, 3, n}, bytes) == KVASIR_OK);
      const size_t half = wanted.size() / 2;
      CHECK(bytes == [&] {
        std::vector<uint8_t> out(half, 0);
        out.insert(out.end(), wanted.begin() + static_cast<int64_t>(half), wanted.end());
        return out;
      }());
      REQUIRE(gpu.copy({&second, &first, kBlock - n, 3, n, KVASIR_ALL_HEADS}) == KVASIR_OK);
      REQUIRE(gpu.save({&first, 3, n}, bytes) == KVASIR_OK);
      CHECK(bytes == wanted);
    }
  }

  TEST_CASE("a block of one head takes that head of what is written") {
    Gpu gpu({{"type_k", "f32"}, {"type_v", "f32"}});
    const kvasir_lease lease = gpu.write(key(0, 1));
    const auto k = numbers(2 * kHeads * kDim, 1), v = numbers(2 * kHeads * kDim, 2);
    REQUIRE(gpu.write_tokens({&lease, 0, 2}, k, v) == KVASIR_OK);
    const std::vector<uint8_t> all = saved(KVASIR_DTYPE_F32, k, v, 2);
    std::vector<uint8_t> bytes(all.size() / 2);
    REQUIRE(gpu.save({&lease, 0, 2}, bytes) == KVASIR_OK);
    CHECK(std::equal(bytes.begin(), bytes.end(), all.end() - static_cast<int64_t>(bytes.size())));
  }

  TEST_CASE("what is wrong with a call of tokens is refused with a sentence") {
    Gpu gpu;
    const kvasir_lease lease = gpu.write(key(0));
    const auto refused = [&](kvasir_status status, const char* part) {
      CHECK(status == KVASIR_ERR_INVALID);
      CHECK_MESSAGE(gpu.storage.text().find(part) != std::string::npos, gpu.storage.text());
    };
    const auto values = numbers(2 * kHeads * kDim, 1);
    refused(gpu.write_tokens({&lease, 15, 2}, values, values), "of a block of 16");
    refused(gpu.write_tokens({&lease, 0, 3}, values, values), "K must be f32 [3][2][32]");
    std::vector<uint8_t> bytes(100);
    refused(gpu.save({&lease, 0, 1}, bytes), "take 256 bytes, and 100 were given");
    refused(gpu.load({&lease, 0, 1}, bytes), "take 256 bytes, and 100 were given");
    refused(gpu.copy({&lease, &lease, 0, 14, 3, 0}), "of a block of 16");
    refused(gpu.copy({&lease, &lease, 0, 4, 3, 2}), "a kv head that a lease does not cover");
    kvasir_lease forged = lease;
    forged.k = bytes.data();
    refused(gpu.save({&forged, 0, 1}, bytes), "not of its blocks");
  }

#ifdef KVASIR_CUDA_EMULATION
  TEST_CASE("a device that is full is OUT_OF_MEMORY with the remedy, and goes on afterwards") {
    Gpu gpu({{"type_k", "f32"}, {"type_v", "f32"}});
    cuda::emulation::set_memory(uint64_t{5} << 20);
    kvasir_lease lease{};
    uint32_t n = 0;
    while (gpu.try_write(key(n), lease) == KVASIR_OK) ++n;
    CHECK(n == 512);  // blocks of 8 KiB: 2 MiB, then 2 MiB more
    const std::string text = gpu.storage.text();
    CAPTURE(text);
    CHECK(text.find("after 4 MiB for blocks") != std::string::npos);
    CHECK(text.find(kInstead) != std::string::npos);
    cuda::emulation::set_memory(uint64_t{16} << 30);
    CHECK(gpu.try_write(key(n), lease) == KVASIR_OK);
  }
#endif

  TEST_CASE("its memory is lent, copied in every direction, cleared and given back") {
#ifdef KVASIR_CUDA_EMULATION
    const uint64_t before = cuda::emulation::n_allocated();
#endif
    {
      Gpu gpu;
      const kvasir_device_memory& memory = gpu.memory();
      void* a = nullptr;
      void* b = nullptr;
      for (void** data : {&a, &b})
        REQUIRE(memory.alloc(gpu.storage.self(), 64, data, gpu.storage.err()) == KVASIR_OK);
      const std::vector<float> in = numbers(16, 4);
      std::vector<float> out(16);
      const auto view = [](const void* data, uint32_t kind) {
        kvasir_view v = sdk::host_view(data, {4, 4});
        v.mem_kind = kind;
        return v;
      };
      const auto copy = [&](const kvasir_view& to, const kvasir_view& from) {
        return memory.copy(gpu.storage.self(), &to, &from, gpu.storage.err());
      };
      const kvasir_view on_a = view(a, KVASIR_MEM_DEVICE), on_b = view(b, KVASIR_MEM_DEVICE);
      const kvasir_view to = view(out.data(), KVASIR_MEM_HOST);
      REQUIRE(copy(on_a, view(in.data(), KVASIR_MEM_HOST)) == KVASIR_OK);
      REQUIRE(copy(on_b, on_a) == KVASIR_OK);
      REQUIRE(copy(to, on_b) == KVASIR_OK);
      CHECK(out == in);
      REQUIRE(memory.zero(gpu.storage.self(), b, 32, gpu.storage.err()) == KVASIR_OK);
      REQUIRE(copy(to, on_b) == KVASIR_OK);
      CHECK(out[7] == 0.0f);
      CHECK(out[8] == in[8]);
      kvasir_view small = on_a;
      small.shape[0] = 3;
      CHECK(copy(on_b, small) == KVASIR_ERR_INVALID);
      for (void* data : {a, b}) memory.free(gpu.storage.self(), data);
      const kvasir_lease lease = gpu.write(key(0));
      gpu.storage->release(gpu.storage.self(), &lease.lease, 1);
#ifdef KVASIR_CUDA_EMULATION
      CHECK(cuda::emulation::n_allocated() > before);
#endif
    }
#ifdef KVASIR_CUDA_EMULATION
    CHECK(cuda::emulation::n_allocated() == before);
#endif
  }

  TEST_CASE("it says whether numbers of its memory are finite, call after call") {
    Gpu gpu;
    const kvasir_device_memory& memory = gpu.memory();
    const auto answer = [&](const std::vector<float>& values, uint32_t dtype = KVASIR_DTYPE_F32) {
      const DeviceArray<float> there(values);
      kvasir_view view = sdk::host_view(there.data(), {values.size()}, dtype);
      view.mem_kind = KVASIR_MEM_DEVICE;
      uint32_t out = 17;
      const kvasir_status status =
          memory.all_finite(gpu.storage.self(), &view, &out, gpu.storage.err());
      return status == KVASIR_OK ? static_cast<int64_t>(out) : status;
    };
    std::vector<float> values = numbers(3000, 5);
    CHECK(answer(values) == 1);
    values.back() = INFINITY;
    CHECK(answer(values) == 0);
    values.back() = 0;
    CHECK(answer(values) == 1);
    values.front() = NAN;
    CHECK(answer(values) == 0);
    CHECK(answer({}) == 1);
    CHECK(answer(values, KVASIR_DTYPE_U32) == KVASIR_ERR_INVALID);
    const kvasir_view here = sdk::host_view(values.data(), {values.size()});
    uint32_t out = 17;
    CHECK(memory.all_finite(gpu.storage.self(), &here, &out, gpu.storage.err()) ==
          KVASIR_ERR_INVALID);
  }

  TEST_CASE("it copies and says of several arrays whether they are finite, at once") {
    Gpu gpu;
    const kvasir_device_memory& memory = gpu.memory();
    const std::vector<float> good = numbers(700, 1);
    std::vector<float> bad = numbers(5000, 2);
    bad[4321] = -INFINITY;
    const DeviceArray<float> there(good), spoilt(bad);
    const auto view = [](const DeviceArray<float>& array, uint64_t n) {
      kvasir_view v = sdk::host_view(array.data(), {n});
      v.mem_kind = KVASIR_MEM_DEVICE;
      return v;
    };
    std::vector<float> here(700);
    const kvasir_view to = sdk::host_view(here.data(), {700}), from = view(there, 700);
    const kvasir_view of[] = {view(spoilt, 5000), from, view(spoilt, 4321)};
    uint32_t out[] = {7, 7, 7, 7};
    REQUIRE(memory.fetch(gpu.storage.self(), &to, &from, of, 3, out, gpu.storage.err()) ==
            KVASIR_OK);
    CHECK(here == good);
    CHECK(std::vector<uint32_t>(out, out + 4) == std::vector<uint32_t>{0, 1, 1, 7});
    const kvasir_view no_to = sdk::host_view(here.data(), {0}), no_from = view(there, 0);
    CHECK(memory.fetch(gpu.storage.self(), &no_to, &no_from, of, 1, out, gpu.storage.err()) ==
          KVASIR_OK);
    CHECK(memory.fetch(gpu.storage.self(), &no_to, &no_from, nullptr, 0, out, gpu.storage.err()) ==
          KVASIR_OK);
    CHECK(memory.fetch(gpu.storage.self(), &to, &no_from, of, 1, out, gpu.storage.err()) ==
          KVASIR_ERR_INVALID);
    CHECK(memory.fetch(gpu.storage.self(), &to, &from, &to, 1, out, gpu.storage.err()) ==
          KVASIR_ERR_INVALID);
  }

#if defined(KVASIR_CUDA_EMULATION) && !defined(KVASIR_TEST_IS_TIERED)
  TEST_CASE("its stream goes on after calls that stay on the device, once it is lent") {
    Gpu gpu;
    const auto extension = [&](const char* id) {
      return gpu.storage->base.get_extension(gpu.storage.self(), id);
    };
    const auto* streams = static_cast<const kvasir_stream*>(extension(KVASIR_EXT_STREAM));
    const auto* user = static_cast<const kvasir_stream_user*>(extension(KVASIR_EXT_STREAM_USER));
    REQUIRE(streams);
    REQUIRE(user);
    void* const self = gpu.storage.self();
    kvasir_stream_handle stream = 0, again = 0;
    REQUIRE(streams->create(self, &stream, gpu.storage.err()) == KVASIR_OK);
    REQUIRE(streams->create(self, &again, gpu.storage.err()) == KVASIR_OK);
    CHECK(stream != 0);
    CHECK(stream == again);
    CHECK(user->set_stream(self, stream + 8, gpu.storage.err()) == KVASIR_ERR_INVALID);

    const DeviceArray<uint8_t> bytes(std::vector<uint8_t>{1, 2, 3});
    const auto zero = [&] {
      const uint64_t before = cuda::emulation::n_waits();
      REQUIRE(gpu.memory().zero(self, bytes.data(), 2, gpu.storage.err()) == KVASIR_OK);
      return cuda::emulation::n_waits() - before;
    };
    CHECK(zero() == 1);
    REQUIRE(user->set_stream(self, stream, gpu.storage.err()) == KVASIR_OK);
    CHECK(zero() == 0);
    kvasir_event_handle event = 0;
    REQUIRE(streams->record(self, stream, &event, gpu.storage.err()) == KVASIR_OK);
    REQUIRE(streams->follow(self, stream, event, gpu.storage.err()) == KVASIR_OK);
    const uint64_t before = cuda::emulation::n_waits();
    REQUIRE(streams->wait(self, event, gpu.storage.err()) == KVASIR_OK);
    CHECK(cuda::emulation::n_waits() == before + 1);
    REQUIRE(user->set_stream(self, 0, gpu.storage.err()) == KVASIR_OK);
    CHECK(zero() == 1);
    streams->destroy(self, stream);
  }
#endif
}
