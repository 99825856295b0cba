// kvasir.cuda_minmax and kvasir.cuda_mean beside their twins on the host: the same records, the
// same scores. On the emulation, where every access is checked.
// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "kernels/cuda/emulation/memory.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/plugins/representative/scene.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr float kLowest = std::numeric_limits<float>::lowest();

std::string on_device(const std::string& name) {
  return KVASIR_TEST_FOLDER "/cuda_" + name + "_emulation.so";
}

// The keys and records of a scene on the device, and calls that lie there.
struct DeviceScene : Scene {
  std::vector<std::unique_ptr<DeviceArray<std::byte>>> keys_there;
  std::vector<std::unique_ptr<DeviceArray<float>>> pages_there;
  std::vector<void*> pages;
  std::vector<uint64_t> seq_pages;
  kvasir_slab there{};

  DeviceScene(uint32_t dtype, uint32_t head_dim, uint32_t block_size)
      : Scene(dtype, head_dim, block_size) {
    format.mem_kind = KVASIR_MEM_DEVICE;
  }
  void fill(uint32_t n) {
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    for (uint32_t b = 0; b < n; ++b)
      add_block(geometry.block_size, [&](uint32_t, uint32_t, uint32_t) { return normal(random); });
  }
  // Everything but the records that update() is to make.
  void prepare_there(Representative& plugin) {
    prepare(plugin);
    CHECK(layout.mem_kind == KVASIR_MEM_DEVICE);
    there = *slab.get();
    there.mem_kind = KVASIR_MEM_DEVICE;
    for (uint32_t b = 0; b < n_blocks(); ++b) {
      keys_there.push_back(std::make_unique<DeviceArray<std::byte>>(blocks[b]));
      leases[b].k = keys_there.back()->data();
    }
    pages_there.clear();
    pages.clear();
    for (const auto& page : slab.records()) {
      pages_there.push_back(std::make_unique<DeviceArray<float>>(page));
      pages.push_back(pages_there.back()->data());
    }
    seq_pages = {0, pages.size()};
    point_at_pages();
  }
  void point_at_pages() {
    there.pages = pages.data();
    there.seq_pages = seq_pages.data();
    step.slab = &there;
  }
  void build_there(Representative& plugin) {
    prepare_there(plugin);
    std::vector<kvasir_update_item> items;
    for (uint32_t b = 0; b < n_blocks(); ++b)
      items.push_back(item(b, 0, n_tokens[b], KVASIR_ITEM_NEW | KVASIR_ITEM_SEALED));
    update(plugin, items);
  }
  std::vector<std::vector<float>> records_there() const {
    std::vector<std::vector<float>> out;
    for (const auto& page : pages_there) out.push_back(page->values());
    return out;
  }

  struct Asked {
    kvasir_status status;
    std::vector<std::vector<float>> scores;  // [sequence and head][candidate]
  };
  // n candidates of each sequence; q [n_seqs][n_q_heads][head_dim], with a gap between sequences.
  Asked ask(Representative& plugin, const std::vector<float>& q, size_t n, uint32_t flags = 0,
            uint32_t q_kind = KVASIR_MEM_DEVICE, uint32_t score_kind = KVASIR_MEM_DEVICE,
            uint64_t n_missing = 0) {
    const size_t n_heads = flags & KVASIR_SCORE_SUMMED ? geometry.n_kv_heads : geometry.n_q_heads;
    const size_t width = size_t{geometry.n_q_heads} * geometry.head_dim, gap = 3;
    std::vector<float> spread(step.n_seqs * (width + gap), std::nanf(""));
    for (size_t s = 0; s < step.n_seqs; ++s)
      std::copy_n(q.begin() + static_cast<long>(s * width), width,
                  spread.begin() + static_cast<long>(s * (width + gap)));
    const size_t n_lists = step.n_seqs * n_heads;
    const DeviceArray<float> queries(spread), value(std::vector<float>(n_lists * n + 1, 12345.0f));
    kvasir_score_in in{
        sizeof in, flags,
        sdk::host_view(queries.data(), {step.n_seqs, geometry.n_q_heads, geometry.head_dim}), 0, 0};
    in.q.mem_kind = q_kind;
    in.q.stride[0] = static_cast<int64_t>((width + gap) * sizeof(float));
    std::vector<uint64_t> offsets;
    for (size_t i = 0; i <= n_lists; ++i) offsets.push_back(i * n);
    kvasir_score_out out{sizeof out, 0, offsets.data(), sdk::host_view(value.data(), {n_lists * n}),
                         0};
    out.value.mem_kind = score_kind;
    out.value.shape[0] -= n_missing;
    Asked asked{plugin->score(plugin.self(), &step, &in, &out, plugin.err()), {}};
    const std::vector<float> all = value.values();
    CHECK(all.back() == 12345.0f);
    for (size_t i = 0; i < n_lists; ++i)
      asked.scores.emplace_back(all.begin() + static_cast<long>(i * n),
                                all.begin() + static_cast<long>((i + 1) * n));
    return asked;
  }
  std::vector<std::vector<float>> score_there(Representative& plugin, const std::vector<float>& q,
                                              size_t n, uint32_t flags = 0) {
    const Asked asked = ask(plugin, q, n, flags);
    REQUIRE_MESSAGE(asked.status == KVASIR_OK, plugin.text());
    return asked.scores;
  }
};

