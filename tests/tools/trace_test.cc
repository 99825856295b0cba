// kvasir trace: what is recorded is what the weights say, what is replayed is what was recorded.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "core/model/gguf/gguf.h"
#include "core/model/gguf/quant.h"
#include "core/model/layers/shape.h"
#include "tests/tools/traced.h"

namespace {

using namespace kvasir;
using kvasir::test::File;
using kvasir::test::Finished;
using kvasir::test::has;
using kvasir::test::json_of;
using kvasir::test::run_kvasir;
using kvasir::test::Traced;
using Json = nlohmann::json;

std::vector<float> floats_of(const GgufFile& file, const std::string& name) {
  const GgufTensor& tensor = file.tensor(name);
  std::vector<float> out(tensor.n_elements);
  dequantize(tensor.type, tensor.data, out.data(), out.size());
  return out;
}

// w [n_out][x.size()] times x, in double.
void check_product(const std::vector<float>& w, const std::vector<float>& x,
                   const std::vector<float>& got) {
  for (size_t i = 0; i < got.size(); ++i) {
    double sum = 0, size = 0;
    for (size_t k = 0; k < x.size(); ++k) {
      sum += double{w[i * x.size() + k]} * double{x[k]};
      size += std::fabs(double{w[i * x.size() + k]} * double{x[k]});
    }
    CHECK(std::fabs(sum - double{got[i]}) <= 1e-6 * size + 1e-9);
  }
}

}  // namespace

TEST_SUITE_BEGIN("tools/trace");

TEST_CASE("trace record: inputs, queries, keys and values are what the weights make of the text") {
  const Traced t({"--type", "f32"});
  const File trace(t.path);
  const auto file = GgufFile::open(t.model.path);
  const ModelShape shape = read_shape(file);
  const Json header = trace.header();
  CHECK(header["context"] == 295);
  CHECK(header["steps"] == 5);
  CHECK(header["layers"].size() == shape.n_layers);
  const size_t d = shape.d_model, q_width = size_t{shape.n_q_heads} * shape.head_dim;
  const size_t k_width = size_t{shape.n_kv_heads} * shape.head_dim;
  const std::vector<int32_t> tokens = trace.tokens();
  REQUIRE(tokens.size() == 300);
  // The input of layer 0 is the norm of the token's embedding.
  const auto embedding = floats_of(file, "token_embd.weight");
  const auto norm = floats_of(file, "blk.0.attn_norm.weight");
  for (const size_t step : {0u, 4u}) {
    const float* e = embedding.data() + static_cast<size_t>(tokens[295 + step]) * d;
    double squares = 0;
    for (size_t i = 0; i < d; ++i) squares += double{e[i]} * double{e[i]};
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(d) + double{shape.norm_eps});
    const auto x = trace.row("layers.0.x", step, d);
    for (size_t i = 0; i < d; ++i)
      CHECK(double{x[i]} == doctest::Approx(double{e[i]} * scale * double{norm[i]}).epsilon(1e-5));
  }
  CHECK_FALSE(trace.root.contains("layers.0.ahead"));
  for (uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    const std::string of_trace = "layers." + std::to_string(layer) + ".";
    const std::string of_file = "blk." + std::to_string(layer) + ".attn_";
    const auto w_q = floats_of(file, of_file + "q.weight");
    for (const size_t step : {0u, 4u}) {
      const auto x = trace.row(of_trace + "x", step, d);
      check_product(w_q, x, trace.row(of_trace + "q", 295 + step, q_width));
      check_product(floats_of(file, of_file + "k.weight"), x,
                    trace.row(of_trace + "k", 295 + step, k_width));
      check_product(floats_of(file, of_file + "v.weight"), x,
                    trace.row(of_trace + "v", 295 + step, k_width));
      if (layer == 0) continue;
      const auto before = trace.row("layers." + std::to_string(layer - 1) + ".x", step, d);
      check_product(w_q, before, trace.row(of_trace + "ahead", step, q_width));
    }
  }
}

TEST_CASE("trace record: some layers, in f16, are the same numbers rounded") {
  const Traced whole({"--type", "f32"}), some({"--layers", "1"});
  const File a(whole.path), b(some.path);
  CHECK(b.header()["layers"] == Json({1}));
  CHECK_FALSE(b.root.contains("layers.0.q"));
  CHECK(a.tokens() == b.tokens());
  for (const std::string name : {"q", "k", "v", "x", "ahead"}) {
    const Json &exact = a.root["layers.1." + name], &rounded = b.root["layers.1." + name];
    CHECK(rounded["dtype"] == "F16");
    REQUIRE(rounded["shape"] == exact["shape"]);
    const size_t begin = rounded["data_offsets"][0], end = rounded["data_offsets"][1];
    const size_t from = exact["data_offsets"][0];
    for (size_t i = 0; i < (end - begin) / 2; i += 97) {
      uint16_t bits = 0;
      float x = 0;
      std::memcpy(&bits, b.data.data() + begin + 2 * i, 2);
      std::memcpy(&x, a.data.data() + from + 4 * i, 4);
      const int exponent = bits >> 10 & 31;
      const double mantissa = (bits & 1023) / 1024.0 + (exponent > 0 ? 1.0 : 0.0);
      const double half = std::ldexp(mantissa, std::max(exponent, 1) - 15);
      CHECK(std::fabs((bits & 0x8000 ? -half : half) - double{x}) <=
            std::fabs(double{x}) * 0x1p-11 + 0x1p-25);
    }
  }
  const Finished one = run_kvasir({"trace", "replay", some.path, "-s", "quest"});
  CHECK(one.code == 2);
  CHECK(has(one.err, "record two or more"));
}

