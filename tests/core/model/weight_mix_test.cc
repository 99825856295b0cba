// Which type each tensor of a mix gets, by rules written out by hand.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/gguf/weight_mix.h"

#include <doctest/doctest.h>

#include <string>

#include "core/error.h"

namespace {

using namespace kvasir;

GgmlType type_of(const std::string& mix, const std::string& tensor, uint64_t width = 4096,
                 MixedModel model = {32, false}) {
  return weight_mix_by_name(mix, "--type").type_of(tensor, width, model);
}
std::string in_layer(uint32_t layer, const std::string& tail) {
  return "blk." + std::to_string(layer) + "." + tail;
}

}  // namespace

TEST_SUITE("core/model/weight_mix") {
  TEST_CASE("medium mixes: Q6_K in the first and last eighth, and every third between") {
    // 32 layers: an eighth is four; 6, 9, ... 27 lie between.
    const std::string more = "11110010010010010010010010011111";
    REQUIRE(more.size() == 32);
    for (uint32_t layer = 0; layer < 32; ++layer) {
      CAPTURE(layer);
      for (const char* tail : {"attn_v.weight", "ffn_down.weight"}) {
        const bool six = more[layer] == '1';
        CHECK(type_of("q4_k_m", in_layer(layer, tail)) ==
              (six ? GgmlType::kQ6_K : GgmlType::kQ4_K));
        CHECK(type_of("q5_k_m", in_layer(layer, tail)) ==
              (six ? GgmlType::kQ6_K : GgmlType::kQ5_K));
        CHECK(type_of("q5_k_s", in_layer(layer, tail)) == GgmlType::kQ5_K);
      }
      CHECK(type_of("q4_k_s", in_layer(layer, "attn_v.weight")) ==
            (layer < 4 ? GgmlType::kQ5_K : GgmlType::kQ4_K));
      CHECK(type_of("q4_k_m", in_layer(layer, "ffn_up.weight")) == GgmlType::kQ4_K);
    }
    // 12 layers: an eighth is one.
    CHECK(type_of("q4_k_s", in_layer(0, "ffn_down.weight"), 4096, {12, false}) == GgmlType::kQ5_K);
    CHECK(type_of("q4_k_s", in_layer(1, "ffn_down.weight"), 4096, {12, false}) == GgmlType::kQ4_K);
    CHECK(type_of("q4_k_m", in_layer(9, "ffn_down.weight"), 4096, {12, false}) == GgmlType::kQ6_K);
    CHECK(type_of("q4_k_m", in_layer(1, "ffn_down.weight"), 4096, {12, false}) == GgmlType::kQ4_K);
  }

  TEST_CASE("the output matrix is Q6_K in mixes, the embedding where it is both") {
    for (const char* mix : {"q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m"}) {
      CHECK(type_of(mix, "output.weight") == GgmlType::kQ6_K);
      CHECK(type_of(mix, "token_embd.weight") != GgmlType::kQ6_K);
      CHECK(type_of(mix, "token_embd.weight", 4096, {32, true}) == GgmlType::kQ6_K);
    }
    CHECK(type_of("q4_k", "output.weight") == GgmlType::kQ4_K);
    WeightMix mix = GgmlType::kQ4_0;
    mix.output = GgmlType::kQ6_K;
    CHECK(mix.type_of("output.weight", 4096, {}) == GgmlType::kQ6_K);
    CHECK(mix.type_of("output.weight", 896, {}) == GgmlType::kQ8_0);
    CHECK(mix.type_of("token_embd.weight", 4096, {}) == GgmlType::kQ4_0);
  }

  TEST_CASE("rows that do not fill blocks take the type that fits") {
    CHECK(type_of("q4_k", in_layer(0, "attn_q.weight"), 896) == GgmlType::kQ5_0);
    CHECK(type_of("q5_k", in_layer(0, "attn_q.weight"), 896) == GgmlType::kQ5_1);
    CHECK(type_of("q6_k", in_layer(0, "attn_q.weight"), 896) == GgmlType::kQ8_0);
    for (const char* type : {"q4_k", "q6_k", "q4_0", "iq4_nl", "q8_0"})
      CHECK(type_of(type, in_layer(0, "attn_q.weight"), 100) == GgmlType::kF16);
    CHECK(type_of("bf16", in_layer(0, "attn_q.weight"), 100) == GgmlType::kBF16);
  }

  TEST_CASE("matrices are weights of two dimensions that are no norms") {
    CHECK(WeightMix::is_matrix("token_embd.weight", {64, 300}));
    CHECK(WeightMix::is_matrix("blk.0.ffn_down_exps.weight", {64, 64, 8}));
    CHECK_FALSE(WeightMix::is_matrix("output_norm.weight", {64}));
    CHECK_FALSE(WeightMix::is_matrix("blk.0.attn_q_norm.weight", {64, 8}));
    CHECK_FALSE(WeightMix::is_matrix("blk.0.attn_q.bias", {64}));
    CHECK_FALSE(WeightMix::is_matrix("blk.0.ffn_gate_inp.weight", {64, 8}));
  }

  TEST_CASE("names and the format's numbers") {
    const auto number = [](const char* name) {
      const WeightMix mix = weight_mix_by_name(name, "--type");
      return mix.file_type();
    };
    CHECK(number("f32") == 0);
    CHECK(number("F16") == 1);
    CHECK(number("q4_0") == 2);
    CHECK(number("q4_1") == 3);
    CHECK(number("q8_0") == 7);
    CHECK(number("q5_0") == 8);
    CHECK(number("q5_1") == 9);
    CHECK(number("q4_k_s") == 14);
    CHECK(number("Q4_K_M") == 15);
    CHECK(number("q5_k_s") == 16);
    CHECK(number("q5_k_m") == 17);
    CHECK(number("q6_k") == 18);
    CHECK(number("iq4_nl") == 25);
    CHECK(number("bf16") == 32);
    CHECK(weight_mix_by_name("q5_k_m", "--type").name() == "Q5_K_M");
    CHECK_THROWS_WITH_AS(weight_mix_by_name("q3_k_l", "--type"),
                         ("--type q3_k_l: expected one of " + weight_mix_names()).c_str(), Error);
    CHECK_THROWS_AS(WeightMix(GgmlType::kQ2_K).file_type(), Error);
  }
}
