// What selectors say they read to choose, against cases counted by hand.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/selector/magicpig/hash.h"
#include "tests/plugins/selector/key_scene.h"
#include "tests/plugins/selector/prescribed_run.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const std::string kSmallBlocks = "[cache]\nblock_size = 4\nsink_tokens = 4\nwindow_tokens = 4\n";

// Of one decoded token behind a prompt of 20: 3 layers, 2 kv heads, head_dim 16. Candidates are the
// tokens 4 to 16, or the blocks 1 to 3.
Engagement decoded(const std::string& selector, const std::string& storage = "") {
  Prescribed given;
  const auto engine =
      given.engine(kSmallBlocks + "[selector]\nplugin = 'kvasir." + selector + storage);
  const auto seq = engine->open();
  Prescribed::prompt(*engine, seq, 20);
  CHECK(engine->prefill_engagement().selector_bytes_read == 0);
  Prescribed::decode(*engine, seq);
  CHECK(engine->decode_engagement().fallbacks == 0);
  return engine->decode_engagement();
}
uint64_t read(const std::string& selector, const std::string& storage = "") {
  return decoded(selector, storage).selector_bytes_read;
}

TEST_SUITE("plugins/selector/bytes_read") {
  TEST_CASE("oracle: every key, once per kv head") {
    CHECK(read("oracle'\nbudget_tokens = 4\n") == 3 * 2 * 21 * 16 * 4);
    CHECK(read("oracle'\nbudget_tokens = 4\n",
               "[storage]\nplugin = 'kvasir.dram'\ntype_k = 'f16'\ntype_v = 'f16'\n") ==
          3 * 2 * 21 * 16 * 2);
    CHECK(read("oracle'\nbudget_tokens = 12\n") == 0);  // covers everything: not asked
  }

  TEST_CASE("twilight: a record of every candidate, once per kv head") {
    CHECK(read("twilight'\n") == 3 * 2 * 13 * (8 + 16 / 2));
  }

  TEST_CASE("infinigen: the columns in use of every candidate, speculated or not") {
    const std::string half = "infinigen'\nbudget_tokens = 4\npartial_weight_ratio = 0.5\n";
    CHECK(read(half) == 3 * 2 * 13 * 8 * 2);
    CHECK(read(half + "speculate_ahead = 0\n") == 3 * 2 * 13 * 8 * 2);
    CHECK(read(half + "partial_type = 'int8'\n") == 3 * 2 * 13 * (4 + 8));
  }

  TEST_CASE("who chooses without looking reads nothing; records are counted by the host") {
    for (const char* selector :
         {"random'\nbudget_tokens = 4\n", "streaming'\n", "duoattention'\n", "dense'\n"}) {
      CAPTURE(std::string(selector));
      CHECK(read(selector) == 0);
    }
    const Engagement e = decoded("block_topk'\nbudget_tokens = 4\n",
                                 "[representative]\nplugin = 'kvasir.minmax'\ndtype = 'f32'\n");
    CHECK(e.selector_bytes_read == 0);
    CHECK(e.bytes_read_to_choose() == 3 * 2 * 3 * (2 * 16) * 4);
  }

  TEST_CASE("magicpig: the ids in the query's buckets, norm and key of what is drawn") {
    constexpr uint32_t kTokens = 96, kBegin = 4, kEnd = 80, kBits = 3, kTables = 8, kDim = 16;
    for (const std::string layout : {"compact", "csr"}) {
      CAPTURE(layout);
      kvasir_geometry geometry = small_geometry();
      geometry.n_layers = 1;
      geometry.head_dim = geometry.v_dim = kDim;
      geometry.seed = 9;
      KeyScene scene(geometry, normal_floats(size_t{kTokens} * 2 * kDim, 1),
                     normal_floats(4 * kDim, 2));
      scene.candidates(kBegin, kEnd);
      FakeHost host;
      KeyScene::Selector selector(
          host, "magicpig",
          {{"K", int64_t{kBits}}, {"L", int64_t{kTables}}, {"table_layout", layout}});
      selector.bind(scene.geometry());
      const uint64_t seq = 1;
      REQUIRE(selector->base.seq_open(selector.self(), &seq, 1, selector.err()) == KVASIR_OK);
      REQUIRE(scene.prompt_end(selector) == KVASIR_OK);
      SelectionBuffer small(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_Q_HEAD, 4, 1);
      REQUIRE(scene.select(selector, small.selection) == KVASIR_ERR_CAPACITY);
      SelectionBuffer out(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_Q_HEAD, 4, 4 * kTokens);
      REQUIRE(scene.select(selector, out.selection) == KVASIR_OK);

      const magicpig::Planes planes(9, 0, kBits, kTables, kDim);
      std::vector<float> work, centred(size_t{kEnd - kBegin} * kDim);
      std::vector<uint16_t> of_key((kEnd - kBegin) * kTables), of_query(kTables);
      uint64_t ids = 0, drawn = 0;
      for (uint32_t h = 0; h < 4; ++h) {
        for (uint32_t d = 0; d < kDim; ++d) {
          double mean = 0;
          for (uint32_t t = kBegin; t < kEnd; ++t) mean += double{scene.key(t, h / 2)[d]};
          mean /= kEnd - kBegin;
          for (uint32_t t = kBegin; t < kEnd; ++t)
            centred[(t - kBegin) * kDim + d] = static_cast<float>(scene.key(t, h / 2)[d] - mean);
        }
        planes.codes(centred.data(), kDim, kEnd - kBegin, of_key.data(), work);
        planes.codes(scene.query(h), kDim, 1, of_query.data(), work);
        for (uint32_t t = 0; t < kEnd - kBegin; ++t) {
          uint32_t same = 0;
          for (uint32_t l = 0; l < kTables; ++l) same += of_key[t * kTables + l] == of_query[l];
          ids += same;
          drawn += same >= 2;
        }
      }
      CHECK(drawn > 4);
      CHECK(out.selection.bytes_read ==
            ids * (layout == "csr" ? 4 : 2) + drawn * (4 + kDim * sizeof(float)));
    }
  }
}

}  // namespace
