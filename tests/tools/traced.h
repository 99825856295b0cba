// A trace of a small model, and files of safetensors read by their definition.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/tools/tiny_model.h"

namespace kvasir::test {

// A safetensors file of `kvasir trace`, read by its definition.
struct File {
  nlohmann::json root;
  std::string data;
  explicit File(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    const std::string all{std::istreambuf_iterator<char>(in), {}};
    uint64_t length = 0;
    std::memcpy(&length, all.data(), 8);
    root = nlohmann::json::parse(all.substr(8, length));
    data = all.substr(8 + length);
  }
  std::string bytes() const {
    const std::string text = root.dump();
    const uint64_t length = text.size();
    std::string out(8, '\0');
    std::memcpy(out.data(), &length, 8);
    return out + text + data;
  }
  nlohmann::json header() const {
    return nlohmann::json::parse(root["__metadata__"]["kvasir_trace"].get<std::string>());
  }
  // Row of an F32 tensor of so many elements per row.
  std::vector<float> row(const std::string& name, size_t index, size_t width) const {
    const nlohmann::json& tensor = root[name];
    REQUIRE(tensor["dtype"] == "F32");
    std::vector<float> out(width);
    const size_t at = tensor["data_offsets"][0].get<size_t>() + index * width * 4;
    REQUIRE(at + width * 4 <= tensor["data_offsets"][1].get<size_t>());
    std::memcpy(out.data(), data.data() + at, width * 4);
    return out;
  }
  std::vector<int32_t> tokens() const {
    std::vector<int32_t> out(root["tokens"]["shape"][0].get<size_t>());
    std::memcpy(out.data(), data.data() + root["tokens"]["data_offsets"][0].get<size_t>(),
                out.size() * 4);
    return out;
  }
};

inline std::string words(size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out.append(i ? " " : "").append(std::to_string(i * 7919 % 1000));
  return out;
}

struct Traced {
  TinyModel model;
  TempDir folder;
  std::string text = folder.write("text", words(400)), path = folder.path("trace");
  explicit Traced(const std::vector<std::string>& more = {}) {
    std::vector<std::string> command{"trace", "record", "-m",        model.path, "-f",
                                     text,    "-o",     path,        "-c",       "300",
                                     "-n",    "5",      "--compute", "f32"};
    command.insert(command.end(), more.begin(), more.end());
    const Finished done = run_kvasir(command);
    CAPTURE(done.err);
    REQUIRE(done.code == 0);
  }
};

}  // namespace kvasir::test