TEST_CASE("trace replay: dense attention captures all, the oracle the best of its size") {
  const Traced t;
  const Json r =
      json_of({"trace", "replay", t.path, "-s", "dense", "-s", "oracle", "-s", "quest", "-s",
               "infinigen", "-b", "64", "--sink", "8", "--window", "32", "--json"});
  CHECK(r["context"] == 295);
  CHECK(r["trace"] == t.path);
  CHECK(r["recorded_layers"].size() == r["layers"]);
  CHECK_FALSE(r.contains("needles"));
  for (const Json& s : r["strategies"]) {
    const std::string name = s["strategy"];
    CAPTURE(name);
    CHECK(s["fallbacks"] == 0);
    CHECK_FALSE(s.contains("needle_recall"));
    const double captured = s["captured_mass"], best = s["best_mass"], error = s["output_error"];
    CHECK(captured <= best + 1e-6);
    if (name == "dense") {
      CHECK(captured == doctest::Approx(1.0));
      CHECK(error < 1e-5);
    }
    if (name == "oracle") CHECK(captured == doctest::Approx(best).epsilon(1e-4));
    double of_layers = 0;
    for (const Json& layer : s["layers"]) of_layers += layer["captured_mass"].get<double>();
    CHECK(s["layers"].size() == r["layers"].get<size_t>() - 1);
    CHECK(of_layers / static_cast<double>(s["layers"].size()) == doctest::Approx(captured));
  }
  const Finished text =
      run_kvasir({"trace", "replay", t.path, "-s", "quest", "-b", "64", "--by-layer"});
  CHECK(text.code == 0);
  CHECK(has(text.out, "captured mass in layer"));
  CHECK(has(text.out, "295 tokens of"));
  CHECK_FALSE(has(text.out, "needle"));
}

TEST_CASE("trace analyze: what a made-up trace must give") {
  Traced t({"--type", "f32"});
  File trace(t.path);
  // All keys zero: every token has the same mass, whatever the query.
  for (uint32_t layer = 0; layer < trace.header()["layers"].size(); ++layer) {
    const Json offsets = trace.root["layers." + std::to_string(layer) + ".k"]["data_offsets"];
    const size_t begin = offsets[0], end = offsets[1];
    std::fill(trace.data.begin() + static_cast<ptrdiff_t>(begin),
              trace.data.begin() + static_cast<ptrdiff_t>(end), '\0');
  }
  const std::string path = t.folder.write("flat", trace.bytes());
  const Json flat = json_of({"trace", "analyze", path, "--json"});
  for (const Json& layer : flat["layers"]) {
    CAPTURE(layer["layer"].get<int>());
    // Mean over queries that see 296 to 300 tokens.
    CHECK(layer["first_mass"].get<double>() == doctest::Approx(4.0 / 298).epsilon(1e-3));
    CHECK(layer["last_mass"].get<double>() == doctest::Approx(64.0 / 298).epsilon(1e-3));
    CHECK(layer["tokens_of_90_percent"].get<double>() == doctest::Approx(0.9).epsilon(0.01));
    CHECK(layer["below_1_percent"] == 0.0);
    CHECK(layer["heaviest_stayed"] == 1.0);  // equal masses: the first 64 each time
    CHECK(layer["heaviest_returned"] == 0.0);
    CHECK(layer["key_outlier"] == 0.0);
    if (layer["layer"] != 0) CHECK(layer["ahead_recall"] == 1.0);
  }
  CHECK(flat["lengths"].size() == 1);
  CHECK(flat["lengths"][0]["tokens"] == 256);
  // What is foretold equals what comes where the rehearsed query is the true one.
  File same(t.path);
  const size_t n = 295;
  for (uint32_t layer = 1; layer < same.header()["layers"].size(); ++layer) {
    const std::string name = "layers." + std::to_string(layer) + ".";
    const size_t ahead = same.root[name + "ahead"]["data_offsets"][0];
    const size_t bytes = same.root[name + "ahead"]["data_offsets"][1].get<size_t>() - ahead;
    const size_t q = same.root[name + "q"]["data_offsets"][0].get<size_t>() + n * bytes / 5;
    std::copy_n(same.data.begin() + static_cast<ptrdiff_t>(q), bytes,
                same.data.begin() + static_cast<ptrdiff_t>(ahead));
  }
  const Json foretold =
      json_of({"trace", "analyze", t.folder.write("same", same.bytes()), "--json"});
  for (const Json& layer : foretold["layers"]) {
    if (layer["layer"] == 0) continue;
    CHECK(layer["ahead_cosine"].get<double>() == doctest::Approx(1.0));
    CHECK(layer["ahead_recall"] == 1.0);
  }
}

