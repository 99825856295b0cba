// Who drives what: for every function slot of the stable ABI a plugin that fills it (one that
// ships, or the path of a test plugin); for the host's, who calls it. A slot without a line here
// belongs in ext/draft.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <regex>
#include <set>

#include "tests/support/plugin_instance.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir::test;

struct Slot {
  std::string table, name;
  size_t offset;
  std::string driver;
};
#define SLOT(table, name, driver) \
  { #table, #name, offsetof(table, name), driver }

const Slot kSelectorSlots[] = {
    SLOT(kvasir_selector, limits, "block_topk"),
    SLOT(kvasir_selector, layout, "twilight"),
    SLOT(kvasir_selector, update, "twilight"),
    SLOT(kvasir_selector, prefill, "infinigen"),
    SLOT(kvasir_selector, speculate, "infinigen"),
    SLOT(kvasir_selector, select, "block_topk"),
    SLOT(kvasir_selector, observe, "h2o"),
    SLOT(kvasir_selector, evict_plan, "h2o"),
    SLOT(kvasir_instance, validate, "infllm"),
    SLOT(kvasir_instance, bind, "infllm"),
    SLOT(kvasir_instance, seq_open, "snapkv"),
    SLOT(kvasir_instance, seq_fork, "snapkv"),
    SLOT(kvasir_instance, seq_truncate, "snapkv"),
    SLOT(kvasir_instance, seq_close, "snapkv"),
    SLOT(kvasir_instance, destroy, "snapkv"),
    SLOT(kvasir_instance, get_extension, "infinigen"),
};
const Slot kRepresentativeSlots[] = {SLOT(kvasir_representative, layout, "minmax"),
                                     SLOT(kvasir_representative, update, "minmax"),
                                     SLOT(kvasir_representative, score, "minmax")};
const std::string kDevice = KVASIR_BINARY_DIR "/test-plugins/device/device_storage.so";
const Slot kStorageSlots[] = {
    SLOT(kvasir_storage, plan, "dram"),         SLOT(kvasir_storage, formats, "dram"),
    SLOT(kvasir_storage, acquire, "dram"),      SLOT(kvasir_storage, release, "dram"),
    SLOT(kvasir_storage, seal, "dram"),         SLOT(kvasir_storage, drop, "dram"),
    SLOT(kvasir_storage, prefetch, "tiered"),   SLOT(kvasir_storage, cancel, "tiered"),
    SLOT(kvasir_instance, drain, "tiered"),     SLOT(kvasir_storage, write_tokens, kDevice),
    SLOT(kvasir_storage, copy_tokens, kDevice), SLOT(kvasir_storage, save_tokens, kDevice),
    SLOT(kvasir_storage, load_tokens, kDevice),
};
const Slot kAttentionSlots[] = {SLOT(kvasir_attention, plan, "cpu"),
                                SLOT(kvasir_attention, run, "cpu"),
                                SLOT(kvasir_attention, mass, "cpu")};
const Slot kFileSlots[] = {SLOT(kvasir_plugin, count, "cpu"), SLOT(kvasir_plugin, describe, "cpu"),
                           SLOT(kvasir_plugin, create, "cpu"),
                           SLOT(kvasir_plugin, shutdown, "cpu")};
// Of the host; the driver is the source that calls it.
const Slot kHostSlots[] = {
    SLOT(kvasir_host, get_extension, "plugins/sdk/kvasir/sdk/host.h"),
    SLOT(kvasir_thread_pool, max_workers, "plugins/sdk/kvasir/sdk/host.h"),
    SLOT(kvasir_thread_pool, parallel_for, "plugins/sdk/kvasir/sdk/host.h"),
    SLOT(kvasir_thread_pool, node_of, "plugins/sdk/kvasir/sdk/host.h"),
    SLOT(kvasir_scratch, get, "plugins/sdk/kvasir/sdk/host.h"),
    SLOT(kvasir_log, write, "plugins/sdk/kvasir/sdk/host.h"),
    SLOT(kvasir_completion, complete, "plugins/storage/tiered/job_queues.h"),
};

bool is_filled(const void* table, size_t offset) {
  void (*function)() = nullptr;
  std::memcpy(&function, static_cast<const char*>(table) + offset, sizeof function);
  return function != nullptr;
}

template <class Table, size_t N>
void check_filled(const Slot (&slots)[N]) {
  FakeHost host(2);
  host.offer_completions();
  for (const Slot& slot : slots) {
    CAPTURE(slot.name);
    CAPTURE(slot.driver);
    const PluginInstance<Table> plugin(host, slot.driver);
    CHECK(is_filled(plugin.operator->(), slot.offset));
  }
}

TEST_CASE("who drives a slot fills it") {
  check_filled<kvasir_selector>(kSelectorSlots);
  check_filled<kvasir_representative>(kRepresentativeSlots);
  check_filled<kvasir_storage>(kStorageSlots);
  check_filled<kvasir_attention>(kAttentionSlots);
  const FakeHost host;
  for (const Slot& slot : kFileSlots) {
    CAPTURE(slot.name);
    kvasir_request request{sizeof request, 0, nullptr};
    kvasir_err err{sizeof err, 0, {}};
    REQUIRE(entry_of(slot.driver)(host.host(), &request, &err) == KVASIR_OK);
    CHECK(is_filled(request.plugin, slot.offset));
  }
}

TEST_CASE("who drives a slot of the host calls it") {
  for (const Slot& slot : kHostSlots) {
    CAPTURE(slot.name);
    const std::string text = read_bytes(std::string(KVASIR_SOURCE_DIR "/") + slot.driver);
    CHECK(text.find("->" + slot.name + "(") != std::string::npos);
  }
}

TEST_CASE("every function slot outside ext/draft has a line") {
  std::set<std::string> listed, declared;
  const auto list = [&](const auto& slots) {
    for (const Slot& slot : slots) listed.insert(slot.table + "." + slot.name);
  };
  list(kSelectorSlots), list(kRepresentativeSlots), list(kStorageSlots);
  list(kAttentionSlots), list(kFileSlots), list(kHostSlots);
  static const std::regex structure(R"(typedef struct (kvasir_\w+) \{([^]*?)\n\} \1;)");
  static const std::regex pointer(R"(\(\*(\w+)\)\()");
  for (const auto& file : std::filesystem::recursive_directory_iterator(
           std::filesystem::path(KVASIR_SOURCE_DIR) / "abi" / "kvasir")) {
    if (file.path().extension() != ".h" || file.path().string().find("draft") != std::string::npos)
      continue;
    const std::string text = read_bytes(file.path().string());
    for (std::sregex_iterator at(text.begin(), text.end(), structure), end; at != end; ++at) {
      const std::string body = (*at)[2];
      for (std::sregex_iterator slot(body.begin(), body.end(), pointer); slot != end; ++slot)
        declared.insert((*at)[1].str() + "." + (*slot)[1].str());
    }
  }
  for (const std::string& slot : declared)
    CHECK_MESSAGE(listed.count(slot) == 1, slot, ": name its driver here, or move it to ext/draft");
  CHECK(listed.size() == declared.size());
}

}  // namespace
