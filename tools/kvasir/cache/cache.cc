// kvasir cache: what a store keeps of earlier prompts: list, verify, prune.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <ctime>
#include <memory>

#include "core/error.h"
#include "tools/kvasir/cache/add.h"
#include "tools/kvasir/cache/store_access.h"
#include "tools/kvasir/cli/exit_code.h"
#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"

namespace kvasir::tool {
namespace {

std::string age_text(uint64_t used) {
  const auto now = static_cast<uint64_t>(std::time(nullptr));
  const uint64_t s = now > used ? now - used : 0;
  if (s < 120) return format("%llu s", static_cast<unsigned long long>(s));
  if (s < 7200) return format("%llu min", static_cast<unsigned long long>(s / 60));
  if (s < 172800) return format("%llu h", static_cast<unsigned long long>(s / 3600));
  return format("%llu d", static_cast<unsigned long long>(s / 86400));
}

void list(const StoreOptions& o) {
  StoreAccess store(o);
  const std::vector<kvasir_store_run> runs = store.runs();
  if (o.strategy.json) {
    Json out = Json::array();
    for (const kvasir_store_run& run : runs)
      out.push_back({{"run", run_text(run)},
                     {"model", run.about},
                     {"blocks", run.n_blocks},
                     {"tokens", run.n_tokens},
                     {"files", run.n_files},
                     {"bytes", run.bytes},
                     {"first_used", run.first_used},
                     {"last_used", run.last_used}});
    return print_json({{"runs", out}});
  }
  Table table({"run", "blocks", "tokens", "size", "used", "oldest", "model"}, {1, 2, 3, 4, 5});
  for (const kvasir_store_run& run : runs)
    table.add({run_text(run).substr(0, 12), std::to_string(run.n_blocks),
               std::to_string(run.n_tokens), bytes_text(run.bytes), age_text(run.last_used),
               age_text(run.first_used), run.about});
  print_text(runs.empty() ? "the store is empty\n" : table.text());
}

// Sums of all runs that --model names.
template <class Call>
kvasir_store_result of_runs(StoreAccess& store, const StoreOptions& o, kvasir_store_filter filter,
                            const Call& call) {
  kvasir_store_result sum{};
  const auto add = [&](const kvasir_store_result& one) {
    sum.n_files += one.n_files;
    sum.bytes += one.bytes;
    sum.n_bad += one.n_bad;
    sum.bad_bytes += one.bad_bytes;
    sum.n_removed += one.n_removed;
    sum.removed_bytes += one.removed_bytes;
  };
  if (o.model.empty()) {
    add(call(filter));
    return sum;
  }
  filter.flags |= KVASIR_STORE_ONE_RUN;
  for (const kvasir_store_run& run : store.runs()) {
    filter.run[0] = run.run[0];
    filter.run[1] = run.run[1];
    add(call(filter));
  }
  return sum;
}

void verify(const StoreOptions& o, bool deletes) {
  StoreAccess store(o);
  kvasir_store_filter filter{};
  filter.struct_size = sizeof filter;
  if (deletes) filter.flags = KVASIR_STORE_DELETE;
  Json bad = Json::array();
  const auto tell = [&](const std::string& name, const std::string& why) {
    bad.push_back({{"file", name}, {"why", why}});
    if (!o.strategy.json) print_text(name + ": " + why + "\n");
  };
  const kvasir_store_result sum = of_runs(store, o, filter, [&](const kvasir_store_filter& one) {
    return store.storage().verify_store(one, tell);
  });
  if (o.strategy.json)
    print_json({{"files", sum.n_files},
                {"bytes", sum.bytes},
                {"bad", bad},
                {"removed", sum.n_removed},
                {"removed_bytes", sum.removed_bytes}});
  else
    print_text(format("%llu files, %s: %llu bad, %llu removed\n",
                      static_cast<unsigned long long>(sum.n_files), bytes_text(sum.bytes).c_str(),
                      static_cast<unsigned long long>(sum.n_bad),
                      static_cast<unsigned long long>(sum.n_removed)));
  if (sum.n_bad > sum.n_removed) throw ExitWith(2);
}

void prune(const StoreOptions& o, const std::string& limit, const std::string& older_than,
           bool all) {
  kvasir_store_filter filter{};
  filter.struct_size = sizeof filter;
  if (!limit.empty()) {
    filter.flags |= KVASIR_STORE_LIMIT;
    filter.limit_bytes = size_of_flag(limit, "--limit");
  }
  if (!older_than.empty()) {
    filter.flags |= KVASIR_STORE_OLDER;
    filter.older_than_seconds = seconds_of_flag(older_than, "--older-than");
  }
  if (filter.flags == 0 && o.model.empty() && !all)
    throw input_error("say what goes: --limit 10G, --older-than 7d, --model NAME, or --all");
  if (filter.flags != 0 && all) throw input_error("--all goes without --limit and --older-than");
  StoreAccess store(o);
  const kvasir_store_result sum = of_runs(store, o, filter, [&](const kvasir_store_filter& one) {
    return store.storage().prune_store(one);
  });
  if (o.strategy.json)
    return print_json({{"files", sum.n_files},
                       {"bytes", sum.bytes},
                       {"removed", sum.n_removed},
                       {"removed_bytes", sum.removed_bytes}});
  print_text(format("%llu of %llu files removed, %s of %s\n",
                    static_cast<unsigned long long>(sum.n_removed),
                    static_cast<unsigned long long>(sum.n_files),
                    bytes_text(sum.removed_bytes).c_str(), bytes_text(sum.bytes).c_str()));
}

CLI::App* add_command(CLI::App& cache, const char* name, const char* help,
                      const std::shared_ptr<StoreOptions>& o) {
  CLI::App* command = cache.add_subcommand(name, help);
  command->add_option("STORE", o->place,
                      "A folder, or redis://HOST:PORT/DATABASE (storage.store of a strategy); or "
                      "give the strategy with -s");
  command->add_option(
      "--model", o->model,
      "Only runs whose name begins with this, or whose model's name has it in it; each by itself");
  add_strategy_flags(*command, o->strategy);
  return command;
}

}  // namespace

void add_cache(CLI::App& app) {
  auto* cache =
      app.add_subcommand("cache", "Fill, see, check and shorten what a store keeps of prompts");
  cache->require_subcommand(1);
  add_cache_add(*cache);
  const auto listed = std::make_shared<StoreOptions>();
  add_command(*cache, "list", "Runs of models, with their blocks, tokens, bytes and age", listed)
      ->callback([=] { list(*listed); });

  const auto verified = std::make_shared<StoreOptions>();
  const auto deletes = std::make_shared<bool>(false);
  auto* check = add_command(
      *cache, "verify",
      "Read every record and say which are not whole; exit code 2 when some stay so", verified);
  check->add_flag("--delete", *deletes, "Remove those");
  check->callback([=] { verify(*verified, *deletes); });

  struct Prune {
    StoreOptions store;
    std::string limit, older_than;
    bool all = false;
  };
  const auto pruned = std::make_shared<Prune>();
  auto* shorten = add_command(*cache, "prune", "Remove records, those used longest ago first",
                              std::shared_ptr<StoreOptions>(pruned, &pruned->store));
  shorten->add_option("--limit", pruned->limit, "Until the others take no more: 500M, 10G");
  shorten->add_option("--older-than", pruned->older_than,
                      "Those that were not used for so long: 30m, 12h, 7d");
  shorten->add_flag("--all", pruned->all, "Everything");
  shorten->callback([=] { prune(pruned->store, pruned->limit, pruned->older_than, pruned->all); });
}

}  // namespace kvasir::tool