// Summed over channels in another order.
void check_alike(const std::vector<std::vector<float>>& got,
                 const std::vector<std::vector<float>>& want) {
  REQUIRE(got.size() == want.size());
  for (size_t head = 0; head < got.size(); ++head)
    for (size_t i = 0; i < got[head].size(); ++i)
      CHECK(got[head][i] == doctest::Approx(want[head][i]).epsilon(1e-5).scale(10));
}

}  // namespace

TEST_SUITE("plugins/cuda/representative") {
  TEST_CASE("records and scores are those of the host's plugin, in every type") {
    for (const std::string name : {"minmax", "mean"})
      for (const std::string type : {"f16", "f32"})
        for (const uint32_t dtype : {KVASIR_DTYPE_F32, KVASIR_DTYPE_F16, KVASIR_DTYPE_BF16})
          for (const auto& shape : {std::pair{1u, 1u}, {7u, 4u}, {80u, 16u}}) {
            const uint32_t dim = shape.first, block_size = shape.second;
            CAPTURE(name);
            CAPTURE(type);
            CAPTURE(dtype);
            CAPTURE(dim);
            FakeHost host;
            Representative here(host, name, {{"dtype", type}});
            Representative there(host, on_device(name), {{"dtype", type}});
            DeviceScene scene(dtype, dim, block_size);
            scene.fill(11);
            scene.build(here);
            const kvasir_layout layout = scene.layout;
            const auto records = scene.slab.records();
            const std::vector<float> q = scene.random_query(dim);
            const auto each = scene.score(here, q, 11);
            const auto summed = scene.score(here, q, 11, KVASIR_SCORE_SUMMED);
            scene.build_there(there);
            CHECK(scene.layout.record_bytes == layout.record_bytes);
            CHECK(scene.layout.format == layout.format);
            CHECK(scene.layout.flags == layout.flags);
            CHECK(std::memcmp(scene.records_there()[1].data(), records[1].data(),
                              records[1].size() * sizeof(float)) == 0);
            CHECK(scene.records_there() == records);
            check_alike(scene.score_there(there, q, 11), each);
            check_alike(scene.score_there(there, q, 11, KVASIR_SCORE_SUMMED), summed);
          }
  }

  TEST_CASE("a smaller box is scored as the host scores it") {
    FakeHost host;
    Representative here(host, "minmax", {{"box_scale", 0.25}});
    Representative there(host, on_device("minmax"), {{"box_scale", 0.25}});
    DeviceScene scene(KVASIR_DTYPE_F16, 32, 16);
    scene.fill(9);
    scene.build(here);
    const std::vector<float> q = scene.random_query(1);
    const auto want = scene.score(here, q, 9);
    scene.build_there(there);
    check_alike(scene.score_there(there, q, 9), want);
  }

  TEST_CASE("listed candidates have the bits of the range, without a record they rank last") {
    FakeHost host;
    Representative there(host, on_device("minmax"));
    DeviceScene scene(KVASIR_DTYPE_F16, 32, 16);
    scene.fill(130);
    scene.build_there(there);
    const std::vector<float> q = scene.random_query(2);
    const auto all = scene.score_there(there, q, 130);
    for (const uint32_t scope : {KVASIR_SCOPE_SEQUENCE, KVASIR_SCOPE_KV_HEAD}) {
      const uint32_t n_lists = scope == KVASIR_SCOPE_SEQUENCE ? 1 : 2;
      std::vector<std::vector<uint32_t>> lists(n_lists);
      for (uint32_t i = 0; i < n_lists; ++i)
        for (uint32_t b = 0; lists[i].size() < 60; b += 1 + (b + i) % 3) lists[i].push_back(b);
      const SelectionBuffer list(KVASIR_UNIT_BLOCK, scope, lists);
      scene.step.candidates = &list.selection;
      const auto some = scene.score_there(there, q, 60);
      for (uint32_t h = 0; h < 4; ++h)
        for (size_t i = 0; i < 60; ++i)
          CHECK(some[h][i] == all[h][lists[n_lists == 1 ? 0 : h / 2][i]]);
    }
    scene.step.candidates = nullptr;
    scene.pages[1] = nullptr;
    const auto holes = scene.score_there(there, q, 130);
    for (uint32_t b = 0; b < 130; ++b)
      CHECK(holes[3][b] == (b / Slab::kPageBlocks == 1 ? kLowest : all[3][b]));
    scene.seq.unit_begin = scene.seq.unit_end;
    CHECK(scene.score_there(there, q, 0).size() == 4);  // nothing to score
  }

  TEST_CASE("each sequence has its own pages and its own queries") {
    FakeHost host;
    Representative there(host, on_device("mean"));
    DeviceScene scene(KVASIR_DTYPE_F16, 24, 8);
    scene.fill(12);  // three pages of four
    scene.build_there(there);
    const std::vector<float> first = scene.random_query(3), second = scene.random_query(4);
    const auto of_first = scene.score_there(there, first, 12);
    const auto of_second = scene.score_there(there, second, 12);
    std::vector<kvasir_step_seq> seqs(2, scene.seq);
    scene.step.n_seqs = 2;
    scene.step.seqs = seqs.data();
    scene.pages.insert(scene.pages.end(), {scene.pages[2], scene.pages[1], scene.pages[0]});
    scene.seq_pages = {0, 3, 6};
    scene.point_at_pages();
    std::vector<float> both = first;
    both.insert(both.end(), second.begin(), second.end());
    const auto scores = scene.score_there(there, both, 12);
    REQUIRE(scores.size() == 8);
    for (size_t h = 0; h < 4; ++h) {
      CHECK(scores[h] == of_first[h]);
      for (size_t b = 0; b < 12; ++b)
        CHECK(scores[4 + h][b] == of_second[h][(2 - b / 4) * 4 + b % 4]);
    }
  }

  TEST_CASE("a block that is not full yet has no record; what was allocated goes back") {
    const uint64_t before = cuda::emulation::n_allocated();
    {
      FakeHost host;
      Representative there(host, on_device("minmax"));
      DeviceScene scene(KVASIR_DTYPE_F32, 16, 16);
      scene.fill(6);
      scene.prepare_there(there);
      const auto empty = scene.records_there();
      scene.update(there, {scene.item(0, 0, 5, KVASIR_ITEM_NEW), scene.item(1, 0, 0, 0)});
      CHECK(scene.records_there() == empty);
      scene.update(there, {scene.item(0, 5, 11, KVASIR_ITEM_NEW | KVASIR_ITEM_SEALED)});
      CHECK(scene.records_there() != empty);
      scene.ask(there, scene.random_query(1), 6);
      CHECK(cuda::emulation::n_allocated() > before);
    }
    CHECK(cuda::emulation::n_allocated() == before);
  }

  TEST_CASE("what lies in host memory, or does not fit, is refused in a sentence") {
    FakeHost host;
    Representative there(host, on_device("minmax"));
    DeviceScene scene(KVASIR_DTYPE_F16, 16, 16);
    scene.fill(4);
    scene.build_there(there);
    const std::vector<float> q = scene.random_query(1);
    const auto says = [&](const char* part) {
      return there.text().find(part) != std::string::npos;
    };
    CHECK(scene.ask(there, q, 4, 0, KVASIR_MEM_HOST).status == KVASIR_ERR_INVALID);
    CHECK(says("score: q must be f32 [1][4][16]"));
    CHECK(scene.ask(there, q, 4, 0, KVASIR_MEM_DEVICE, KVASIR_MEM_HOST).status ==
          KVASIR_ERR_INVALID);
    CHECK(says("score: the scores must be f32 [16] in device memory"));
    CHECK(scene.ask(there, q, 4, 0, KVASIR_MEM_DEVICE, KVASIR_MEM_DEVICE, 1).status ==
          KVASIR_ERR_INVALID);
    CHECK(says("score: the scores must be f32 [16] in device memory"));
    CHECK(scene.ask(there, q, 3).status == KVASIR_ERR_INVALID);
    CHECK(says("offsets do not fit the candidates"));
    const auto sealed = scene.item(0, 0, 16, KVASIR_ITEM_SEALED);
    const auto try_update = [&] {
      return there->update(there.self(), &scene.step, &sealed, 1, sizeof sealed, there.err());
    };
    for (const uint64_t bytes : {scene.there.record_bytes - 4, scene.there.record_bytes}) {
      scene.there.record_bytes = bytes;
      scene.there.mem_kind = bytes % 64 ? KVASIR_MEM_DEVICE : KVASIR_MEM_HOST;
      CHECK(try_update() == KVASIR_ERR_INVALID);
      CHECK(says("the records are not those that layout() asked for"));
      CHECK(scene.ask(there, q, 4).status == KVASIR_ERR_INVALID);
      scene.there.record_bytes = scene.layout.record_bytes;
    }
    scene.there.mem_kind = KVASIR_MEM_DEVICE;
    scene.leases[0].k = nullptr;
    CHECK(try_update() == KVASIR_ERR_INVALID);
    CHECK(says("block 0 has no keys at hand"));

    DeviceScene at_home(KVASIR_DTYPE_F16, 16, 16);
    at_home.format.mem_kind = KVASIR_MEM_HOST;
    at_home.fill(1);
    Representative other(host, on_device("mean"));
    at_home.prepare_there(other);
    const auto item = at_home.item(0, 0, 16, KVASIR_ITEM_SEALED);
    CHECK(other->update(other.self(), &at_home.step, &item, 1, sizeof item, other.err()) ==
          KVASIR_ERR_INVALID);
    CHECK(other.text() ==
          "block 0 lies in host memory; kvasir.cuda_mean reads K in device memory: take [storage] "
          "plugin = \"gpu\"");
  }

  TEST_CASE("a run that it cannot serve is refused before it begins") {
    FakeHost host;
    Representative there(host, on_device("minmax"));
    DeviceScene scene(KVASIR_DTYPE_F16, 257, 16);
    const auto validate = [&] {
      return there->base.validate(there.self(), &scene.geometry, there.err());
    };
    CHECK(validate() == KVASIR_ERR_UNSUPPORTED);
    CHECK(there.text().find("heads of 257 elements, kvasir.cuda_minmax") != std::string::npos);
    scene.geometry.head_dim = 80;
    scene.format.dtype_k = KVASIR_DTYPE_Q8_0;
    CHECK(validate() == KVASIR_ERR_INVALID);
    CHECK(there.text().find("head_dim = 80") != std::string::npos);
    scene.format.dtype_k = KVASIR_DTYPE_U8;
    CHECK(validate() == KVASIR_ERR_UNSUPPORTED);
    scene.format.dtype_k = KVASIR_DTYPE_F16;
    CHECK(validate() == KVASIR_OK);
    scene.geometry.n_kv_heads = 3;
    CHECK(validate() == KVASIR_ERR_INVALID);
  }
}
