// The misbehaving plugins do what their option says, and are honest without it.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/support/c_abi.h"

namespace {

using namespace kvasir::test::c_abi;
const std::string kDir = KVASIR_FAKES_DIR;

// Index of an enum value in the plugin's own schema.
template <class Table>
double fault_index(Host& host, const std::string& file, const std::string& name) {
  const Plugin<Table> plugin(host, kDir + file);
  const auto& schema = plugin.desc->options[0];
  for (uint32_t i = 0; i < schema.n_enum; ++i)
    if (name == schema.enum_names[i]) return i;
  FAIL("no such fault: " << name);
  return -1;
}

TEST_CASE("bad_selector: each fault breaks the rule it is named after, from the asked call on") {
  Host host;
  const auto f = format();
  const auto g = geometry(f);
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
                        {"rows_missing", 0, "rows"},
                        {"offsets_descend", 0, "offsets"},
                        {"unknown_row_flag", 0, "flag"},
                        {"finer_scope", 0, ""}};
  Plugin<kvasir_selector> any(host, kDir + "bad_selector.so");
  CHECK(any.desc->options[0].n_enum == std::size(cases));
  for (const auto& one : cases) {
    CAPTURE(one.fault);
    Plugin<kvasir_selector> plugin(
        host, kDir + "bad_selector.so",
        {{"fault", fault_index<kvasir_selector>(host, "bad_selector.so", one.fault)},
         {"from_call", 1}});
    plugin.bind(g);
    Step step(KVASIR_D2, 40, 2, 8);
    kvasir_sel_in in{};
    in.struct_size = sizeof in;
    Result honest(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_KV_HEAD, 2, 16);
    REQUIRE(plugin->select(plugin.self(), &step.step, &in, &honest.selection, plugin.err()) == 0);
    CHECK(violation(honest.selection, 2, 2, 8) == "");
    CHECK(honest.row(1) == std::vector<uint32_t>{2, 4, 6});
    Result bad(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_KV_HEAD, 2, 16);
    CHECK(plugin->select(plugin.self(), &step.step, &in, &bad.selection, plugin.err()) ==
          one.status);
    if (one.status == KVASIR_OK) CHECK(violation(bad.selection, 2, 2, 8) == one.violation);
    CHECK((plugin.text() == "") == (one.status >= 0 || one.fault == std::string("error_no_text")));
    if (one.fault == std::string("finer_scope")) CHECK(bad.selection.scope == KVASIR_SCOPE_Q_HEAD);
  }
}

TEST_CASE("bad_selector: the fault can sit in observe, evict_plan or update instead") {
  Host host;
  const auto f = format();
  const auto g = geometry(f);
  const double error = fault_index<kvasir_selector>(host, "bad_selector.so", "error");
  Step step(KVASIR_D5, 40, 2, 8);
  kvasir_sel_in in{};
  for (double where : {1.0, 2.0, 3.0}) {
    Plugin<kvasir_selector> plugin(host, kDir + "bad_selector.so",
                                   {{"fault", error}, {"where", where}});
    plugin.bind(g);
    Result result(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_KV_HEAD, 2, 16);
    CHECK(plugin->select(plugin.self(), &step.step, &in, &result.selection, plugin.err()) == 0);
    kvasir_status status = 0;
    if (where == 1) status = plugin->observe(plugin.self(), &step.step, nullptr, plugin.err());
    if (where == 2)
      status = plugin->evict_plan(plugin.self(), &step.step, &result.selection, plugin.err());
    if (where == 3)
      status = plugin->update(plugin.self(), &step.step, nullptr, 0, 40, plugin.err());
    CHECK(status == KVASIR_ERR_INTERNAL);
    CHECK(plugin.probe(0) == 1);
  }
}

