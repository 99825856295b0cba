// kvasir model quantize: a model's file with its matrices in another type.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/model/gguf/quantize_model.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/options.h"
#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"

namespace kvasir::tool {
namespace {

struct QuantizeOptions {
  std::string input, output, type, output_type;
  uint32_t threads = 0;
  bool allow_requantize = false, force = false, json = false;
};

// Tensors of one type before and one after.
struct Retyped {
  GgmlType from = {}, to = {};
  uint64_t n_tensors = 0, n_weights = 0, bytes_before = 0, bytes_after = 0;
};

struct QuantizedModel {
  std::string file, type;
  uint64_t file_bytes_before = 0, file_bytes = 0;
  std::vector<Retyped> tensors;  // most bytes first
  Retyped total = {};
};

double bits_per_weight(const Retyped& r) {
  return r.n_weights ? 8.0 * static_cast<double>(r.bytes_after) / static_cast<double>(r.n_weights)
                     : 0.0;
}

Json to_json(const QuantizedModel& m) {
  Json tensors = Json::array();
  for (const Retyped& r : m.tensors)
    tensors.push_back({{"from", name(r.from)},
                       {"to", name(r.to)},
                       {"n_tensors", r.n_tensors},
                       {"n_weights", r.n_weights},
                       {"bytes_before", r.bytes_before},
                       {"bytes_after", r.bytes_after},
                       {"bits_per_weight", bits_per_weight(r)}});
  return {{"file", m.file},
          {"type", m.type},
          {"file_bytes_before", m.file_bytes_before},
          {"file_bytes", m.file_bytes},
          {"n_weights", m.total.n_weights},
          {"bits_per_weight", bits_per_weight(m.total)},
          {"tensors", tensors}};
}

std::string to_text(const QuantizedModel& m) {
  Table table({"from", "to", "tensors", "before", "after", "bits per weight"}, {2, 3, 4, 5});
  const auto row = [&](const std::string& from, const std::string& to, const Retyped& r) {
    table.add({from, to, std::to_string(r.n_tensors), bytes_text(r.bytes_before),
               bytes_text(r.bytes_after), format("%.2f", bits_per_weight(r))});
  };
  for (const Retyped& r : m.tensors) row(name(r.from), name(r.to), r);
  row("all", "", m.total);
  return table.text() + format("\n%s: %s, %s from %s\n", m.file.c_str(), m.type.c_str(),
                               bytes_text(m.file_bytes).c_str(),
                               bytes_text(m.file_bytes_before).c_str());
}

void add(Retyped& sum, const RetypedTensor& t) {
  ++sum.n_tensors;
  sum.n_weights += t.tensor->n_elements;
  sum.bytes_before += t.tensor->n_bytes;
  sum.bytes_after += t.n_bytes();
}

void summarise(const std::vector<RetypedTensor>& tensors, QuantizedModel& out) {
  for (const RetypedTensor& t : tensors) {
    const auto same = [&](const Retyped& r) { return r.from == t.tensor->type && r.to == t.type; };
    auto at = std::find_if(out.tensors.begin(), out.tensors.end(), same);
    if (at == out.tensors.end()) at = out.tensors.insert(at, Retyped{t.tensor->type, t.type});
    add(*at, t);
    add(out.total, t);
  }
  std::stable_sort(out.tensors.begin(), out.tensors.end(), [](const Retyped& a, const Retyped& b) {
    return a.bytes_after > b.bytes_after;
  });
}

// The file is mapped while the other is written.
void check_apart(const GgufFile& file, const std::string& output) {
  for (const std::string& part : file.part_paths()) {
    std::error_code error;  // it need not exist
    if (std::filesystem::equivalent(part, output, error))
      throw input_error("-o " + output + ": is the model that is read; choose another name");
  }
}

void check_requantized(const GgufFile& file, const std::vector<RetypedTensor>& tensors,
                       bool allowed) {
  const auto twice = std::find_if(tensors.begin(), tensors.end(),
                                  [](const RetypedTensor& t) { return t.is_requantized(); });
  if (allowed || twice == tensors.end()) return;
  throw input_error(file.path() + ": tensor '" + twice->tensor->name + "' is " +
                    name(twice->tensor->type) +
                    " already, and what that lost does not come back in " + name(twice->type) +
                    "; quantise the f32, f16 or bf16 original, or give --allow-requantize");
}

QuantizedModel quantize_model(const QuantizeOptions& o) {
  WeightMix mix = weight_mix_by_name(o.type, "--type");
  if (!o.output_type.empty()) {
    const WeightMix output = weight_mix_by_name(o.output_type, "--output-tensor-type");
    if (output.kind != WeightMix::Kind::kUniform)
      throw input_error("--output-tensor-type " + o.output_type + ": is a mix; give a type");
    mix.output = output.type;
  }
  const GgufFile file = GgufFile::open(o.input);
  check_apart(file, o.output);
  check_overwrite(o.output, o.force);
  const std::vector<RetypedTensor> tensors = retype(file, mix);
  check_requantized(file, tensors, o.allow_requantize);
  QuantizedModel out;
  out.file = o.output;
  out.type = mix.name();
  out.file_bytes_before = file.file_bytes();
  summarise(tensors, out);
  ThreadPool pool(Topology::detect(), o.threads);
  ProgressBar bar("writing (MB)");
  write_quantized_model(file, tensors, mix, o.output, pool, [&](uint64_t done, uint64_t total) {
    stop_if_interrupted();
    bar.update(done / 1000000, total / 1000000);
  });
  out.file_bytes = file_bytes(o.output);
  return out;
}

}  // namespace

void add_model_quantize(CLI::App& model) {
  auto* c = model.add_subcommand("quantize", "Write a model with its matrices in another type");
  auto o = std::make_shared<QuantizeOptions>();
  c->add_option("input", o->input, "Model to read (GGUF): f32, f16 or bf16")->required();
  c->add_option("-o,--output,output", o->output, "File to write")->required();
  c->add_option("--type", o->type,
                "Of all matrices, or a mix: " + weight_mix_names() +
                    ". Norms and biases stay as they are; rows that do not fill the blocks of a "
                    "type take the next larger one")
      ->required();
  c->add_option("--output-tensor-type", o->output_type,
                "Of the output matrix (or of the embedding, where it is both); default: as the "
                "others, q6_k in mixes");
  c->add_flag("--allow-requantize", o->allow_requantize,
              "Also round what is quantised already, which loses more");
  c->add_flag("--force", o->force, "Overwrite the file");
  c->add_option("-t,--threads", o->threads, "Worker threads (default: one per physical core)");
  add_json(*c, o->json);
  c->callback([=] { print(quantize_model(*o), o->json); });
}

}  // namespace kvasir::tool
