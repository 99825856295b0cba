// Plugins of this minor under a host of a later one: a wider range of minors, structs that grew,
// and arrays whose elements are further apart. What they say and do is the same, and what lies
// beyond the fields they know is left alone.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <filesystem>

#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"

namespace {
using namespace kvasir::test;
namespace fs = std::filesystem;

constexpr size_t kGrowth = 24;
constexpr unsigned char kBeyond = 0xab;

const std::string kTemplate = KVASIR_BINARY_DIR "/test-plugins/templates/strided.so";

// Elements that are kGrowth bytes longer than the headers say.
template <class T>
class Grown {
 public:
  static constexpr uint32_t kStride = sizeof(T) + kGrowth;

  explicit Grown(const std::vector<T>& elements) : bytes_(elements.size() * kStride / 8) {
    std::memset(bytes_.data(), kBeyond, elements.size() * kStride);
    for (size_t i = 0; i < elements.size(); ++i)
      std::memcpy(at(i), static_cast<const void*>(&elements[i]), sizeof(T));
  }
  T* data() { return at(0); }
  T* at(size_t i) {
    return reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(bytes_.data()) + i * kStride);
  }
  bool is_intact() const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(bytes_.data());
    for (size_t i = 0; i < bytes_.size() * 8; ++i)
      if (i % kStride >= sizeof(T) && bytes[i] != kBeyond) return false;
    return true;
  }

 private:
  static_assert(sizeof(T) % 8 == 0);
  std::vector<uint64_t> bytes_;
};

std::vector<std::string> shipped(const std::string& kind) {
  std::vector<std::string> names;
  for (const auto& folder : fs::directory_iterator(KVASIR_SOURCE_DIR "/plugins/" + kind))
    if (fs::exists(KVASIR_BINARY_DIR "/plugins/" + folder.path().filename().string() + ".so"))
      names.push_back(folder.path().filename());
  CHECK(!names.empty());
  return names;
}

// The plugin is of a device that this machine does not have (tests/plugins/cuda/driver_test.cc).
template <class Table>
bool lacks_device(PluginInstance<Table>& plugin, const kvasir_geometry& geometry) {
  return plugin->base.validate &&
         plugin->base.validate(plugin.self(), &geometry, plugin.err()) == KVASIR_ERR_UNSUPPORTED;
}

// fn(the struct) fills it, small and grown: both say the same, and struct_size stays.
template <class T, class Fn>
void check_filled_alike(T blank, const Fn& fn) {
  blank.struct_size = sizeof(T);
  T plain = blank;
  REQUIRE(fn(&plain) == KVASIR_OK);
  Grown<T> grown({blank});
  grown.data()->struct_size = Grown<T>::kStride;
  REQUIRE(fn(grown.data()) == KVASIR_OK);
  CHECK(grown.is_intact());
  const auto* a = reinterpret_cast<const unsigned char*>(&plain);
  const auto* b = reinterpret_cast<const unsigned char*>(grown.data());
  CHECK(std::memcmp(a + sizeof(uint32_t), b + sizeof(uint32_t), sizeof(T) - sizeof(uint32_t)) == 0);
}

