// kvasir bench storage: random blocks of the file of `tiered`, beside plain reads.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <filesystem>

#include "core/error.h"
#include "tools/kvasir/bench/limits.h"
#include "tools/kvasir/bench/storage_bench.h"
#include "tools/kvasir/cli/output_format.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"

namespace kvasir::tool {
namespace {

constexpr const char* kStorageColumns =
    "One row per size and depth; tiered and plain reads take turns. Medians, and behind +/- the "
    "distance from the first quartile to the third, of the median:\n"
    "  block       K and V of a block, KiB\n"
    "  read        bytes of a call: with checksums, to the end of a page\n"
    "  depth       most calls at a time (storage.queue_depth)\n"
    "  tiered      GB/s that its calls read, until a list of blocks is leased: checked against "
    "their "
    "checksums and copied to where attention reads them\n"
    "  at a time   calls of tiered under way, on average\n"
    "  plain       GB/s of as many calls on another file, whose bytes nobody looks at: io_uring "
    "with "
    "registered buffers, pread at depth 1\n"
    "  of plain    tiered divided by plain, the median of the repetitions\n"
    "Below the table stands a command line of fio that reads as plain does.";

struct StorageBenchOptions {
  Options options;
  std::string folder, kibibytes = "64,128,512", depths = "1,8,32";
  uint32_t mebibytes = 512, n_repetitions = 5;
  OutputFormat format = OutputFormat::kMarkdown;
};

std::string rate_text(const Typical& rate) {
  return format("%.2f +/- %s", rate.middle / 1e9, percent_text(rate.spread).c_str());
}

std::string fio_text(const StorageReport& r) {
  const StorageRow& row = r.rows.back();
  return format(
      "fio --name=plain --directory=%s --size=%lluM --rw=randread --bs=%llu --iodepth=%u "
      "--ioengine=io_uring --fixedbufs=1 --direct=%d --runtime=10 --time_based",
      r.settings.folder.c_str(), static_cast<unsigned long long>(r.settings.file_bytes >> 20),
      static_cast<unsigned long long>(row.read_bytes), row.depth, row.direct ? 1 : 0);
}

void bench_storage(const StorageBenchOptions& o) {
  if (o.n_repetitions == 0) throw input_error("-r must be above 0");
  StorageSettings settings;
  settings.folder = o.folder.empty() ? std::filesystem::temp_directory_path().string() : o.folder;
  if (!std::filesystem::is_directory(settings.folder))
    throw input_error("--folder " + settings.folder + ": no such folder");
  settings.folder = std::filesystem::absolute(settings.folder).string();
  settings.block_kibibytes = parse_counts(o.kibibytes, "--kib");
  settings.depths = parse_counts(o.depths, "--depth");
  settings.file_bytes = uint64_t{o.mebibytes} << 20;
  settings.n_repetitions = o.n_repetitions;
  print(measure_storage(o.options, settings), o.format);
}

}  // namespace

Json to_json(const StorageReport& r) {
  Json out = {{"folder", r.settings.folder},
              {"file_bytes", r.settings.file_bytes},
              {"repetitions", r.settings.n_repetitions},
              {"fio", fio_text(r)},
              {"rows", Json::array()}};
  for (const StorageRow& row : r.rows)
    out["rows"].push_back({{"block_bytes", row.block_bytes},
                           {"read_bytes", row.read_bytes},
                           {"depth", row.depth},
                           {"tiered_bytes_per_second", row.tiered.middle},
                           {"tiered_spread", row.tiered.spread},
                           {"reads_at_a_time", row.at_a_time},
                           {"plain_bytes_per_second", row.raw.middle},
                           {"plain_spread", row.raw.spread},
                           {"plain_is_direct", row.direct},
                           {"plain_is_io_uring", row.uring},
                           {"share_of_plain", row.share}});
  return out;
}

std::string to_text(const StorageReport& r) {
  Table table({"block KiB", "read", "depth", "tiered", "at a time", "plain", "of plain"},
              {0, 1, 2, 3, 4, 5, 6});
  bool direct = true, uring = true;
  for (const StorageRow& row : r.rows) {
    table.add({std::to_string(row.block_bytes >> 10), std::to_string(row.read_bytes),
               std::to_string(row.depth), rate_text(row.tiered), format("%.1f", row.at_a_time),
               rate_text(row.raw), percent_text(row.share)});
    direct = direct && row.direct;
    uring = uring && row.uring;
  }
  std::string out =
      format(
          "GB/s from files of %u MiB in %s, %u repetitions; the columns: kvasir bench storage "
          "--help\n\n",
          static_cast<unsigned>(r.settings.file_bytes >> 20), r.settings.folder.c_str(),
          r.settings.n_repetitions) +
      table.markdown();
  if (!direct) out += "\nNo O_DIRECT in this folder: what is measured is the page cache.\n";
  if (!uring) out += "\nNo io_uring here: plain reads were one at a time.\n";
  return out + "\n" + fio_text(r) + "\n";
}

void add_bench_storage(CLI::App& bench) {
  auto* c = bench.add_subcommand(
      "storage",
      "How fast random blocks come back from the file of the storage tiered, by size of "
      "a block and number of reads at a time, beside plain reads of the same bytes");
  auto o = std::make_shared<StorageBenchOptions>();
  c->footer(kStorageColumns);
  c->add_option("--folder", o->folder,
                "Where both files are made (default: the system's for temporary files)");
  c->add_option("--kib", o->kibibytes, "Sizes of K and V of a block, KiB (64,128,512)");
  c->add_option("--depth", o->depths, "Numbers of reads at a time (1,8,32)");
  c->add_option("--mebibytes", o->mebibytes,
                "Of each of two files (512): well above the caches of the device");
  c->add_option("-r,--repetitions", o->n_repetitions, "Lists of blocks that are read (5)");
  c->add_option("--set", o->options.set, "key=value of the strategy, as storage.direct=false");
  add_output_format(*c, o->format);
  c->callback([=] { bench_storage(*o); });
}

}  // namespace kvasir::tool
