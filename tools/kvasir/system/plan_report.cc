// See plan_report.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/system/plan_report.h"

#include <algorithm>

#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {
namespace {

Json plan_json(const PlanReport& report, const PlanReport::Plan& plan) {
  const MemoryPlan& p = plan.memory;
  Json out{{"context", plan.context},
           {"kv_bytes", p.kv_bytes},
           {"kv_slow_bytes", p.kv_slow_bytes},
           {"kv_window_bytes", p.kv_window_bytes},
           {"kv_packed_bytes", p.kv_packed_bytes},
           {"kv_overhead_bytes", p.kv_overhead_bytes},
           {"representative_bytes", p.record_bytes},
           {"state_bytes", p.state_bytes},
           {"state_peak_bytes", p.state_peak_bytes},
           {"weight_bytes", p.weight_bytes},
           {"model_scratch_bytes", p.model_scratch_bytes},
           {"activation_bytes", p.activation_bytes},
           {"attention_scratch_bytes", p.attention_scratch_bytes},
           {"process_bytes", p.process_bytes},
           {"device_weight_bytes", p.device_weight_bytes},
           {"device_scratch_bytes", p.device_scratch_bytes},
           {"device_sequence_bytes", p.device_sequence_bytes},
           {"device_attention_bytes", p.device_attention_bytes},
           {"total_bytes", p.total()},
           {"tiers", Json::array({{{"tier", "dram"}, {"bytes", p.total()}},
                                  {{"tier", "storage"}, {"bytes", p.kv_slow_bytes}},
                                  {{"tier", "device"}, {"bytes", p.device_bytes()}}})},
           {"sink_tokens", p.sink_tokens},
           {"window_tokens", p.window_tokens},
           {"selected_tokens", p.selected_tokens},
           {"attended_tokens", p.attended_tokens},
           {"attends_all", p.attends_all},
           {"kv_bytes_per_step", p.kv_bytes_per_step},
           {"representative_bytes_per_step", p.record_bytes_per_step},
           {"weight_bytes_per_step", p.weight_bytes}};
  if (report.bandwidth > 0) {
    out["bound_ms_per_token"] = report.bound_ms_per_token(plan);
    out["bound_tokens_per_second"] = report.bound_tokens_per_second(plan);
  }
  return out;
}

// Columns that only some plans need.
struct Columns {
  bool bound, tiers, state, device;

  explicit Columns(const PlanReport& report) : bound(report.bandwidth > 0) {
    const auto any = [&](uint64_t MemoryPlan::*bytes) {
      return std::any_of(report.plans.begin(), report.plans.end(),
                         [&](const PlanReport::Plan& p) { return p.memory.*bytes != 0; });
    };
    tiers = any(&MemoryPlan::kv_slow_bytes);
    state = any(&MemoryPlan::state_peak_bytes);
    device = std::any_of(report.plans.begin(), report.plans.end(),
                         [](const PlanReport::Plan& p) { return p.memory.device_bytes() != 0; });
  }
};

std::vector<std::string> table_header(const Columns& columns) {
  std::vector<std::string> header = {"context",    "K+V GB",        "summaries GB",
                                     "weights GB", "other GB",      "total GB",
                                     "attended",   "read/token MB", "of it weights MB"};
  if (columns.state) header.insert(header.begin() + 3, {"own state GB", "at most GB"});
  if (columns.tiers) header.insert(header.begin() + 2, "not in memory GB");
  if (columns.device) header.insert(header.end(), "on the GPU GB");
  if (columns.bound) header.insert(header.end(), {"at least ms/token", "at most tokens/s"});
  return header;
}

std::vector<std::string> table_row(const PlanReport& report, const PlanReport::Plan& plan,
                                   const Columns& columns) {
  const MemoryPlan& p = plan.memory;
  const uint64_t other = p.kv_window_bytes + p.kv_packed_bytes + p.kv_overhead_bytes +
                         p.model_scratch_bytes + p.activation_bytes + p.attention_scratch_bytes +
                         p.process_bytes;
  std::vector<std::string> row = {std::to_string(plan.context),
                                  gigabytes(p.kv_bytes),
                                  gigabytes(p.record_bytes),
                                  gigabytes(p.weight_bytes),
                                  gigabytes(other),
                                  gigabytes(p.total()),
                                  std::to_string(p.attended_tokens),
                                  format("%.1f", static_cast<double>(plan.bytes_per_step()) / 1e6),
                                  format("%.1f", static_cast<double>(p.weight_bytes) / 1e6)};
  if (columns.state)
    row.insert(row.begin() + 3, {gigabytes(p.state_bytes), gigabytes(p.state_peak_bytes)});
  if (columns.tiers) row.insert(row.begin() + 2, gigabytes(p.kv_slow_bytes));
  if (columns.device) row.push_back(gigabytes(p.device_bytes()));
  if (columns.bound) {
    row.push_back(format("%.2f", report.bound_ms_per_token(plan)));
    row.push_back(format("%.2f", report.bound_tokens_per_second(plan)));
  }
  return row;
}

}  // namespace

uint64_t PlanReport::Plan::bytes_per_step() const {
  return memory.weight_bytes + memory.kv_bytes_per_step + memory.record_bytes_per_step;
}

double PlanReport::bound_ms_per_token(const Plan& plan) const {
  return static_cast<double>(plan.bytes_per_step()) * 1e3 / bandwidth;
}

double PlanReport::bound_tokens_per_second(const Plan& plan) const {
  return bandwidth / static_cast<double>(plan.bytes_per_step());
}

Json to_json(const PlanReport& r) {
  Json out{{"model", r.model},
           {"strategy", r.strategy},
           {"compute", name(r.compute)},
           {"n_sequences", r.n_sequences},
           {"available_bytes", r.available_bytes}};
  if (r.bandwidth > 0) out["bandwidth_bytes_per_second"] = r.bandwidth;
  out["plans"] = Json::array();
  for (const PlanReport::Plan& plan : r.plans) out["plans"].push_back(plan_json(r, plan));
  return out;
}

std::string to_text(const PlanReport& r) {
  const Columns columns(r);
  Table table(table_header(columns), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14});
  for (const PlanReport::Plan& plan : r.plans) table.add(table_row(r, plan, columns));
  std::string out = format("%s, %s, strategy %s, %u sequence(s); GB = 1e9 bytes\n\n",
                           r.model.c_str(), name(r.compute), r.strategy.c_str(), r.n_sequences) +
                    table.text() +
                    "\nattended: per layer, kv head and decoded token at the full context\n";
  if (columns.state)
    out +=
        "own state: memory that plugins keep beside summaries; at most: while a prompt is "
        "read, which the total counts\n";
  if (columns.tiers) out += "not in memory: that part of K and V; the total is without it\n";
  if (columns.device)
    out +=
        "on the GPU: its layers, attention, and K, V and summaries where they lie there; the total "
        "does not count them\n";
  if (columns.bound) out += format("bound: bytes read / %.1f GB/s\n", r.bandwidth / 1e9);
  return out + "this machine has " + bytes_text(r.available_bytes) + " available\n";
}

}  // namespace kvasir::tool
