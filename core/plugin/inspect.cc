// Judges a plugin file by its note: version, CPU features, drafts. One message per cause: what it
// needs, what this host offers, what to do.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/platform/cpu_features.h"
#include "core/plugin/note.h"
#include "core/plugin/registry.h"

namespace kvasir {
namespace {

std::string abi_text(uint32_t major, uint32_t minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

const std::string& host_text() {
  static const std::string text = "this host (kvasir " KVASIR_VERSION_TEXT ") speaks " +
                                  abi_text(KVASIR_ABI_MAJOR, KVASIR_ABI_MINOR_MIN) + " to " +
                                  abi_text(KVASIR_ABI_MAJOR, KVASIR_ABI_MINOR);
  return text;
}

std::string feature_names(uint32_t features) {
  std::string names;
  const auto add = [&](uint32_t bit, const char* name) {
    if (features & bit) names += (names.empty() ? "" : ", ") + std::string(name);
  };
  add(KVASIR_CPU_AVX2, "AVX2 (with FMA and F16C)");
  add(KVASIR_CPU_AVX512, "AVX-512 (F, BW, DQ, VL)");
  add(KVASIR_CPU_AMX, "AMX");
  const uint32_t unknown = features & ~(KVASIR_CPU_AVX2 | KVASIR_CPU_AVX512 | KVASIR_CPU_AMX);
  if (unknown) {
    names += (names.empty() ? "" : ", ") + std::string("unknown bits ") + std::to_string(unknown);
  }
  return names.empty() ? "none of them" : names;
}

std::string judge_version(const PluginNote& note) {
  if (note.abi_major != KVASIR_ABI_MAJOR) {
    return "needs plugin ABI " + std::to_string(note.abi_major) + ".x; " + host_text() +
           "; rebuild it against this host's headers, or use a host of that ABI";
  }
  if (note.abi_minor < KVASIR_ABI_MINOR_MIN) {
    return "was built for plugin ABI " + abi_text(note.abi_major, note.abi_minor) + "; " +
           host_text() + "; rebuild it against this host's headers";
  }
  if (note.required_minor > KVASIR_ABI_MINOR) {
    return "needs plugin ABI " + abi_text(note.abi_major, note.required_minor) + " or newer; " +
           host_text() + "; update the host, or rebuild the plugin against this host's headers";
  }
  return {};
}

std::string judge_drafts(const PluginNote& note, bool allow_drafts) {
  for (const std::string& draft : note.drafts) {
    if (!allow_drafts) {
      return "needs the draft extension " + draft +
             ", which may still change; this host has drafts switched off; allow them with "
             "allow_drafts, or use a build without it";
    }
    return "needs the draft extension " + draft +
           "; this host implements no draft extension; update the host, or use a build without it";
  }
  return {};
}

std::string judge(const PluginNote& note, const InspectRules& rules) {
  if (std::string problem = judge_version(note); !problem.empty()) return problem;
  const uint32_t known =
      KVASIR_KIND_BIT(KVASIR_KIND_SELECTOR) | KVASIR_KIND_BIT(KVASIR_KIND_REPRESENTATIVE) |
      KVASIR_KIND_BIT(KVASIR_KIND_STORAGE) | KVASIR_KIND_BIT(KVASIR_KIND_ATTENTION);
  if (!(note.kinds & known)) {
    return "says in its note that it holds no kind this host knows; rebuild it with the right "
           "KVASIR_KIND_BIT set";
  }
  const uint32_t missing = note.cpu_features & ~rules.cpu_features;
  if (missing) {
    return "needs the CPU features " + feature_names(note.cpu_features) + "; this machine has " +
           feature_names(rules.cpu_features) + "; use a build of the plugin for this machine";
  }
  return judge_drafts(note, rules.allow_drafts);
}

}  // namespace

uint32_t host_cpu_features() {
  const CpuFeatures& cpu = cpu_features();
  uint32_t features = 0;
  if (cpu.avx2 && cpu.fma && cpu.f16c) features |= KVASIR_CPU_AVX2;
  if (cpu.avx512f && cpu.avx512bw && cpu.avx512dq && cpu.avx512vl) features |= KVASIR_CPU_AVX512;
  if (cpu.amx_tile && cpu.amx_bf16 && cpu.amx_int8) features |= KVASIR_CPU_AMX;
  return features;
}

PluginFile inspect_plugin_file(const std::string& path, const InspectRules& rules) {
  PluginFile file;
  file.path = path;
  PluginNote note;
  file.reason = read_plugin_note(path, note);
  if (file.reason.empty()) file.reason = judge(note, rules);
  file.version = note.version;
  file.ids = note.ids;
  file.kinds = note.kinds;
  file.abi_major = note.abi_major;
  file.abi_minor = note.abi_minor;
  file.required_minor = note.required_minor;
  file.verdict = file.reason.empty() ? PluginFile::Verdict::kUsable : PluginFile::Verdict::kRefused;
  return file;
}

std::string describe(const PluginFile& file) {
  std::string who;
  for (const std::string& id : file.ids) who += (who.empty() ? "" : ", ") + id;
  if (!who.empty() && !file.version.empty()) who += " " + file.version;
  return file.path + (who.empty() ? "" : " (" + who + ")") +
         (file.reason.empty() ? "" : ": " + file.reason);
}

}  // namespace kvasir
