// A storage that misbehaves on request, to prove that the host notices: option `fault`, from call
// number `from_call` of the function it spoils on. Probe: 0 = blocks, 1 = leases.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/plugins/fakes/memory_storage.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr const char* kFaults[] = {
    "none",       "acquire_error", "acquire_again",   "full",          "null_keys",  "wrong_format",
    "wrong_head", "lost",          "unknown_state",   "seal_error",    "drop_error", "no_formats",
    "misaligned", "huge_block",    "no_block_bytes",  "overlap",       "odd_stride", "odd_dtype",
    "undeclared", "vast_stride",   "changes_at_seal", "changes_later", "nan_later",  "odd_memory"};
constexpr kvasir_option_schema kOptions[] = {
    sdk::enum_option({.key = "fault", .help = "what goes wrong"}, kFaults, 0),
    sdk::int_option({.key = "from_call", .help = "honest calls before that"}, 0, 0, 1 << 30),
    sdk::int_option({.key = "most_blocks", .help = "full: what it holds"}, 0, 0, 1 << 30)};

class BadStorage : public MemoryStorage {
 public:
  static constexpr kvasir_desc kDesc =
      fake_desc(KVASIR_KIND_STORAGE, "kvasir.test.bad_storage", kOptions,
                {.provides = KVASIR_PROVIDE_STABLE_LEASES});

  BadStorage(const sdk::Host&, const sdk::Options& o)
      : MemoryStorage(true),
        fault_(kFaults[o.choice("fault")]),
        honest_(o.u32("from_call")),
        most_blocks_(o.u32("most_blocks")) {}
  const void* get_extension(const char* id) { return probe_extension<BadStorage>(id); }
  uint64_t probe(uint32_t item) const { return item == 0 ? n_blocks() : n_leases(); }

  void plan(const kvasir_geometry& geometry, kvasir_storage_plan& out) const {
    MemoryStorage::plan(geometry, out);
    if (fault_ == "huge_block") out.block_bytes = UINT64_MAX;
    if (fault_ == "no_block_bytes") out.block_bytes = 0;
  }
  void formats(kvasir_kv_format* out, uint32_t capacity, uint32_t& n) {
    MemoryStorage::formats(out, capacity, n);
    if (fault_ == "no_formats") n = 0;
    if (fault_ == "overlap") out->k_token_stride = sizeof(float);
    if (fault_ == "odd_stride") out->v_token_stride += 1;
    if (fault_ == "odd_dtype") out->dtype_k = 40;
    if (fault_ == "undeclared") out->dtype_v = KVASIR_DTYPE_FP8_E4M3;
    if (fault_ == "vast_stride") out->k_head_stride = UINT64_MAX - 3;
    if (fault_ == "odd_memory") out->mem_kind = 7;
  }
  kvasir_status acquire(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out) {
    const bool is_other = fault_ == "seal_error" || fault_ == "drop_error" || fault_ == "full" ||
                          fault_ == "changes_at_seal";
    const bool is_due = !is_other && due();
    if (is_due && fault_ == "acquire_error") fail();
    if (is_due && fault_ == "acquire_again") return KVASIR_AGAIN;
    if (fault_ == "full" && mode == KVASIR_ACQUIRE_WRITE && n_blocks() + keys.size() > most_blocks_)
      throw sdk::Error(KVASIR_ERR_OUT_OF_MEMORY, "full on request");
    MemoryStorage::acquire(keys, mode, out);
    if (is_due && fault_.ends_with("_later"))
      for (auto& [id, block] : blocks_)
        if (block.is_sealed) block.bytes[0] = fault_ == "nan_later" ? NAN : block.bytes[0] + 1;
    if (is_due && keys.size() > 0) spoil(out[0]);
    return KVASIR_OK;
  }
  void seal(const sdk::BlockKeys& keys, const sdk::Leases& leases) {
    if (fault_ == "seal_error" && due()) fail();
    MemoryStorage::seal(keys, leases);
    if (fault_ == "changes_at_seal" && due()) static_cast<float*>(leases[0].k)[0] += 1;
  }
  void drop(const sdk::BlockKeys& keys, uint32_t mode) {
    if (fault_ == "drop_error" && due()) fail();
    MemoryStorage::drop(keys, mode);
  }

 private:
  bool due() { return ++n_calls_ > honest_; }
  [[noreturn]] static void fail() { throw sdk::Error(KVASIR_ERR_IO, "broken on request"); }
  void spoil(kvasir_lease& lease) const {
    if (fault_ == "null_keys") lease.k = nullptr;
    if (fault_ == "wrong_format") lease.format = 99;
    if (fault_ == "wrong_head") lease.kv_head = g_.n_kv_heads;
    if (fault_ == "lost") lease.state = KVASIR_LEASE_FAILED, lease.k = lease.v = nullptr;
    if (fault_ == "unknown_state") lease.state = 77;
    if (fault_ == "misaligned") lease.k = static_cast<char*>(lease.k) + 1;
  }

  std::string_view fault_;
  uint32_t honest_, most_blocks_, n_calls_ = 0;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.test.bad_storage", "0.1.0", BadStorage)