TEST_SUITE("abi/growth") {
  TEST_CASE("a plugin speaks its own minor to a host of several, and to no other") {
    std::vector<std::string> all = {kTemplate};
    for (const char* kind : {"selector", "representative", "storage", "attention"})
      for (const std::string& name : shipped(kind)) all.push_back(name);
    FakeHost host(1);
    for (const std::string& plugin : all) {
      CAPTURE(plugin);
      const auto answer = [&](uint32_t least, uint32_t most, uint32_t* minor) {
        kvasir_host other = *host.host();
        other.struct_size += kGrowth;
        other.abi_minor_min = least, other.abi_minor_max = most;
        kvasir_request request{sizeof request, 0, nullptr};
        kvasir_err err{sizeof err, 0, {}};
        const kvasir_status status = entry_of(plugin)(&other, &request, &err);
        if (status != KVASIR_OK) CHECK(std::string(err.text) != "");
        *minor = request.abi_minor;
        return status;
      };
      uint32_t minor = 0;
      CHECK(answer(KVASIR_ABI_MINOR_MIN, KVASIR_ABI_MINOR + 3, &minor) == KVASIR_OK);
      CHECK(minor == KVASIR_ABI_MINOR);
      CHECK(answer(KVASIR_ABI_MINOR + 1, KVASIR_ABI_MINOR + 3, &minor) == KVASIR_ERR_VERSION);
      CHECK(answer(0, KVASIR_ABI_MINOR - 1, &minor) == KVASIR_ERR_VERSION);
    }
  }

  TEST_CASE("limits, layouts and plans are filled as far as the plugin knows them") {
    FakeHost host(1);
    host.offer_completions();
    const kvasir_geometry geometry = small_geometry();
    for (const std::string& name : shipped("selector")) {
      CAPTURE(name);
      kvasir_geometry g = geometry;
      g.window_tokens = 16;
      if (name == "infllm") g.k_state = KVASIR_K_UNROTATED;
      const OptionValues options =
          name == "infllm" ? OptionValues{{"exc_block_size", int64_t{16}}} : OptionValues{};
      PluginInstance<kvasir_selector> s(host, name, options);
      if (lacks_device(s, g)) continue;
      s.bind(g);
      check_filled_alike(blank_limits(),
                         [&](kvasir_sel_limits* out) { return s->limits(s.self(), out, s.err()); });
      if (!s->layout) continue;
      check_filled_alike(kvasir_layout{},
                         [&](kvasir_layout* out) { return s->layout(s.self(), out, s.err()); });
    }
    for (const std::string& name : shipped("representative")) {
      CAPTURE(name);
      PluginInstance<kvasir_representative> r(host, name);
      if (lacks_device(r, geometry)) continue;
      r.bind(geometry);
      check_filled_alike(kvasir_layout{},
                         [&](kvasir_layout* out) { return r->layout(r.self(), out, r.err()); });
    }
    for (const std::string& name : shipped("storage")) {
      CAPTURE(name);
      PluginInstance<kvasir_storage> s(host, name);
      check_filled_alike(kvasir_storage_plan{}, [&](kvasir_storage_plan* out) {
        return s->plan(s.self(), &geometry, out, s.err());
      });
    }
  }

  TEST_CASE("sequences of a step are stepped by their size") {
    FakeHost host(1);
    for (const std::string& name : {std::string("streaming"), std::string("random"), kTemplate}) {
      CAPTURE(name);
      OptionValues options = {{"budget_tokens", int64_t{32}}};
      if (name == "random") options["unit"] = std::string("token");
      if (name == kTemplate) options = {{"stride", int64_t{3}}};
      PluginInstance<kvasir_selector> s(host, name, options);
      s.bind(small_geometry());
      kvasir_sel_limits limits = blank_limits();
      REQUIRE(s->limits(s.self(), &limits, s.err()) == KVASIR_OK);
      const uint32_t n_lists = limits.scope == KVASIR_SCOPE_SEQUENCE ? 3 : 6;
      OneSeqStep first(kDecodeAppended, 60, 0, 40);
      std::vector<kvasir_step_seq> seqs(3, first.seq);
      seqs[1].unit_begin = 7, seqs[1].unit_end = 11;
      seqs[2].id = 9, seqs[2].kv_len = 90, seqs[2].unit_end = 77;
      Grown<kvasir_step_seq> grown(seqs);
      kvasir_step step = first.step;
      step.n_seqs = 3;
      const kvasir_sel_in in{};
      SelectionBuffer plain(limits.unit, limits.scope, n_lists, 200);
      step.seqs = seqs.data();
      REQUIRE(s->select(s.self(), &step, &in, &plain.selection, s.err()) == KVASIR_OK);
      SelectionBuffer further(limits.unit, limits.scope, n_lists, 200);
      step.seqs = grown.data();
      step.seq_size = Grown<kvasir_step_seq>::kStride;
      REQUIRE(s->select(s.self(), &step, &in, &further.selection, s.err()) == KVASIR_OK);
      CHECK(further.selection.n_lists == n_lists);
      CHECK(further.list_offsets == plain.list_offsets);
      for (uint32_t i = 0; i < n_lists; ++i) CHECK(further.list(i) == plain.list(i));
      CHECK(plain.list_offsets[n_lists] > 0);
      CHECK(grown.is_intact());
    }
  }

  TEST_CASE("keys and leases of a storage are stepped by their sizes") {
    FakeHost host(1);
    host.offer_completions();
    for (const std::string& name : shipped("storage")) {
      CAPTURE(name);
      PluginInstance<kvasir_storage> s(host, name);
      kvasir_geometry geometry = small_geometry();
      geometry.block_size = geometry.v_dim = 32;  // a group of `kivi`
      s.bind(geometry);
      std::vector<kvasir_block_key> names;
      for (uint32_t block = 0; block < 3; ++block)
        names.push_back({{block + 5, 1}, 1, block, KVASIR_ALL_HEADS, 0, 0, nullptr});
      Grown<kvasir_block_key> keys(names);
      Grown<kvasir_lease> leases(std::vector<kvasir_lease>(3));
      constexpr uint32_t kKey = Grown<kvasir_block_key>::kStride;
      constexpr uint32_t kLease = Grown<kvasir_lease>::kStride;
      REQUIRE(s->acquire(s.self(), keys.data(), 3, kKey, KVASIR_ACQUIRE_WRITE, leases.data(),
                         kLease, s.err()) == KVASIR_OK);
      for (size_t i = 0; i < 3; ++i)
        for (size_t j = 0; j < i; ++j) CHECK(leases.at(i)->k != leases.at(j)->k);
      for (uint32_t i = 0; i < 3; ++i) keys.at(i)->hash[1] = 2, keys.at(i)->n_tokens = 16;
      REQUIRE(s->seal(s.self(), keys.data(), 3, kKey, leases.data(), kLease, s.err()) == KVASIR_OK);
      CHECK(keys.is_intact());
      CHECK(leases.is_intact());
      for (uint32_t i = 0; i < 3; ++i) s->release(s.self(), &leases.at(i)->lease, 1);
      CHECK(s->drop(s.self(), keys.data(), 3, kKey, KVASIR_DROP_FORGET, s.err()) == KVASIR_OK);
    }
  }
}

}  // namespace
