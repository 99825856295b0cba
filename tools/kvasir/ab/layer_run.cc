// See layer_run.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/layer_run.h"

#include <algorithm>
#include <memory>
#include <set>
#include <tuple>

#include "core/error.h"
#include "core/task/evaluate.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/recall/recall_bench.h"
#include "tools/kvasir/session/planning.h"
#include "tools/kvasir/trace/recorder.h"
#include "tools/kvasir/trace/recording_model.h"
#include "tools/kvasir/trace/trace_world.h"

namespace kvasir::tool {
namespace {

constexpr uint32_t kMostSteps = 32;  // decoded queries of a sample

class LayerRun {
 public:
  LayerRun(const Options& options, const AbOptions& ab, const std::vector<Entrant>& lineup,
           Worker& worker, RunFolder& folder)
      : options_(options),
        ab_(ab),
        worker_(worker),
        folder_(folder),
        session_(options),
        samples_(ab, session_.tokenizer()),
        tasks_(task_names(ab)),
        bar_("layers") {
    const auto failed = failed_in(folder.run());
    for (const Entrant& entrant : lineup) {
      if (entrant.role != Role::kArm || failed.count(entrant.label)) continue;
      if (entrant.failed.empty())
        arms_.push_back(&entrant);
      else  // it answered all samples, and ended the process here
        say_unknown(entrant.label, entrant.failed);
    }
    for (const LayerRecord& r : folder.run().layers) done_.insert({r.task, r.length, r.index});
  }

  void run() {
    const uint64_t n = std::min(ab_.n_layer_samples, ab_.n_samples);
    total_ = n * ab_.lengths.size() * tasks_.size() * arms_.size();
    for (uint64_t index = 0; index < n; ++index)
      for (const uint32_t length : ab_.lengths)
        for (size_t task = 0; task < tasks_.size(); ++task) {
          if (!done_.count({tasks_[task], length, index})) look(task, length, index);
          n_done_ += arms_.size();
          bar_.update(n_done_, total_);
        }
  }

 private:
  static void say_unknown(const std::string& label, const std::string& why) {
    report_progress(label + ": its layers are not known: " + why);
  }

  void load() {
    if (engine_) return;
    session_.wrap_model([this](std::unique_ptr<Model> model) {
      auto recording = std::make_unique<RecordingModel>(std::move(model));
      recording_ = recording.get();
      return recording;
    });
    engine_ = &session_.load(*std::max_element(ab_.lengths.begin(), ab_.lengths.end()));
  }

  void look(size_t task, uint32_t length, uint64_t index) {
    load();
    const Sample sample = samples_.make(task, length, index);
    const auto context = static_cast<uint32_t>(prompt_tokens(sample, ab_.question_in_prompt));
    const auto n_tokens = static_cast<uint32_t>(sample.tokens.ids.size());
    const uint32_t steps = std::min(n_tokens - context, kMostSteps);
    const TraceHeader header = trace_header(session_.shape(), context, steps);
    check_memory(Trace::bytes(header) + TraceWorld::shape_of(header, 0, 0).bytes(),
                 "what all layers compute over " + std::to_string(header.n_tokens()) + " tokens",
                 "", "leave it out by --layer-samples 0");
    bar_.update(n_done_, total_, "reading " + sample.label);
    Trace trace(header);
    recording_->record(trace);
    const auto between = [this] {
      worker_.beat();
      worker_.stop_if_interrupted();
    };
    record_tokens(*engine_, std::span(sample.tokens.ids).first(header.n_tokens()), steps,
                  [&](uint32_t) { between(); });
    bar_.update(n_done_, total_, "exact choices for " + sample.label);
    const TraceWorld world(trace, 0, 0, session_.pool());
    const RecallBench bench(world, std::min(kHeaviestTokens, context), options_.seed,
                            session_.host(), "give a smaller --length, or --layer-samples 0");
    std::vector<LayerRecord> records;
    for (size_t i = 0; i < arms_.size(); ++i) {
      bar_.update(n_done_ + i, total_, arms_[i]->label);
      add(records, *arms_[i], bench, {sample.label, length, index, arms_[i]->label, 0, {}},
          between);
    }
    folder_.add_layers(records);
  }

  // `record`: without layer and figures.
  void add(std::vector<LayerRecord>& records, const Entrant& arm, const RecallBench& bench,
           LayerRecord record, const std::function<void()>& between) {
    worker_.works_on(arm.label);
    worker_.may_take_long(false);
    try {
      const RecallResult result = bench.run(*arm.strategy, between);
      for (const RecallFigures& f : result.layers) {
        ++record.layer;
        record.figures = {f.attended, f.captured, f.best, f.top_k, f.error};
        records.push_back(record);
      }
    } catch (const Interrupted&) {
      throw;
    } catch (const Error& e) {
      say_unknown(arm.label, e.what());
    }
    worker_.may_take_long(true);
    worker_.works_on("");
  }

  const Options& options_;
  const AbOptions& ab_;
  Worker& worker_;
  RunFolder& folder_;
  Session session_;
  SampleMaker samples_;
  std::vector<std::string> tasks_;
  std::vector<const Entrant*> arms_;
  std::set<std::tuple<std::string, uint32_t, uint64_t>> done_;
  ProgressBar bar_;
  RecordingModel* recording_ = nullptr;
  Engine* engine_ = nullptr;
  uint64_t n_done_ = 0, total_ = 0;  // strategies over samples
};

}  // namespace

std::string why_no_layers(const ModelShape& shape) {
  if (shape.n_layers < 2) return "it has one layer, and the first is not looked at";
  if (shape.v_head_dim != shape.head_dim) return "its values are not as wide as its keys";
  return why_no_trace(shape);
}

void look_at_layers(const Options& options, const AbOptions& ab, const std::vector<Entrant>& lineup,
                    Worker& worker, RunFolder& folder) {
  LayerRun(options, ab, lineup, worker, folder).run();
}

}  // namespace kvasir::tool
