// kvasir bench bandwidth: how fast memory is read, and what a region of the pool costs.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "core/error.h"
#include "tools/kvasir/bench/bandwidth_bench.h"
#include "tools/kvasir/bench/limits.h"
#include "tools/kvasir/cli/options.h"
#include "tools/kvasir/cli/output_format.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"

namespace kvasir::tool {
namespace {

constexpr const char* kBandwidthColumns =
    "One row per number of threads; repetitions of all of them take turns. Medians, and behind +/- "
    "the distance from the first quartile to the third, of the median:\n"
    "  streams       GB/s read from first to last byte, each worker its own slice\n"
    "  32 KiB        GB/s in blocks of 32 KiB that lie anywhere: K of 128 tokens x 128 in f16\n"
    "  4 KiB         likewise 4 KiB: 16 tokens\n"
    "  GFLOP/s       f32 multiply-adds from registers, 2 flop each\n"
    "  fork-join     microseconds of an empty region of the thread pool right behind another one: "
    "median and 99th percentile\n"
    "  asleep        likewise of one whose workers have gone to sleep\n"
    "The first column is the limit that kvasir bench divides by.";

struct BandwidthOptions {
  std::string threads;
  uint32_t n_repetitions = 9;
  uint32_t mebibytes = 0;
  NodeUse numa = NodeUse::kAll;
  OutputFormat format = OutputFormat::kMarkdown;
};

std::string rate_text(const Typical& rate, double unit) {
  return format("%.2f +/- %s", rate.middle / unit, percent_text(rate.spread).c_str());
}

}  // namespace

Json to_json(const BandwidthReport& r) {
  Json out = {{"bytes", r.bytes}, {"repetitions", r.n_repetitions}, {"rows", Json::array()}};
  for (const BandwidthRow& row : r.rows)
    out["rows"].push_back({{"threads", row.n_threads},
                           {"read_bytes_per_second", row.streams.middle},
                           {"read_spread", row.streams.spread},
                           {"blocks_32k_bytes_per_second", row.blocks_32k.middle},
                           {"blocks_32k_spread", row.blocks_32k.spread},
                           {"blocks_4k_bytes_per_second", row.blocks_4k.middle},
                           {"blocks_4k_spread", row.blocks_4k.spread},
                           {"multiply_adds_per_second", row.multiply_add_rate.middle},
                           {"multiply_adds_spread", row.multiply_add_rate.spread},
                           {"fork_join_us", row.fork_join},
                           {"fork_join_p99_us", row.fork_join_p99},
                           {"fork_join_asleep_us", row.fork_join_asleep}});
  return out;
}

std::string to_text(const BandwidthReport& r) {
  Table table({"threads", "streams", "32 KiB", "4 KiB", "GFLOP/s", "fork-join", "99 %", "asleep"},
              {0, 1, 2, 3, 4, 5, 6, 7});
  for (const BandwidthRow& row : r.rows)
    table.add({std::to_string(row.n_threads), rate_text(row.streams, 1e9),
               rate_text(row.blocks_32k, 1e9), rate_text(row.blocks_4k, 1e9),
               rate_text(row.multiply_add_rate, 0.5e9), format("%.2f us", row.fork_join),
               format("%.2f us", row.fork_join_p99), format("%.1f us", row.fork_join_asleep)});
  return format("GB/s of %s per pass, %u repetitions; the columns: kvasir bench bandwidth --help\n",
                bytes_text(r.bytes).c_str(), r.n_repetitions) +
         "\n" + table.markdown();
}

namespace {

void bench_bandwidth(const BandwidthOptions& o) {
  if (o.n_repetitions == 0) throw input_error("-r must be above 0");
  const Topology topology = Topology::detect(o.numa);
  print(measure_bandwidth(
            topology,
            o.threads.empty() ? default_thread_counts(topology) : parse_counts(o.threads, "-t"),
            uint64_t{o.mebibytes} << 20, o.n_repetitions),
        o.format);
}

}  // namespace

void add_bench_bandwidth(CLI::App& bench) {
  auto* c = bench.add_subcommand(
      "bandwidth",
      "How fast memory is read, in streams and in blocks, by number of threads; and what starting "
      "and ending a region of the thread pool costs");
  auto o = std::make_shared<BandwidthOptions>();
  c->footer(kBandwidthColumns);
  c->add_option("-t,--threads", o->threads,
                "Numbers of threads, as 1,2,8 (default: powers of two and all cores)");
  add_numa(*c, o->numa);
  c->add_option("-r,--repetitions", o->n_repetitions, "Passes of each kind (9)");
  c->add_option("--mebibytes", o->mebibytes,
                "Memory read per pass (default: 1024, less where memory is short): well above the "
                "CPU's caches");
  add_output_format(*c, o->format);
  c->callback([=] { bench_bandwidth(*o); });
}

}  // namespace kvasir::tool
