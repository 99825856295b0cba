// kvasir.device-list-reader/1 of kvasir.cuda: items that come from the device give the bits of the
// same items in host memory; whatever they are, nothing outside is read.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/ext/draft/device_lists.h>

#include <cmath>

#include "tests/plugins/cuda/on_device.h"
#ifdef KVASIR_CUDA_EMULATION
#include "kernels/cuda/emulation/memory.h"
#endif

namespace {
using namespace kvasir;
using namespace kvasir::test;
using Indices = std::vector<uint32_t>;

constexpr uint32_t kHeads = 2, kBlock = 16;  // of small_geometry()

// A sequence of decoded tokens: per kv head block 0, what is chosen, and the last two blocks.
class Reader {
 public:
  Reader() : c_(6, kHeads, 32, 32) {
    c_.formats.resize(1);
    c_.geometry.n_formats = 1;
    c_.formats[0].mem_kind = KVASIR_MEM_DEVICE;
    REQUIRE(c_.geometry.block_size == kBlock);
    c_.add_part({0});
    grow(300);
    backend_.emplace(host_, KVASIR_TEST_BACKEND);
    backend_->bind(c_.geometry);
    table_ = static_cast<const kvasir_device_list_reader*>(
        (*backend_)->base.get_extension(backend_->self(), KVASIR_EXT_DEVICE_LIST_READER));
    REQUIRE(table_);
  }

  kvasir_lease& lease(uint32_t block) { return c_.leases[0][block]; }
  uint32_t n_blocks() const { return static_cast<uint32_t>(c_.leases[0].size()); }
  void grow(uint32_t n_tokens) {  // a multiple of the block's, or a beginning
    const size_t before = c_.leases[0].size();
    c_.add_tokens(0, static_cast<uint32_t>(before) * kBlock, n_tokens);
    move_leases(c_, 0, before, device_);
    c_.numbers.front()[0] = lease(n_blocks() - 1).pos_begin + lease(n_blocks() - 1).n_tokens - 1;
  }

  // Over host items, for each kv head those of chosen[head].
  AttentionResult on_host(const std::vector<Indices>& chosen) {
    lay_out(chosen);
    return run(*backend_, c_);
  }
  // Over chosen[head] on the device, where nothing is said to have changed since that many leases
  // were told.
  AttentionResult there(const std::vector<Indices>& chosen, uint32_t unchanged, uint64_t seq = 7) {
    lay_out(chosen);
    Indices all;
    lists_.clear();
    for (uint32_t head = 0; head < kHeads; ++head) {
      const kvasir_attn_range& range = c_.ranges[0][head];
      lists_.push_back({0, 0, range.item_begin + 1, chosen[head].size(), all.size()});
      all.insert(all.end(), chosen[head].begin(), chosen[head].end());
      std::fill_n(c_.numbers.back().begin() + static_cast<ptrdiff_t>(range.item_begin) + 1,
                  chosen[head].size(), 0u);  // placeholders
    }
    all.push_back(0);
    kvasir_view index = sdk::host_view(all.data(), {all.size()}, KVASIR_DTYPE_U32);
    device_.move(index);
    return call(index, {{seq, unchanged, 0}});
  }
  AttentionResult call(const kvasir_view& index, const std::vector<kvasir_attn_owner>& owners) {
    AttentionResult r;
    r.o.assign(size_t{c_.geometry.n_q_heads} * c_.geometry.v_dim, kUntouched);
    r.lse.assign(c_.geometry.n_q_heads, kUntouched);
    const kvasir_attn_in in = c_.input();
    kvasir_attn_out out{sizeof(kvasir_attn_out), 0,
                        sdk::host_view(r.o.data(), {1, c_.geometry.n_q_heads, c_.geometry.v_dim}),
                        sdk::host_view(r.lse.data(), {1, c_.geometry.n_q_heads}), 0};
    kvasir_step step{};
    step.struct_size = sizeof step;
    step.seq_size = sizeof(kvasir_step_seq);
    const kvasir_attn_lists lists{sizeof(kvasir_attn_lists),
                                  sizeof(kvasir_attn_list),
                                  lists_.data(),
                                  lists_.size(),
                                  owners.data(),
                                  sizeof(kvasir_attn_owner),
                                  0,
                                  index};
    r.status = table_->run(backend_->self(), &step, &in, &lists, &out, backend_->err());
    r.text = backend_->text();
    return r;
  }
  void forget(uint64_t seq) { table_->forget(backend_->self(), seq); }
  uint64_t kept_bytes(uint64_t n) { return table_->kept_bytes(backend_->self(), n); }
  std::vector<kvasir_attn_list>& lists() { return lists_; }

 private:
  void lay_out(const std::vector<Indices>& chosen) {
    Indices items;
    c_.ranges[0].clear();
    for (uint32_t head = 0; head < kHeads; ++head) {
      const size_t begin = items.size();
      items.push_back(0);
      items.insert(items.end(), chosen[head].begin(), chosen[head].end());
      items.insert(items.end(), {n_blocks() - 2, n_blocks() - 1});
      c_.add_range(0, head, 0, 1, begin, items.size());
    }
    c_.set_items(0, std::move(items));
  }

