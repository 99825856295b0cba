// Created plugins: what the wrappers pass through, count, and refuse.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/instance.h"

#include <chrono>
#include <limits>

#include "tests/core/plugin/support.h"

namespace {

using namespace kvasir;
using kvasir::test::check_says;
using kvasir::test::error_of;
using kvasir::test::faulty;
using kvasir::test::Host;
using kvasir::test::make;
using kvasir::test::search;
using kvasir::test::section;

struct Fixture {
  Host host;
  PluginRegistry registry{search({"good", "needs"}), host.services};

  Selector selector(const std::string& fault = "") {
    return make<Selector>(registry, host.services,
                          faulty(Kind::kSelector, "org.test.selector", fault));
  }
  Selector refused(const std::string& fault) {
    return make<Selector>(registry, host.services,
                          faulty(Kind::kSelector, "org.test.refused", fault));
  }
  Storage storage(const std::string& fault = "") {
    return make<Storage>(registry, host.services,
                         faulty(Kind::kStorage, "org.test.storage", fault));
  }
};

// The whole text of a PluginError, whatever its class.
template <class Fn>
std::string failure_of(Fn&& fn, ErrorKind* kind = nullptr) {
  try {
    fn();
  } catch (const PluginError& e) {
    if (kind) *kind = e.kind();
    return e.what();
  }
  return {};
}

kvasir_step step_of_layer(uint32_t layer, const kvasir_step_seq& seq) {
  kvasir_step step{};
  step.struct_size = sizeof(step);
  step.layer = layer;
  step.n_seqs = 1;
  step.seq_size = sizeof(seq);
  step.seqs = &seq;
  return step;
}

TEST_CASE("a good selector goes through its life, and its step calls are counted") {
  Fixture f;
  Selector s = f.selector();
  CHECK(s.id() == "org.test.selector");
  CHECK(s.version() == "1.2.3");
  CHECK(s.file().ends_with("test_selector.so"));
  CHECK(s.extension("org.test.x/1") == nullptr);
  kvasir_geometry geometry{};
  geometry.struct_size = sizeof(geometry);
  s.validate(geometry);
  s.bind(geometry);
  s.read_limits();
  CHECK(s.limits().max_units == 32);
  CHECK(s.layout().record_bytes == 0);
  CHECK(s.has_select());
  CHECK_FALSE(s.has_observe());
  s.seq_open(1);
  s.seq_fork(1, 2);
  CHECK(s.seq_truncate(2, 10) == KVASIR_REBUILD);
  s.seq_close(2);
  CHECK(s.stats().calls == 0);
  kvasir_step_seq seq{};
  seq.id = 41;
  const kvasir_step step = step_of_layer(3, seq);
  kvasir_selection out{};
  for (int i = 0; i < 5; ++i) CHECK(s.select(step, {}, out) == KVASIR_OK);
  CHECK(s.stats().calls == 5);
  CHECK(s.stats().nanos < 1000000000);
  s.reset_stats();
  CHECK(s.stats().calls == 0);
}

TEST_CASE("an instance that is not what it should be is refused") {
  Fixture f;
  struct Case {
    const char* fault;
    std::vector<std::string> said;
  };
  const Case cases[] = {
      {"create", {"create", "I do not want to", "KVASIR_ERR_INVALID"}},
      {"create.silent", {"gave no reason", "defect"}},
      {"create.null", {"without an instance"}},
      {"table.small", {"bytes; a selector has at least", "struct_size"}},
      {"table.tiny", {"has 8 bytes"}},
      {"table.kind", {"is a storage, not a selector"}},
      {"table.desc", {"its own description"}},
      {"table.bind", {"no bind"}},
      {"table.seq", {"all four"}},
      {"table.limits", {"no limits()"}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.fault);
    const std::string error = failure_of([&] { f.refused(c.fault); });
    check_says(error, {"org.test.refused 1.2.3", "test_refused.so"});
    check_says(error, c.said);
  }
}

TEST_CASE("a table larger than ours is a newer plugin, and welcome") {
  Fixture f;
  Selector s = f.refused("table.large");
  s.read_limits();
  CHECK(s.limits().max_units == 32);
}

TEST_CASE("a table may end behind its last function; what lies there is not called") {
  Fixture f;
  Selector s = f.refused("table.short");
  CHECK_FALSE(s.has_select());
  CHECK_FALSE(s.has_evict_plan());
  s.read_limits();
  CHECK(s.limits().max_units == 32);
}

TEST_CASE(
    "none, a number and no limit are three things; so are no slice, one per chunk, a number") {
  Fixture f;
  const auto limits = [&](const char* fault) {
    Selector s = f.selector(fault);
    s.read_limits();
    return s.limits();
  };
  CHECK(limits("").max_units == 32);
  CHECK((limits("").flags & KVASIR_LIMIT_ZERO_UNITS) == 0);
  CHECK(limits("limits.none").max_units == 0);
  CHECK((limits("limits.none").flags & KVASIR_LIMIT_ZERO_UNITS) != 0);
  CHECK(limits("limits.silent").max_units == 0);
  CHECK((limits("limits.silent").flags & KVASIR_LIMIT_ZERO_UNITS) == 0);
  CHECK((limits("").flags & KVASIR_LIMIT_PREFILL_SELECT) == 0);
  CHECK((limits("limits.chunk").flags & KVASIR_LIMIT_PREFILL_SELECT) != 0);
  CHECK(limits("limits.chunk").prefill_slice_tokens == 0);
  CHECK((limits("limits.slice").flags & KVASIR_LIMIT_PREFILL_SELECT) != 0);
  CHECK(limits("limits.slice").prefill_slice_tokens == 48);
}

TEST_CASE("refusals before the run are the configuration's, or the machine's") {
  Fixture f;
  kvasir_geometry geometry{};
  ErrorKind kind{};
  CHECK_FALSE(failure_of([&] { f.refused("create"); }, &kind).empty());
  CHECK(kind == ErrorKind::kInput);
  check_says(failure_of([&] { f.selector("validate").validate(geometry); }, &kind),
             {"validate", "this model is too small"});
  CHECK(kind == ErrorKind::kInput);
  check_says(failure_of([&] { f.selector("bind").bind(geometry); }, &kind), {"bind", "no space"});
  CHECK(kind == ErrorKind::kResource);
}

TEST_CASE("limits with values this ABI does not know are refused") {
  Fixture f;
  for (const char* fault :
       {"limits.unit", "limits.scope", "limits.both", "limits.plan_at", "limits.mass",
        "limits.flags", "limits.query_block", "limits.dense_last"}) {
    CAPTURE(fault);
    Selector s = f.selector(fault);
    check_says(failure_of([&] { s.read_limits(); }), {"limits", "defect of the plugin"});
  }
}

TEST_CASE("a failing step names plugin, function, layer and sequence") {
  Fixture f;
  kvasir_step_seq seq{};
  seq.id = 41;
  const kvasir_step step = step_of_layer(3, seq);
  kvasir_selection out{};
  const auto failure = [&](const char* fault) {
    Selector s = f.selector(fault);
    ErrorKind kind{};
    const std::string text = failure_of([&] { s.select(step, {}, out); }, &kind);
    CHECK(kind == ErrorKind::kInternal);
    CHECK(s.stats().calls == 1);
    return text;
  };
  check_says(failure("select"), {"org.test.selector 1.2.3", "select", "layer 3", "sequence 41",
                                 "lost my way", "KVASIR_ERR_INTERNAL"});
  check_says(failure("select.silent"), {"gave no reason (a defect of the plugin)"});
  check_says(failure("select.unknown"), {"unknown status 42"});
  check_says(failure("select.again"), {"select() may not answer so", "KVASIR_AGAIN"});
  check_says(failure("select.rebuild"), {"select() may not answer so", "KVASIR_REBUILD"});
  check_says(failure("select.unterminated"), {"xxxx"});
}

TEST_CASE("answers that are no failures come back") {
  Fixture f;
  kvasir_step_seq seq{};
  const kvasir_step step = step_of_layer(0, seq);
  kvasir_selection out{};
  CHECK(f.selector("select.fallback").select(step, {}, out) == KVASIR_FALLBACK);
  CHECK(f.selector("select.capacity").select(step, {}, out) == KVASIR_ERR_CAPACITY);
  CHECK(out.needed == 77);
}

TEST_CASE("calling what is not there is our own defect") {
  Fixture f;
  kvasir_step_seq seq{};
  const kvasir_step step = step_of_layer(0, seq);
  Selector s = f.selector();
  CHECK_THROWS_AS(s.observe(step, {}), Error);
  CHECK(s.stats().calls == 0);
}

TEST_CASE("a storage's answers are checked as they come back") {
  Fixture f;
  Storage s = f.storage();
  CHECK(s.stable_leases());
  CHECK(s.has_prefetch());
  CHECK(s.plan({}).block_bytes == 256);
  CHECK(s.formats().size() == 10);
  CHECK(s.formats()[9].dtype_v == KVASIR_DTYPE_F16);
  kvasir_block_key key{};
  key.layer = 2;
  key.block = 5;
  kvasir_lease lease{};
  CHECK(s.acquire({key}, KVASIR_ACQUIRE_READ, &lease) == KVASIR_OK);
  s.release({1});
  CHECK(s.stats().calls == 2);
  s.drop({key}, KVASIR_DROP_UNREF);
  s.cancel(1);  // absent, and optional

  check_says(failure_of([&] { f.storage("plan").plan({}); }), {"block_bytes is zero"});
  check_says(failure_of([&] { f.storage("formats.type").formats(); }), {"unknown element type"});
  check_says(failure_of([&] { f.storage("formats.stride").formats(); }), {"stride", "alignment"});
  check_says(failure_of([&] { f.storage("formats.endless").formats(); }), {"room for"});
  check_says(failure_of([&] { f.storage("formats.memory").formats(); }), {"kind of memory"});
  check_says(failure_of([&] { f.storage("formats.device").formats(); }),
             {"device memory without write_tokens()", "load_tokens()"});
  const auto acquire = [&](const char* fault) {
    return failure_of([&] { f.storage(fault).acquire({key}, KVASIR_ACQUIRE_READ, &lease); });
  };
  check_says(acquire("acquire.null"), {"layer 2", "block 5", "without K and V"});
  check_says(acquire("acquire.state"), {"state 9"});
  for (const auto& [fault, said] : {std::pair{"seal.null", "without K and V"},
                                    std::pair{"seal.again", "seal() may not answer so"}}) {
    Storage sealing = f.storage(fault);
    REQUIRE(sealing.acquire({key}, KVASIR_ACQUIRE_WRITE, &lease) == KVASIR_OK);
    check_says(failure_of([&] { sealing.seal({key}, &lease); }), {"seal", said});
  }
  check_says(acquire("acquire.partial"), {"block 5", "state 3", "needs the whole block"});
  const uint64_t needed = 1;
  key.needed = &needed;
  CHECK(f.storage("acquire.partial").acquire({key}, KVASIR_ACQUIRE_READ, &lease) == KVASIR_OK);
  key.needed = nullptr;
  CHECK(s.count_tiers().empty());  // it has one tier and does not count
  CHECK(f.storage("acquire.again").acquire({key}, KVASIR_ACQUIRE_WRITE, &lease) == KVASIR_AGAIN);
  check_says(failure_of([&] { f.storage("drop").drop({key}, KVASIR_DROP_FORGET); }),
             {"drop", "layer 2", "the disk is gone", "KVASIR_ERR_IO"});
}

TEST_CASE("a prefetch reports through the host, once") {
  Fixture f;
  const kvasir_block_key key{};
  uint32_t accepted = 0;
  Completion report{};
  Storage good = f.storage();
  const uint64_t ticket = f.host.services.new_ticket();
  CHECK(good.prefetch({key, key}, 1, ticket, accepted) == KVASIR_OK);
  CHECK(accepted == 2);
  REQUIRE(f.host.services.poll(ticket, &report));
  CHECK(report.block_status.size() == 2);
  CHECK(f.host.log.empty());

  Storage twice = f.storage("prefetch.twice");
  twice.prefetch({key}, 1, f.host.services.new_ticket(), accepted);
  REQUIRE(f.host.log.size() == 1);
  CHECK(f.host.log[0].plugin == "org.test.storage");
  check_says(f.host.log[0].text, {"twice"});

  Storage greedy = f.storage("prefetch.accepted");
  check_says(failure_of([&] { greedy.prefetch({key}, 1, f.host.services.new_ticket(), accepted); }),
             {"accepted 2 of 1"});
}

TEST_CASE("a backend reaches pool, scratch and log; nested regions are refused") {
  Fixture f;
  Attention a =
      make<Attention>(f.registry, f.host.services, section(Kind::kAttention, "kvasir.attention"));
  CHECK(a.plan(2, 100).scratch_bytes == 200);
  CHECK_FALSE(a.has_mass());
  kvasir_step_seq seq{};
  const kvasir_step step = step_of_layer(0, seq);
  float lse[2] = {};
  kvasir_attn_out out{sizeof(out), 0, {}, {}, 0};
  out.lse.data = lse;
  a.run(step, {}, out);
  CHECK(lse[0] == 999 * 1000 / 2);
  CHECK(lse[1] == 10);
  REQUIRE(f.host.log.size() == 2);
  CHECK(f.host.log[0].level == KVASIR_LOG_ERROR);  // 99 is capped
  CHECK(f.host.log[0].text == "two lines");
  CHECK(f.host.log[1].text == "(null)");
  CHECK_THROWS_AS(a.mass(step, {}, {}), Error);
}

TEST_CASE("a representative says how large its records are, within reason") {
  Fixture f;
  const auto load = [&](const char* id) {
    return make<Representative>(f.registry, f.host.services, section(Kind::kRepresentative, id));
  };
  Representative good = load("org.test.representative");
  good.read_layout();
  CHECK(good.layout().record_bytes == 4);
  for (const char* id : {"org.test.rep_odd", "org.test.rep_huge"}) {
    Representative bad = load(id);
    check_says(failure_of([&] { bad.read_layout(); }), {"record_bytes", "multiple of 4"});
  }
}

TEST_CASE("scores are finite, whichever candidate they are of") {
  Fixture f;
  kvasir_step_seq seq{};
  const kvasir_step step = step_of_layer(0, seq);
  kvasir_score_in in{};
  const uint64_t offsets[] = {0, 1, 3};  // of two query heads
  std::vector<float> value(3);
  kvasir_score_out out{};
  out.struct_size = sizeof out;
  out.offsets = offsets;
  out.value.data = value.data();
  out.value.rank = 1;
  out.value.shape[0] = value.size();
  const auto score = [&](const char* id) {
    Representative r =
        make<Representative>(f.registry, f.host.services, section(Kind::kRepresentative, id));
    return failure_of([&] { r.score(step, in, out); });
  };
  CHECK(score("org.test.representative") == "");
  CHECK(value == std::vector<float>{1.0f, -3.0f, 1.0f});
  for (const char* id : {"org.test.rep_nan", "org.test.rep_inf", "org.test.rep_minus_inf"})
    check_says(score(id), {"score", "is not finite", "defect of the plugin"});
}

TEST_CASE("an instance keeps its plugin when the registry is gone") {
  Host host;
  std::unique_ptr<Selector> s;
  {
    PluginRegistry registry(search({"good"}), host.services);
    const OpenPlugin plugin = registry.open(Kind::kSelector, "org.test.selector");
    s = std::make_unique<Selector>(
        plugin, host.services,
        ResolvedOptions(*plugin.desc, section(Kind::kSelector, "org.test.selector")));
  }
  s->read_limits();
  CHECK(s->limits().max_units == 32);
}

}  // namespace
