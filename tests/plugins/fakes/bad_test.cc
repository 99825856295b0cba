// The misbehaving plugins do what their option says, and are honest without it.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/plugins/attention/attention_case.h"

namespace {
using namespace kvasir::test;
using Selector = PluginInstance<kvasir_selector>;

std::string fake(const std::string& name) {
  return KVASIR_BINARY_DIR "/test-plugins/fake/" + name + ".so";
}

TEST_CASE("bad_selector: each fault breaks the rule it is named after, from the asked call on") {
  FakeHost host;
  struct Case {
    const char* fault;
    kvasir_status status;
    const char* violation;
  };
  const Case cases[] = {{"none", 0, ""},
                        {"out_of_range", 0, "range"},
                        {"unsorted", 0, "order"},
                        {"duplicate", 0, "duplicate"},
                        {"too_many", 0, "capacity"},
                        {"nan_weight", 0, "weight"},
                        {"inf_weight", 0, "weight"},
                        {"error", KVASIR_ERR_INTERNAL, ""},
                        {"error_no_text", KVASIR_ERR_INTERNAL, ""},
                        {"fallback", KVASIR_FALLBACK, ""},
                        {"again", KVASIR_AGAIN, ""},
                        {"capacity_for_ever", KVASIR_ERR_CAPACITY, ""},
                        {"unknown_status", 4711, ""},
                        {"lists_missing", 0, "lists"},
                        {"offsets_descend", 0, "offsets"},
                        {"unknown_list_flag", 0, "flag"},
                        {"finer_scope", 0, ""},
                        {"bytes_read", 0, ""},
                        {"offsets_unwritten", 0, "offsets"},
                        {"index_unwritten", 0, "range"},
                        {"listed_all", 0, "flag"},
                        {"unit_changed", 0, ""}};
  CHECK(Selector(host, fake("bad_selector")).desc().options[0].n_enum == std::size(cases));
  for (const auto& one : cases) {
    CAPTURE(one.fault);
    Selector plugin(host, fake("bad_selector"), {{"fault", one.fault}, {"from_call", int64_t{1}}});
    plugin.bind(small_geometry());
    const OneSeqStep step(kDecodeAppended, 40, 2, 8);
    const kvasir_sel_in in{};
    SelectionBuffer honest(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_KV_HEAD, 2, 16);
    REQUIRE(plugin->select(plugin.self(), &step.step, &in, &honest.selection, plugin.err()) == 0);
    CHECK(violation(honest.selection, 2, 2, 8) == "");
    CHECK(honest.list(1) == std::vector<uint32_t>{2, 4, 6});
    SelectionBuffer bad(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_KV_HEAD, 2, 16);
    CHECK(plugin->select(plugin.self(), &step.step, &in, &bad.selection, plugin.err()) ==
          one.status);
    if (one.status == KVASIR_OK) CHECK(violation(bad.selection, 2, 2, 8) == one.violation);
    CHECK((plugin.text() == "") == (one.status >= 0 || one.fault == std::string("error_no_text")));
    if (one.fault == std::string("finer_scope")) CHECK(bad.selection.scope == KVASIR_SCOPE_Q_HEAD);
  }
}

TEST_CASE("bad_selector: the fault can sit in observe, evict_plan or update instead") {
  FakeHost host;
  const OneSeqStep step(kDecodeStepEnd, 40, 2, 8);
  const kvasir_sel_in in{};
  const kvasir_mass mass{};
  for (const std::string where : {"observe", "evict_plan", "update"}) {
    Selector plugin(host, fake("bad_selector"), {{"fault", "error"}, {"where", where}});
    plugin.bind(small_geometry());
    SelectionBuffer result(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_KV_HEAD, 2, 16);
    CHECK(plugin->select(plugin.self(), &step.step, &in, &result.selection, plugin.err()) == 0);
    kvasir_status status = 0;
    if (where == "observe")
      status = plugin->observe(plugin.self(), &step.step, &mass, plugin.err());
    if (where == "evict_plan")
      status = plugin->evict_plan(plugin.self(), &step.step, &result.selection, plugin.err());
    if (where == "update")
      status = plugin->update(plugin.self(), &step.step, nullptr, 0, 40, plugin.err());
    CHECK(status == KVASIR_ERR_INTERNAL);
    CHECK(plugin.probe(0) == 1);
  }
}

TEST_CASE("bad_attention: without a fault it is the reference; each fault spoils one thing") {
  AttentionCase c;
  const size_t part = c.add_part({8, 9});
  c.add_ranges_of_all_heads(part, 0, 2, c.add_tokens(part, 0, 10));
  FakeHost host;
  Attention reference(host, "reference");
  reference.bind(c.geometry);
  const AttentionResult right = run(reference, c);
  REQUIRE(right.status == KVASIR_OK);
  for (const std::string fault :
       {"none", "nan", "inf", "nan_lse", "error", "error_no_text", "untouched"}) {
    CAPTURE(fault);
    Attention plugin(host, fake("bad_attention"), {{"fault", fault}, {"from_call", int64_t{1}}});
    plugin.bind(c.geometry);
    const AttentionResult honest = run(plugin, c), bad = run(plugin, c);
    CHECK(honest.status == KVASIR_OK);
    CHECK(honest.o == right.o);
    CHECK(honest.lse == right.lse);
    CHECK((bad.status < 0) == fault.starts_with("error"));
    CHECK((bad.text != "") == (fault == "error"));
    CHECK(std::isnan(bad.o[0]) == (fault == "nan"));
    CHECK(std::isinf(bad.o[c.geometry.v_dim - 1]) == (fault == "inf"));
    CHECK(std::isnan(bad.lse[0]) == (fault == "nan_lse"));
    CHECK((bad.o.back() == kUntouched) == (bad.status < 0 || fault == "untouched"));
  }
}

TEST_CASE("bad_storage: each fault shows in the call it is named after") {
  FakeHost host;
  const kvasir_geometry g = small_geometry();
  for (const char* fault :
       {"none", "acquire_error", "acquire_again", "full", "null_keys", "wrong_format", "wrong_head",
        "lost", "unknown_state", "seal_error", "drop_error", "no_formats"}) {
    CAPTURE(fault);
    const std::string name = fault;
    PluginInstance<kvasir_storage> plugin(host, fake("bad_storage"), {{"fault", fault}});
    plugin.bind(g);
    kvasir_kv_format got{};
    uint32_t n = 9;
    REQUIRE(plugin->formats(plugin.self(), &got, 1, &n, plugin.err()) == KVASIR_OK);
    CHECK(n == (name == "no_formats" ? 0 : 1));
    kvasir_block_key key = {{1, 1}, 0, 0, KVASIR_ALL_HEADS, 4, 0, nullptr};
    kvasir_lease lease{};
    const auto status = plugin->acquire(plugin.self(), &key, 1, sizeof key, KVASIR_ACQUIRE_WRITE,
                                        &lease, sizeof lease, plugin.err());
    CHECK(status == (name == "acquire_error"   ? KVASIR_ERR_IO
                     : name == "acquire_again" ? KVASIR_AGAIN
                     : name == "full"          ? KVASIR_ERR_OUT_OF_MEMORY
                                               : KVASIR_OK));
    if (status != KVASIR_OK) continue;
    CHECK((lease.k == nullptr) == (name == "null_keys" || name == "lost"));
    CHECK((lease.format == 99) == (name == "wrong_format"));
    CHECK((lease.kv_head == g.n_kv_heads) == (name == "wrong_head"));
    CHECK((lease.state > KVASIR_LEASE_FAILED) == (name == "unknown_state"));
    CHECK((plugin->seal(plugin.self(), &key, 1, sizeof key, &lease, sizeof lease, plugin.err()) <
           0) == (name == "seal_error"));
    plugin->release(plugin.self(), &lease.lease, 1);
    CHECK((plugin->drop(plugin.self(), &key, 1, sizeof key, KVASIR_DROP_FORGET, plugin.err()) <
           0) == (name == "drop_error"));
    CHECK(plugin.probe(1) == 0);
  }
}

}  // namespace
