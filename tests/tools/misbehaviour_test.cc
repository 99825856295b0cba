// A gallery of plugins that misbehave, and how each must end: none may be wrong in silence where a
// check can see it. One row per misbehaviour; the plugins are in tests/plugins/fakes.
// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include "tests/tools/tiny_model.h"

namespace {

using namespace kvasir::test;

const std::string kFakes = KVASIR_BINARY_DIR "/test-plugins/fake";

// A sanitizer intercepts crashes and keeps books of memory that hide those of the C library.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

enum class Mode { kPlain, kChecked };  // without and with --check-plugins
enum class Ending {
  kDense,     // a warning names it, the step attends to everything; exit 0
  kRestored,  // a warning names it, its effect is undone; exit 0
  kWarned,    // a warning at the end; exit 0
  kHarmless,  // exit 0
  kUnseen,    // exit 0 and wrong: only the validate mode sees it, in another row
  kRefused,   // before the model runs; exit 1 or 2
  kEnded,     // the run, by an error that names plugin and function; exit 1 or 2
  kCrashed,   // by a signal; the last lines name plugin, function and what it touched
};

struct Row {
  const char *plugin, *option, *value;
  Mode mode;
  Ending ending;
  const char* said;  // a part of standard error
};

constexpr auto P = Mode::kPlain, V = Mode::kChecked;
using enum Ending;

constexpr Row kGallery[] = {
    // Selections.
    {"bad_selector", "fault", "none", V, kHarmless, "no fault"},
    {"bad_selector", "fault", "out_of_range", P, kDense, "lies outside the candidate range"},
    {"bad_selector", "fault", "unsorted", P, kDense, "not ascending and unique"},
    {"bad_selector", "fault", "duplicate", P, kDense, "not ascending and unique"},
    {"bad_selector", "fault", "too_many", P, kDense, "out of order or beyond capacity"},
    {"bad_selector", "fault", "nan_weight", P, kDense, "without declaring"},
    {"bad_selector", "fault", "inf_weight", P, kDense, "without declaring"},
    {"bad_selector", "fault", "error", P, kDense, "broken on request [KVASIR_ERR_INTERNAL]"},
    {"bad_selector", "fault", "error_no_text", P, kDense, "gave no reason"},
    {"bad_selector", "fault", "fallback", P, kHarmless, ""},
    {"bad_selector", "fault", "again", P, kDense, "may not answer so"},
    {"bad_selector", "fault", "capacity_for_ever", P, kDense, "asked for room for"},
    {"bad_selector", "fault", "unknown_status", P, kDense, "unknown status 4711"},
    {"bad_selector", "fault", "lists_missing", P, kDense, "returned 1 lists, expected 2"},
    {"bad_selector", "fault", "offsets_descend", P, kDense, "does not start at 0"},
    {"bad_selector", "fault", "offsets_unwritten", P, kDense, "does not start at 0"},
    {"bad_selector", "fault", "index_unwritten", P, kDense, "index 4294967295 lies outside"},
    {"bad_selector", "fault", "unknown_list_flag", P, kDense, "unknown list flag 77"},
    {"bad_selector", "fault", "listed_all", P, kDense, "its flag says ALL"},
    {"bad_selector", "fault", "finer_scope", P, kDense, "finer than limits() declared"},
    {"bad_selector", "fault", "unit_changed", P, kDense, "changed the unit"},
    {"bad_selector", "fault", "bytes_read", P, kDense, "says that it read 18446744073709551615"},
    {"bad_selector", "fault", "out_of_range", V, kEnded, "lies outside the candidate range"},
    // What a selector says about itself.
    {"rude_selector", "what", "huge_state", P, kRefused, "its state takes 18446744073709551615"},
    {"rude_selector", "what", "odd_unit", P, kRefused, "unit = 9"},
    {"rude_selector", "what", "odd_plans", P, kRefused, "plans.at has unknown bits"},
    {"rude_selector", "what", "reserved", P, kRefused, "reserved is not zero"},
    {"rude_selector", "what", "no_observe", P, kRefused, "there is no observe()"},
    // What a plugin does to its thread and its process.
    {"rude_selector", "what", "none", V, kHarmless, "no fault"},
    {"rude_selector", "what", "rounding", P, kRestored, "select changed the thread's floating-"},
    {"rude_selector", "what", "worker_rounding", P, kRestored, "the thread's floating-point"},
    {"rude_selector", "what", "locale", P, kRestored, "select changed the thread's locale"},
    {"rude_selector", "what", "thread_locale", P, kRestored, "select changed the thread's locale"},
    {"rude_selector", "what", "signal_mask", P, kRestored, "changed the thread's signal mask"},
    {"rude_selector", "what", "prints", P, kHarmless, "rude words on standard output"},
    {"rude_selector", "what", "closes_fd", V, kEnded, "closed or replaced descriptor 3"},
    {"rude_selector", "what", "environment", V, kEnded, "environment variable LC_NUMERIC"},
    {"rude_selector", "what", "folder", V, kEnded, "changed the working folder to /"},
    {"rude_selector", "what", "handler", V, kEnded, "changed the handler of SIGINT"},
    {"rude_selector", "what", "leaves_fd", V, kWarned, "destroy left 1 descriptors open"},
    {"rude_selector", "what", "leaves_memory", V, kWarned, "bytes allocated"},
    {"rude_selector", "what", "grows", V, kWarned, "plans count too little"},
    // What a plugin does to memory that is not its own.
    {"rude_selector", "what", "writes_input", P, kUnseen, ""},
    {"rude_selector", "what", "writes_input", V, kCrashed, "it wrote 'q', which it was given to"},
    {"rude_selector", "what", "reads_behind", V, kCrashed, "it read 0 bytes behind 'q'"},
    {"rude_selector", "what", "reads_before", V, kCrashed, "bytes before 'q'"},
    {"rude_selector", "what", "late_read", V, kCrashed, "valid during an earlier call only"},
    {"rude_selector", "what", "writes_list", V, kEnded, "it wrote behind 'index'"},
    {"rude_selector", "what", "writes_kv", V, kEnded, "changed K or V of a block"},
    {"bad_attention", "fault", "writes_q", V, kCrashed, "it wrote 'q', which it was given to"},
    {"bad_attention", "fault", "writes_kv", V, kEnded, "changed K or V of a block"},
    {"bad_attention", "fault", "o_behind", V, kCrashed, "behind 'o'"},
    {"bad_attention", "fault", "late_lease", V, kCrashed, "'leases', which was valid during"},
    {"bad_representative", "fault", "score_behind", V, kCrashed, "behind 'value'"},
    {"bad_representative", "fault", "writes_record", V, kEnded, "wrote to records"},
    {"bad_representative", "fault", "writes_pages", V, kCrashed,
     "'slab.pages', which it was given"},
    // Attention.
    {"bad_attention", "fault", "none", V, kHarmless, "compared with kvasir.reference: no fault"},
    {"bad_attention", "fault", "nan", P, kEnded, "output of query 0 is not finite"},
    {"bad_attention", "fault", "inf", P, kEnded, "output of query 0 is not finite"},
    {"bad_attention", "fault", "nan_lse", P, kEnded, "lse of query 0 is not finite"},
    {"bad_attention", "fault", "untouched", P, kEnded, "was not written"},
    {"bad_attention", "fault", "error", P, kEnded, "broken on request"},
    {"bad_attention", "fault", "error_no_text", P, kEnded, "gave no reason"},
    {"bad_attention", "fault", "skips_beyond", P, kEnded, "skipped 18446744073709551615"},
    {"bad_attention", "fault", "scratch", P, kRefused, "scratch takes 18446744073709551615"},
    {"bad_attention", "fault", "swaps_heads", P, kUnseen, ""},
    {"bad_attention", "fault", "swaps_heads", V, kEnded, "from that of kvasir.reference"},
    {"bad_attention", "fault", "wrong_by_half", V, kEnded, "from that of kvasir.reference"},
    {"bad_mass", "fault", "nan", P, kEnded, "mass of kv head 0 is negative, not finite"},
    {"bad_mass", "fault", "minus", P, kEnded, "mass of kv head 0 is negative"},
    {"bad_mass", "fault", "untouched", P, kEnded, "was not written"},
    {"bad_mass", "fault", "error", P, kEnded, "broken on request"},
    {"bad_mass", "fault", "none", V, kHarmless, "no fault"},
    {"bad_mass", "fault", "behind", V, kCrashed, "behind 'value'"},
    // Storages.
    {"bad_storage", "fault", "none", V, kHarmless, "no fault"},
    {"bad_storage", "fault", "acquire_error", P, kEnded, "broken on request [KVASIR_ERR_IO]"},
    {"bad_storage", "fault", "acquire_again", P, kEnded, "has no space for"},
    {"bad_storage", "fault", "full", P, kEnded, "full on request"},
    {"bad_storage", "fault", "null_keys", P, kEnded, "without K and V"},
    {"bad_storage", "fault", "wrong_format", P, kEnded, "of an unknown format"},
    {"bad_storage", "fault", "wrong_head", P, kEnded, "a lease of kv head 2 for a key of"},
    {"bad_storage", "fault", "lost", P, kEnded, "a write lease without memory"},
    {"bad_storage", "fault", "unknown_state", P, kEnded, "a lease of state 77"},
    {"bad_storage", "fault", "misaligned", P, kEnded, "that its element type does not allow"},
    {"bad_storage", "fault", "seal_error", P, kEnded, "seal: layer 0: broken on request"},
    {"bad_storage", "fault", "drop_error", P, kEnded, "drop: layer 0: broken on request"},
    {"bad_storage", "fault", "no_formats", P, kRefused, "0 formats"},
    {"bad_storage", "fault", "huge_block", P, kRefused, "a block takes 18446744073709551615"},
    {"bad_storage", "fault", "no_block_bytes", P, kRefused, "block_bytes is zero"},
    {"bad_storage", "fault", "overlap", P, kRefused, "K rows of 64 bytes overlap"},
    {"bad_storage", "fault", "odd_stride", P, kRefused, "its element type's alignment"},
    {"bad_storage", "fault", "odd_dtype", P, kRefused, "an unknown element type"},
    {"bad_storage", "fault", "undeclared", P, kRefused, "its description does not name"},
    {"bad_storage", "fault", "vast_stride", P, kRefused, "beyond a tebibyte"},
    {"bad_storage", "fault", "odd_memory", P, kRefused, "an unknown kind of memory"},
    {"bad_storage", "fault", "nan_later", P, kEnded, "acquire: layer 0: K of token 0, kv head 0"},
    {"bad_storage", "fault", "changes_at_seal", V, kEnded, "K or V is not what was written"},
    {"bad_storage", "fault", "changes_later", P, kUnseen, ""},
    {"bad_storage", "fault", "changes_later", V, kEnded, "the sealed block is not what it was"},
    {"async_storage", "delay_us", "5000000", P, kEnded, "no report within 1 s"},
    // Representatives.
    {"bad_representative", "fault", "none", V, kHarmless, "no fault"},
    {"bad_representative", "fault", "nan_score", P, kDense, "a score is not finite"},
    {"bad_representative", "fault", "inf_score", P, kDense, "a score is not finite"},
    {"bad_representative", "fault", "unwritten_score", P, kDense, "was not written"},
    {"bad_representative", "fault", "score_error", P, kDense, "broken on request"},
    {"bad_representative", "fault", "score_again", P, kDense, "may not answer so"},
    {"bad_representative", "fault", "update_error", P, kDense, "broken on request"},
    {"bad_representative", "fault", "huge_record", P, kRefused, "record_bytes = 1099511627776"},
    {"bad_representative", "fault", "odd_record", P, kRefused, "record_bytes = 7"},
    {"bad_representative", "fault", "no_record", P, kRefused, "record_bytes = 0"},
    {"bad_representative", "fault", "odd_page", P, kRefused, "page_bytes = 7"},
    {"bad_representative", "fault", "reads_more", P, kDense, "more than all records"},
    {"bad_representative", "fault", "odd_flags", P, kRefused, "unknown flags"},
    {"bad_representative", "fault", "huge_state", P, kRefused, "its state takes"},
    {"bad_representative", "fault", "mass_unasked", P, kRefused, "mass.level must be TOKEN"},
};

// The strategy in which the plugin misbehaves, by the start of its name.
std::string strategy_of(const Row& row) {
  const std::string plugin = row.plugin, value = row.value;
  const char* const quote = std::string(row.option) == "delay_us" ? "" : "'";
  std::string table = "plugin = 'kvasir.test.";
  table.append(plugin).append("'\n").append(row.option).append(" = ");
  table.append(quote).append(value).append(quote).append("\n");
  const std::string cache =
      "[cache]\nblock_size = 16\nsink_tokens = 16\nwindow_tokens = 32\ntransfer_seconds = 1\n";
  const std::string blocks = "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 32\n";
  const std::string means = "[representative]\nplugin = 'kvasir.mean'\n";
  if (plugin.ends_with("_selector")) return cache + "[selector]\n" + table;
  if (plugin.ends_with("_representative")) return cache + blocks + "[representative]\n" + table;
  if (plugin == "async_storage")
    return cache + blocks + means + "[storage]\n" + table + "pool_blocks = 2\n";
  if (plugin.ends_with("_storage")) return cache + blocks + means + "[storage]\n" + table;
  if (plugin == "bad_mass")
    return "[cache]\nblock_size = 16\n[selector]\nplugin = 'kvasir.h2o'\n[attention]\n" + table;
  return cache + blocks + means + "[attention]\n" + table;
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

std::string line_with(const std::string& text, const std::string& part) {
  const size_t at = text.find(part);
  if (at == std::string::npos) return "";
  const size_t begin = text.rfind('\n', at) + 1;  // npos + 1 is 0
  return text.substr(begin, text.find('\n', at) - begin);
}

}  // namespace

TEST_SUITE_BEGIN("tools/misbehaviour");

TEST_CASE("each misbehaviour ends as the gallery says") {
  const TinyModel model;
  std::string polite;  // standard output of the rude selector that only selects
  const TempDir seen;  // what is written down about files that behaved so far
  for (const Row& row : kGallery) {
    if (kSanitized && (row.ending == kCrashed || row.ending == kWarned)) continue;
    CAPTURE(std::string(row.plugin));
    CAPTURE(std::string(row.value));
    CAPTURE(row.mode == V);
    const TempDir folder;
    std::vector<std::string> arguments = {"run",
                                          "-m",
                                          model.path,
                                          "-p",
                                          std::string(200, 'a'),
                                          "-n",
                                          "12",
                                          "--temp",
                                          "0",
                                          "-s",
                                          folder.write("s.toml", strategy_of(row)),
                                          "--plugin-dir",
                                          kFakes};
    if (row.mode == V) arguments.push_back("--check-plugins");
    const TempDir& cache =
        row.ending == kCrashed ? folder : seen;  // its file is refused afterwards
    const Finished done = run_kvasir(arguments, {"XDG_CACHE_HOME=" + cache.path("cache")});
    CAPTURE(done.err);
    const std::string id = "kvasir.test." + std::string(row.plugin);
    CHECK(has(done.err, row.said));
    if (row.plugin == std::string("rude_selector") && row.value == std::string("none"))
      polite = done.out;
    if (row.said == std::string("rude words on standard output") || row.ending == kRestored)
      CHECK(done.out == polite);
    switch (row.ending) {
      case kHarmless:
        CHECK(done.code == 0);
        break;
      case kUnseen:
        CHECK(done.code == 0);
        break;
      case kDense:
        CHECK(done.code == 0);
        CHECK(has(done.err, "attending densely"));
        CHECK(has(done.err, id));
        // Plugin, layer and sequence stand in the line once.
        CHECK(count(line_with(done.err, row.said), id) == 1);
        CHECK(count(line_with(done.err, row.said), "layer 0") <= 1);
        break;
      case kRestored:
      case kWarned:
        CHECK(done.code == 0);
        CHECK(has(done.err, "warning: " + id));
        break;
      case kRefused:
      case kEnded:
        CHECK((done.code == 1 || done.code == 2));
        CHECK(has(done.err, id));
        if (row.ending == kRefused) CHECK(done.out.empty());
        break;
      case kCrashed:
        CHECK(done.code == 128 + SIGSEGV);
        CHECK(has(done.err, "kvasir: crash: SIGSEGV in plugin " + id));
        break;
    }
  }
}

TEST_SUITE_END();