TEST_CASE("trace: damaged files are refused by name, whatever is damaged") {
  const Traced t({"--type", "f32"});
  const File good(t.path);
  const auto edited = [&](const std::function<void(File&)>& edit) {
    File file = good;
    edit(file);
    return file.bytes();
  };
  const auto with_header = [&](const std::function<void(Json&)>& edit) {
    return edited([&](File& file) {
      Json header = file.header();
      edit(header);
      file.root["__metadata__"]["kvasir_trace"] = header.dump();
    });
  };
  const float nan = std::nanf("");
  const std::string whole = good.bytes();
  std::string endless = whole;
  std::fill_n(endless.begin(), 8, '\x7f');
  const struct {
    const char* what;
    std::string bytes, says;
  } cases[] = {
      {"empty", "", "no trace"},
      {"short", whole.substr(0, 5), "no trace"},
      {"endless header", endless, "header would be longer"},
      {"no JSON", std::string("\x04\0\0\0\0\0\0\0abcd", 12), "no JSON object"},
      {"cut", whole.substr(0, whole.size() - 1), "does not lie within the file"},
      {"another file's", edited([](File& f) { f.root.erase("__metadata__"); }), "kvasir_trace"},
      {"version", with_header([](Json& h) { h["version"] = 2; }), "'version'"},
      {"unknown key", with_header([](Json& h) { h["more"] = 1; }), "'more' is not known"},
      {"missing key", with_header([](Json& h) { h.erase("rope"); }), "'rope' is missing"},
      {"unknown key of rope", with_header([](Json& h) { h["rope"]["x"] = 1; }), "'x' is not known"},
      {"heads", with_header([](Json& h) { h["n_kv_heads"] = 3; }), "n_kv_heads"},
      {"layers", with_header([](Json& h) {
         h["layers"] = {1, 1};
       }),
       "'layers'"},
      {"huge", with_header([](Json& h) { h["context"] = 16000000; }), "more than the file holds"},
      {"negative", with_header([](Json& h) { h["steps"] = -1; }), "'steps'"},
      {"missing tensor", edited([](File& f) { f.root.erase("layers.1.v"); }), "'layers.1.v'"},
      {"tensor too many", edited([](File& f) { f.root["more"] = f.root["tokens"]; }), "'more'"},
      {"shape", edited([](File& f) { f.root["layers.1.v"]["shape"][0] = 7; }), "'layers.1.v'"},
      {"type", edited([](File& f) { f.root["layers.1.v"]["dtype"] = "BF16"; }), "BF16"},
      {"offsets", edited([](File& f) { f.root["layers.1.v"]["data_offsets"][0] = 1; }),
       "does not lie within"},
      {"NaN", edited([&](File& f) {
         std::memcpy(f.data.data() + f.root["layers.1.k"]["data_offsets"][0].get<size_t>(), &nan,
                     4);
       }),
       "not finite"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.what);
    const std::string path = t.folder.write("damaged", c.bytes);
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"trace", "analyze", path},
          {"trace", "replay", path, "-s", "quest"}}) {
      const Finished done = run_kvasir(command);
      CAPTURE(done.err);
      CHECK(done.code == 2);
      CHECK(has(done.err, path));
      CHECK(has(done.err, c.says));
    }
  }
}

TEST_CASE("trace: mistakes are named") {
  const Traced t;
  const auto fails = [](const std::vector<std::string>& command, const std::string& says) {
    const Finished done = run_kvasir(command);
    CAPTURE(done.err);
    CHECK(done.code == 2);
    CHECK(has(done.err, says));
  };
  const std::string& model = t.model.path;
  fails({"trace", "record", "-m", model, "-f", t.text, "-o", t.path}, "--force");
  const std::string fresh = t.folder.path("fresh");
  const auto record = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all{"trace", "record", "-m", model, "-f", t.text, "-o", fresh};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  fails(record({"--layers", "0,99"}), "there is no layer 99");
  fails(record({"--layers", "1,0"}), "must ascend");
  fails(record({"-n", "0"}), "-n must be above 0");
  fails(record({"-c", "100000"}), "-c asks for 100000");
  fails(record({"-c", "10", "-n", "10"}), "a prompt must be left");
  fails(record({"--type", "q8_0"}), "--type");
  fails({"trace", "replay", t.path}, "at least one -s");
  fails({"trace", "replay", t.path, "-s", "quest", "--sink", "300"}, "below the prompt of 295");
  fails({"trace", "replay", t.path, "-s", "nonsense"}, "nonsense");
  fails({"trace", "replay", "/nowhere", "-s", "quest"}, "/nowhere");
  fails({"trace", "replai"}, "did you mean 'replay'?");
  CHECK(t.folder.list().size() == 2);  // the text and the trace
}

TEST_SUITE_END();