  OnDevice device_;
  FakeHost host_{1};
  AttentionCase c_;
  std::optional<Attention> backend_;
  const kvasir_device_list_reader* table_ = nullptr;
  std::vector<kvasir_attn_list> lists_;
};

void check_same(const AttentionResult& got, const AttentionResult& want) {
  REQUIRE_MESSAGE(want.status == KVASIR_OK, want.text);
  REQUIRE_MESSAGE(got.status == KVASIR_OK, got.text);
  CHECK(got.o == want.o);
  CHECK(got.lse == want.lse);
}

}  // namespace

TEST_SUITE("plugins/cuda/reader") {
  TEST_CASE(
      "items on the device, of a sequence that grows, of which only what "
      "is new is read") {
    Reader reader;  // 19 blocks, the last of 12 tokens
    const std::vector<Indices> first = {{2, 3, 9, 16}, {5, 8}};
    check_same(reader.there(first, 0), reader.on_host(first));
    // What was told is not looked at again.
    const kvasir_lease kept = reader.lease(3);
    const AttentionResult want = reader.on_host(first);
    reader.lease(3) = {};
    check_same(reader.there(first, 18), want);
    CHECK(reader.there(first, 3).status == KVASIR_ERR_INVALID);  // it is, where it may differ
    reader.lease(3) = kept;
    check_same(reader.there(first, 3), want);
    // The open block goes on, and others come behind it, more than the table had space for.
    reader.lease(18).n_tokens = 16;
    reader.grow(21 * kBlock);
    const std::vector<Indices> second = {{}, {18, 20, 37}};
    check_same(reader.there(second, 18), reader.on_host(second));
    check_same(reader.there(first, 40), reader.on_host(first));
    check_same(reader.there(first, 0, 8),
               reader.on_host(first));  // another sequence
  }

  TEST_CASE("what names no block is no key, whatever it is") {
    Reader reader;
    const std::vector<Indices> good = {{2, 9}, {5, 8}};
    const AttentionResult want = reader.on_host({{2, 9}, {5}});
    check_same(reader.there(good, 0), reader.on_host(good));
    for (const uint32_t far : {19u, 20u, 39u, 40u, 1u << 20, UINT32_MAX - 1, UINT32_MAX}) {
      CAPTURE(far);
      const AttentionResult got = reader.there({{2, 9}, {5, far}}, 18);
      REQUIRE_MESSAGE(got.status == KVASIR_OK, got.text);
      for (size_t i = 0; i < got.lse.size(); ++i)
        CHECK(got.lse[i] == doctest::Approx(want.lse[i]).epsilon(1e-6));
      for (size_t i = 0; i < got.o.size(); ++i) CHECK(std::abs(got.o[i] - want.o[i]) < 1e-5f);
    }
    check_same(reader.there(good, 18), reader.on_host(good));
  }

#ifdef KVASIR_CUDA_EMULATION
  TEST_CASE("tables take what was said, and go with their sequence") {
    Reader reader;
    const std::vector<Indices> chosen = {{2, 3, 9, 16}, {5, 8}};
    reader.there(chosen, 0, 1);  // buffers are made
    const auto used = [] {
      return cuda::emulation::memory_bytes() - cuda::emulation::free_bytes();
    };
    const uint64_t before = used();
    reader.there(chosen, 0, 2);
    const uint64_t table = used() - before;
    CHECK(table > 0);
    CHECK(table <= reader.kept_bytes(19) + 7 * sizeof(uint32_t));  // and the indices of the call
    reader.forget(2);
    reader.forget(3);
    CHECK(used() <= before + 7 * sizeof(uint32_t));
    check_same(reader.there(chosen, 18, 2),
               reader.on_host(chosen));  // and begins anew
  }
#endif

  TEST_CASE("lists that do not fit their parts are refused") {
    Reader reader;
    const std::vector<Indices> chosen = {{2, 3}, {5, 8}};
    REQUIRE(reader.there(chosen, 0).status == KVASIR_OK);
    const auto lists = reader.lists();
    OnDevice device;
    Indices some(5, 1);
    kvasir_view index = sdk::host_view(some.data(), {5}, KVASIR_DTYPE_U32);
    device.move(index);
    const auto text = [&](auto&& spoil) {
      reader.lists() = lists;
      kvasir_view view = index;
      spoil(reader.lists(), view);
      const AttentionResult r = reader.call(view, {{7, 0, 0}});
      CHECK(r.status == (r.text.empty() ? KVASIR_OK : KVASIR_ERR_INVALID));
      return r.text;
    };
    using Lists = std::vector<kvasir_attn_list>;
    CHECK(text([](Lists&, kvasir_view&) {}) == "");
    const auto says = [](const std::string& got, const char* part) {
      CAPTURE(got);
      CHECK(got.find(part) != std::string::npos);
    };
    says(text([](Lists& l, kvasir_view&) { l[1].part = 1; }), "a list names part 1 of 1");
    says(text([](Lists& l, kvasir_view&) { l[0].n = 5; }), "reaches past its range");
    says(text([](Lists& l, kvasir_view&) { l[0].item_begin = 1000; }), "reaches past its range");
    says(text([](Lists& l, kvasir_view&) { l[0].first = 4; }), "reaches past its range");
    says(text([](Lists& l, kvasir_view&) { l[0].first = UINT64_MAX; }), "reaches past its range");
    says(text([](Lists&, kvasir_view& v) { v.mem_kind = KVASIR_MEM_HOST; }), "device memory");
    says(text([](Lists&, kvasir_view& v) { v.dtype = KVASIR_DTYPE_F32; }), "device memory");
  }
}
