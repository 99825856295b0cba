// Strategies beside their masks, which choose nothing: where choosing does not matter, `compare`
// and `ppl` say that a strategy did not engage.
// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/tiny_model.h"

namespace {

using namespace kvasir::test;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

// The model of models/ finds pass keys in layer 1, which Quest's preset leaves dense.
const std::string kModel = KVASIR_SOURCE_DIR "/models/kvasir-retrieval-3m-f16.gguf";

// Pass keys in prose of 1,024 tokens, each text with its answer at the end; of one, without the
// last digit, which is predicted.
struct PassKeys {
  TempDir folder;
  std::string file = folder.path("texts");
  explicit PassKeys(const std::string& n) {
    REQUIRE(run_kvasir({"task", "generate", "--task", "passkey", "--length", "1024", "-n", n, "-m",
                        kModel, "--format", "text", "-o", file})
                .code == 0);
    if (n != "1") return;
    const std::string text = read_bytes(file);
    file = folder.write("text", text.substr(0, text.find_last_not_of('\n')));
  }
  Words command(const std::string& name, const std::string& layers, const Words& more) const {
    Words all = {name,
                 "-m",
                 kModel,
                 "-f",
                 file,
                 "-s",
                 "quest",
                 "--set",
                 "cache.dense_layers=" + layers,
                 "--set",
                 "selector.budget_tokens=64",
                 "--set",
                 "cache.window_tokens=32"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

}  // namespace

TEST_SUITE_BEGIN("tools/masked");

TEST_CASE("compare: a choice in layers that hold none of the retrieval did not engage") {
  const PassKeys texts("1");
  // The last tokens are the pass key, which nothing but the text says.
  const Words fed = {"--feed", "text", "-n", "4"};
  const auto compare = [&](const std::string& layers, Words more) {
    more.insert(more.end(), fed.begin(), fed.end());
    return texts.command("compare", layers, more);
  };
  const auto quest_of = [](const Json& report) { return report["strategies"][1]; };
  const Json idle = quest_of(json_of(compare("[0,1]", {"--json"})));
  CHECK(idle["top1_agreement"] == 1.0);
  CHECK(idle["masked"]["top1_agreement"].get<double>() >= 0.9);
  CHECK(idle["engaged"] == false);
  const Finished text = run_kvasir(compare("[0,1]", {}));
  CHECK(has(text.out,
            "did not engage: quest: its sparse layers hold none of the retrieval, for nine "
            "tenths of the tokens that dense attention predicts are kept"));
  const Json sparse = quest_of(json_of(compare("[]", {"--json"})));
  CHECK(sparse["masked"]["top1_agreement"].get<double>() < 0.9);
  CHECK(sparse["engaged"] == true);
  CHECK(sparse["masked"]["mean_kl"].get<double>() - sparse["mean_kl"].get<double>() ==
        doctest::Approx(sparse["masked"]["mean_kl_saved"].get<double>()));
  CHECK_FALSE(has(run_kvasir(compare("[]", {})).out, "did not engage"));
  const Json ahead = quest_of(json_of(compare("[]", {"--json", "--set", "cache.foresee=choose"})));
  CHECK(ahead["masked"]["mean_kl"] == sparse["masked"]["mean_kl"]);  // nothing to foresee
  CHECK(ahead["fallbacks"] == 0);
  const Json bare = quest_of(json_of(compare("[0,1]", {"--json", "--no-mask"})));
  CHECK(bare["masked"].is_null());
  CHECK(bare["engaged"] == true);
  CHECK(bare["mean_kl"] == idle["mean_kl"]);
}

TEST_CASE("ppl: what a strategy predicts with nothing chosen stands beside it") {
  const PassKeys texts("6");
  const auto ppl = [&](const std::string& layers, const Words& more) {
    Words all = {"-c", "1024"};
    all.insert(all.end(), more.begin(), more.end());
    return texts.command("ppl", layers, all);
  };
  const Json report = json_of(ppl("[]", {"--json"}));
  const Json bare = json_of(ppl("[]", {"--json", "--no-mask"}));
  CHECK(bare["masked"].is_null());
  CHECK(bare["mean_nll"] == report["mean_nll"]);
  CHECK(bare["attended_percent"] == report["attended_percent"]);
  // The mask is a strategy that one can write down.
  const std::string mask = texts.folder.write(
      "mask.toml",
      "[cache]\nblock_size = 16\nsink_tokens = 0\nwindow_tokens = 32\n[selector]\nplugin = "
      "'kvasir.streaming'\n");
  const Json alone =
      json_of({"ppl", "-m", kModel, "-f", texts.file, "-c", "1024", "-s", mask, "--json"});
  CHECK(alone["masked"].is_null());
  CHECK(report["masked"]["perplexity"].get<double>() ==
        doctest::Approx(alone["perplexity"].get<double>()).epsilon(1e-6));
  CHECK(report["masked"]["mean_nll_saved"].get<double>() ==
        doctest::Approx(alone["mean_nll"].get<double>() - report["mean_nll"].get<double>())
            .epsilon(1e-6));
  CHECK(report["engaged"] == true);
  CHECK(has(run_kvasir(ppl("[]", {})).out, "with nothing chosen, perplexity "));
  const Finished idle = run_kvasir(ppl("[0,1]", {}));
  CAPTURE(idle.out);
  CHECK(has(idle.out, "did not engage: quest: its sparse layers hold none of the retrieval"));
}

TEST_SUITE_END();
