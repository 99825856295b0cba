// Judging plugin files without running them, down to files that are nothing at all.
// SPDX-License-Identifier: Apache-2.0
#include <elf.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/core/plugin/support.h"
#include "tests/support/temp_dir.h"

namespace {

using namespace kvasir;
using kvasir::test::check_says;
using kvasir::test::plugin_dir;
using kvasir::test::read_bytes;
using kvasir::test::TempDir;
using Verdict = PluginFile::Verdict;

std::string good_file() { return plugin_dir("good") + "/test_selector.so"; }

TEST_CASE("a good plugin is known by its note alone") {
  const PluginFile file = inspect_plugin_file(good_file());
  CHECK(file.verdict == Verdict::kUsable);
  CHECK(file.reason.empty());
  CHECK(file.ids == std::vector<std::string>{"org.test.selector"});
  CHECK(file.version == "1.2.3");
  CHECK(file.kinds == KVASIR_KIND_BIT(KVASIR_KIND_SELECTOR));
  CHECK(file.abi_major == KVASIR_ABI_MAJOR);
  CHECK(file.required_minor == KVASIR_ABI_MINOR);
}

TEST_CASE("every reason for a refusal says what is needed, offered, and to be done") {
  struct Case {
    const char* file;
    std::vector<std::string> said;
  };
  const std::string id = "org.test.plugin 1.2.3";
  const Case cases[] = {
      {"no_note", {"no Kvasir note", "KVASIR_PLUGIN_NOTE"}},
      {"other_note", {"no Kvasir note"}},
      {"wrong_major", {"needs plugin ABI 7.x", "speaks 0.2 to 0.2", "rebuild"}},
      {"newer_minor",
       {id, "needs plugin ABI 0.99 or newer", "speaks 0.2 to 0.2", "update the host"}},
      {"older_minor", {id, "was built for plugin ABI 0.1", "speaks 0.2 to 0.2", "rebuild"}},
      {"short_note", {"too short"}},
      {"future_cpu", {id, "CPU features", "unknown bits", "this machine has"}},
      {"needs_draft", {id, "draft extension kvasir.state/1", "allow_drafts"}},
      {"no_kind", {id, "no kind", "KVASIR_KIND_BIT"}},
      {"bad_id", {"damaged list of plugin ids"}},
      {"no_id", {"damaged list of plugin ids"}},
      {"no_version", {"damaged version"}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.file);
    const std::string path = plugin_dir("faulty") + "/test_" + c.file + ".so";
    const PluginFile file = inspect_plugin_file(path);
    CHECK(file.verdict == Verdict::kRefused);
    check_says(describe(file), {path});
    check_says(describe(file), c.said);
  }
}

TEST_CASE("CPU features and drafts are judged by the rules given") {
  const std::string draft = plugin_dir("faulty") + "/test_needs_draft.so";
  check_says(inspect_plugin_file(draft, {.allow_drafts = true}).reason,
             {"kvasir.state/1", "implements no draft extension"});
  const std::string future = plugin_dir("faulty") + "/test_future_cpu.so";
  CHECK(inspect_plugin_file(future, {.cpu_features = 0x80000000u}).verdict == Verdict::kUsable);
}

TEST_CASE("what is no shared object of this machine is refused by name") {
  const TempDir dir;
  const std::string good = read_bytes(good_file());
  REQUIRE(good.size() > sizeof(Elf64_Ehdr));
  const auto changed = [&](size_t offset, char value) {
    std::string bytes = good;
    bytes[offset] = value;
    return bytes;
  };
  struct Case {
    std::string name, bytes;
    std::vector<std::string> said;
  };
  const Case cases[] = {
      {"text.so", "#!/bin/sh\necho hello\n", {"not an ELF shared object"}},
      {"empty.so", "", {"is empty"}},
      {"three.so",
       "\x7f"
       "EL",
       {"not an ELF shared object"}},
      {"header.so", good.substr(0, 20), {"truncated"}},
      {"half.so", good.substr(0, good.size() / 2), {"truncated"}},
      {"class.so", changed(EI_CLASS, ELFCLASS32), {"another class", "rebuild"}},
      {"endian.so", changed(EI_DATA, ELFDATA2MSB), {"another class"}},
      {"machine.so", changed(offsetof(Elf64_Ehdr, e_machine), 3), {"another machine", "3"}},
      {"object.so", changed(offsetof(Elf64_Ehdr, e_type), ET_REL), {"not a shared object"}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const PluginFile file = inspect_plugin_file(dir.write(c.name, c.bytes));
    CHECK(file.verdict == Verdict::kRefused);
    check_says(file.reason, c.said);
  }
  check_says(inspect_plugin_file(dir.path("none.so")).reason, {"not found"});
  check_says(inspect_plugin_file(dir.path("")).reason, {"is a directory"});
  REQUIRE(mkfifo(dir.path("fifo.so").c_str(), 0600) == 0);
  check_says(inspect_plugin_file(dir.path("fifo.so")).reason, {"not a regular file"});
}

TEST_CASE("a file without program headers is read by its sections") {
  const TempDir dir;
  std::string bytes = read_bytes(good_file());
  std::memset(bytes.data() + offsetof(Elf64_Ehdr, e_phnum), 0, sizeof(Elf64_Half));
  CHECK(inspect_plugin_file(dir.write("sections.so", bytes)).verdict == Verdict::kUsable);
}

// Headers, program headers, section headers and the note itself, with bytes changed at random: any
// verdict will do, but it comes without a crash, and a refusal has a reason.
TEST_CASE("damaged headers never crash the reader") {
  const TempDir dir;
  const std::string good = read_bytes(good_file());
  Elf64_Ehdr elf;
  std::memcpy(&elf, good.data(), sizeof(elf));
  const size_t note = good.find("Kvasir");
  REQUIRE(note != std::string::npos);
  const std::vector<std::pair<size_t, size_t>> areas = {
      {0, sizeof(elf)},
      {elf.e_phoff, size_t{elf.e_phnum} * sizeof(Elf64_Phdr)},
      {elf.e_shoff, size_t{elf.e_shnum} * sizeof(Elf64_Shdr)},
      {note - 12, sizeof(kvasir_note)}};
  std::mt19937 random(1);
  constexpr unsigned char kEdges[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
  size_t n_refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    const auto& [begin, size] = areas[random() % areas.size()];
    for (unsigned i = 0, n = 1 + random() % 4; i < n; ++i) {
      const bool is_edge = random() % 2;
      bytes[begin + random() % size] =
          static_cast<char>(is_edge ? kEdges[random() % std::size(kEdges)] : random());
    }
    if (random() % 8 == 0) bytes.resize(random() % bytes.size());
    const PluginFile file = inspect_plugin_file(dir.write("damaged.so", bytes));
    CHECK((file.verdict == Verdict::kUsable) == file.reason.empty());
    n_refused += file.verdict == Verdict::kRefused;
  }
  CHECK(n_refused > 500);  // the damage reaches what is read
}

}  // namespace
