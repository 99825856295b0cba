// The subcommands: each adds itself to the command line and runs when it was named.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/kvasir/cli/app.h"

namespace kvasir::tool {

void add_run(CLI::App& app);
void add_chat(CLI::App& app);
void add_plugin(CLI::App& app);
void add_config(CLI::App& app);
void add_model(CLI::App& app);
void add_plan(CLI::App& app);
void add_doctor(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_ppl(CLI::App& app);
void add_compare(CLI::App& app);
void add_ab(CLI::App& app);
void add_task(CLI::App& app);
void add_bench(CLI::App& app);
void add_trace(CLI::App& app);
void add_cache(CLI::App& app);

// Below `kvasir model`.
void add_model_info(CLI::App& model);
void add_model_random(CLI::App& model);
void add_model_quantize(CLI::App& model);
void add_model_logits(CLI::App& model);
void add_model_skew(CLI::App& model);

// Below `kvasir config`.
void add_config_import(CLI::App& config);

// Below `kvasir task`.
void add_task_generate(CLI::App& task);
void add_task_list(CLI::App& task);
void add_task_eval(CLI::App& task);
void add_task_score(CLI::App& task);
void add_task_blend(CLI::App& task);

// Below `kvasir trace`.
void add_trace_record(CLI::App& trace);
void add_trace_replay(CLI::App& trace);
void add_trace_analyze(CLI::App& trace);

// Below `kvasir bench`.
void add_bench_attention(CLI::App& bench);
void add_bench_bandwidth(CLI::App& bench);
void add_bench_blend(CLI::App& bench);
void add_bench_model(CLI::App& bench);
void add_bench_recall(CLI::App& bench);
void add_bench_select(CLI::App& bench);
void add_bench_storage(CLI::App& bench);
void add_bench_weights(CLI::App& bench);

}  // namespace kvasir::tool