// One part over all keys of a sequence, two queries at its end.
struct Dense {
  explicit Dense(const kvasir_geometry& g) : keys(g, 10, 1), q(random_floats(2 * 4 * 8, 5)) {
    for (uint32_t h = 0; h < 2; ++h) rows.push_back({h, 0, 2, 0, 0, keys.leases.size()});
    part.struct_size = sizeof part;
    part.n_rows = 2;
    part.row_size = sizeof rows[0];
    part.rows = rows.data();
    part.leases = keys.leases.data();
    part.n_leases = uint32_t(keys.leases.size());
    part.lease_size = sizeof keys.leases[0];
    part.dist_max = UINT32_MAX;
    part.q = query_view(g, q);
    part.q_pos = q_pos;
    in = {sizeof in, 0, 1, sizeof part, &part};
    o.assign(2 * 4 * 8, 5.0f);
    lse.assign(2 * 4, 5.0f);
    out = {sizeof out, 0, o.data(), lse.data()};
  }
  Keys keys;
  std::vector<float> q;
  uint32_t q_pos[2] = {8, 9};
  std::vector<kvasir_attn_row> rows;
  kvasir_attn_part part{};
  kvasir_attn_in in{};
  std::vector<float> o, lse;
  kvasir_attn_out out{};
};

TEST_CASE("bad_attention: without a fault it is softmax attention; each fault spoils one thing") {
  Host host;
  const auto f = format();
  const auto g = geometry(f);
  for (const char* fault :
       {"none", "nan", "inf", "nan_lse", "error", "error_no_text", "untouched"}) {
    CAPTURE(fault);
    Plugin<kvasir_attention> plugin(
        host, kDir + "bad_attention.so",
        {{"fault", fault_index<kvasir_attention>(host, "bad_attention.so", fault)},
         {"from_call", 1}});
    plugin.bind(g);
    Dense dense(g);
    Step step(KVASIR_D4, 10, 0, 2);
    REQUIRE(plugin->run(plugin.self(), &step.step, &dense.in, &dense.out, plugin.err()) == 0);
    for (uint32_t i = 0; i < 2; ++i)
      for (uint32_t h = 0; h < 4; ++h) {
        double sum = 0, o5 = 0;
        for (uint32_t t = 0; t <= dense.q_pos[i]; ++t) {
          double dot = 0;
          for (uint32_t d = 0; d < 8; ++d)
            dot += double{dense.q[(i * 4 + h) * 8 + d]} * dense.keys.key(h / 2, t, d);
          const double weight = std::exp(dot * double{g.softmax_scale});
          sum += weight;
          o5 += weight * dense.keys.value(h / 2, t, 5);
        }
        CHECK(double{dense.lse[i * 4 + h]} == doctest::Approx(std::log(sum)).epsilon(1e-6));
        CHECK(double{dense.o[(i * 4 + h) * 8 + 5]} == doctest::Approx(o5 / sum).epsilon(1e-5));
      }
    const std::string name = fault;
    dense.o.assign(dense.o.size(), 5.0f);
    const auto status = plugin->run(plugin.self(), &step.step, &dense.in, &dense.out, plugin.err());
    CHECK((status < 0) == (name.substr(0, 5) == "error"));
    CHECK((plugin.text() != "") == (name == "error"));
    CHECK(std::isnan(dense.o[0]) == (name == "nan"));
    CHECK(std::isinf(dense.o[7]) == (name == "inf"));
    CHECK(std::isnan(dense.lse[0]) == (name == "nan_lse"));
    CHECK((dense.o[20] == 5.0f) == (status < 0 || name == "untouched"));
  }
}

TEST_CASE("bad_storage: each fault shows in the call it is named after") {
  Host host;
  const auto f = format();
  const auto g = geometry(f);
  for (const char* fault :
       {"none", "acquire_error", "acquire_again", "full", "null_keys", "wrong_format", "wrong_head",
        "lost", "unknown_state", "seal_error", "drop_error", "no_formats"}) {
    CAPTURE(fault);
    const std::string name = fault;
    Plugin<kvasir_storage> plugin(
        host, kDir + "bad_storage.so",
        {{"fault", fault_index<kvasir_storage>(host, "bad_storage.so", fault)}});
    plugin.bind(g);
    kvasir_kv_format got{};
    uint32_t n = 9;
    REQUIRE(plugin->formats(plugin.self(), &got, 1, &n, plugin.err()) == KVASIR_OK);
    CHECK(n == (name == "no_formats" ? 0 : 1));
    kvasir_block_key key = {{1, 1}, 0, 0, KVASIR_ALL_HEADS, 4, 0};
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
