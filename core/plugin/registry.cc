// Scanning the search levels, and finding the one file an id, a bare id or a path means.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/registry.h"

#include <algorithm>
#include <filesystem>

#include "core/plugin/loader.h"
#include "core/plugin/thread_state.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFilesPerDirectory = 4096;
constexpr const char* kOurs = "kvasir.";  // where bare ids are looked up first
constexpr uint32_t kAnyKind = ~uint32_t{0};

bool has_id(const PluginFile& file, const std::string& id) {
  return std::find(file.ids.begin(), file.ids.end(), id) != file.ids.end();
}

std::string last_component(const std::string& id) { return id.substr(id.rfind('.') + 1); }

std::string kinds_text(uint32_t kinds) {
  for (uint32_t kind = KVASIR_KIND_SELECTOR; kind <= KVASIR_KIND_ATTENTION; ++kind) {
    if (kinds == KVASIR_KIND_BIT(kind)) return kind_name(kind);
  }
  return "any kind";
}

std::vector<fs::path> shared_objects(const std::string& directory, std::error_code& error) {
  std::vector<fs::path> paths;
  fs::directory_iterator it(directory, fs::directory_options::skip_permission_denied, error);
  while (!error && it != fs::directory_iterator() && paths.size() < kMaxFilesPerDirectory) {
    if (it->path().extension() == ".so") paths.push_back(it->path());
    it.increment(error);
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string canonical_text(const fs::path& path) {
  std::error_code error;
  const fs::path canonical = fs::canonical(path, error);
  return error ? fs::absolute(path).lexically_normal().string() : canonical.string();
}

}  // namespace

PluginRegistry::PluginRegistry(const PluginSearch& search, const HostServices& services)
    : services_(services), why_blocked_(search.why_blocked), first_contact_(search.first_contact) {
  rules_.allow_drafts = search.allow_drafts;
  for (const auto& level : search.levels) scan(level);
  mark_duplicates();
  mark_shadowed();
}

PluginFile PluginRegistry::inspect(const std::string& path) const {
  PluginFile file = inspect_plugin_file(path, rules_);
  if (file.verdict != PluginFile::Verdict::kUsable || !why_blocked_) return file;
  file.reason = why_blocked_(path);
  if (!file.reason.empty()) file.verdict = PluginFile::Verdict::kRefused;
  return file;
}

void PluginRegistry::scan(const PluginSearch::Level& level) {
  for (const std::string& directory : level.directories) {
    if (directory.empty()) continue;
    searched_.push_back(directory + " (" + level.label + ")");
    std::error_code error;
    for (const fs::path& path : shared_objects(directory, error)) {
      const std::string canonical = canonical_text(path);
      const bool is_known = std::any_of(files_.begin(), files_.end(),
                                        [&](const PluginFile& f) { return f.path == canonical; });
      if (is_known) continue;
      files_.push_back(inspect(canonical));
      files_.back().level = level.label;
    }
    if (error) {
      services_.log(KVASIR_LOG_WARN, "core",
                    "plugin directory " + directory + " (" + level.label +
                        ") cannot be read: " + error.message());
    }
  }
}

void PluginRegistry::mark_duplicates() {
  std::vector<std::string> reasons(files_.size());
  for (size_t i = 0; i < files_.size(); ++i) {
    for (size_t j = 0; j < files_.size(); ++j) {
      const bool is_pair = i != j && files_[i].level == files_[j].level &&
                           files_[i].verdict == PluginFile::Verdict::kUsable &&
                           files_[j].verdict == PluginFile::Verdict::kUsable;
      if (!is_pair) continue;
      for (const std::string& id : files_[i].ids) {
        if (!has_id(files_[j], id)) continue;
        reasons[i] = "has the id " + id + ", and so has " + files_[j].path +
                     " on the same level (" + files_[j].level +
                     "); remove one, or say path = \"…\" in the strategy";
      }
    }
  }
  for (size_t i = 0; i < files_.size(); ++i) {
    if (reasons[i].empty()) continue;
    files_[i].verdict = PluginFile::Verdict::kRefused;
    files_[i].reason = reasons[i];
    ambiguous_.push_back(files_[i].path);
  }
}

void PluginRegistry::mark_shadowed() {
  for (size_t i = 0; i < files_.size(); ++i) {
    PluginFile& file = files_[i];
    if (file.verdict != PluginFile::Verdict::kUsable) continue;
    std::string by;
    const auto is_shadowed = [&](const std::string& id) {
      for (size_t j = 0; j < i; ++j) {
        if (files_[j].verdict == PluginFile::Verdict::kUsable && has_id(files_[j], id)) {
          by = files_[j].path + " (" + files_[j].level + ")";
          return true;
        }
      }
      return false;
    };
    // A file with one id left is still of use; find_id() goes by order.
    if (!std::all_of(file.ids.begin(), file.ids.end(), is_shadowed)) continue;
    file.verdict = PluginFile::Verdict::kShadowed;
    file.reason = "is shadowed by " + by + ", which comes first";
    services_.log(KVASIR_LOG_INFO, "core", describe(file));
  }
}

// The first usable file by level. Files that share the id on one level are an error rather than a
// reason to look further down.
const PluginFile* PluginRegistry::find_id(const std::string& id) const {
  const PluginFile* refused = nullptr;
  for (const PluginFile& file : files_) {
    if (!has_id(file, id)) continue;
    if (file.verdict == PluginFile::Verdict::kUsable) {
      if (refused) services_.log(KVASIR_LOG_WARN, "core", "skipped " + describe(*refused));
      return &file;
    }
    const bool is_ambiguous =
        std::find(ambiguous_.begin(), ambiguous_.end(), file.path) != ambiguous_.end();
    if (is_ambiguous) throw input_error(describe(file));
    if (!refused && file.verdict == PluginFile::Verdict::kRefused) refused = &file;
  }
  if (refused) throw input_error(describe(*refused));
  return nullptr;
}

// "minmax": ours first, else the one plugin of the kind whose id ends in ".minmax".
const PluginFile* PluginRegistry::find_bare(const std::string& name, uint32_t kinds,
                                            std::string& id) const {
  id = kOurs + name;
  if (const PluginFile* file = find_id(id)) return file;
  std::vector<std::string> matches;
  for (const PluginFile& file : files_) {
    if (!(file.kinds & kinds)) continue;
    for (const std::string& candidate : file.ids) {
      const bool is_new = std::find(matches.begin(), matches.end(), candidate) == matches.end();
      if (is_new && last_component(candidate) == name) matches.push_back(candidate);
    }
  }
  if (matches.empty()) return nullptr;
  if (matches.size() > 1) {
    std::string list;
    for (const std::string& match : matches) list += (list.empty() ? "" : ", ") + match;
    throw input_error("plugin \"" + name + "\" is ambiguous: " + list + "; write the full id");
  }
  id = matches[0];
  return find_id(id);
}

Error PluginRegistry::not_found(const std::string& reference, uint32_t kinds) const {
  std::vector<std::string> known;
  for (const PluginFile& file : files_) {
    if (!(file.kinds & kinds)) continue;
    for (const std::string& id : file.ids) {
      known.push_back(id);
      known.push_back(last_component(id));
    }
  }
  const std::string nearest = nearest_name(reference, known);
  std::string text = "no plugin \"" + reference + "\" (" + kinds_text(kinds) + ")";
  if (!nearest.empty()) text += "; did you mean \"" + nearest + "\"?";
  text += searched_.empty() ? " No plugin directory was given." : " Looked in:";
  for (const std::string& place : searched_) text += " " + place;
  return input_error(text + "; a file is named by a path with a slash, as ./my.so");
}

PluginFile PluginRegistry::find(const std::string& reference, const std::string& path,
                                uint32_t kinds, std::string& id) const {
  const bool has_slash = reference.find('/') != std::string::npos;
  const bool is_file = reference.size() > 3 && reference.ends_with(".so");
  if (is_file && !has_slash) {
    throw input_error("plugin \"" + reference +
                      "\" is a bare file name, which is never searched: " + "write \"./" +
                      reference + "\" for a file, or the id of the plugin");
  }
  if (has_slash && !is_file) {
    throw input_error("plugin \"" + reference + "\" is neither an id nor a path ending in .so");
  }
  const std::string pinned = has_slash ? reference : path;
  if (pinned.empty()) {
    const PluginFile* file = find_id(id = reference);
    if (!file && reference.find('.') == std::string::npos) file = find_bare(reference, kinds, id);
    if (!file) throw not_found(reference, kinds);
    return *file;
  }
  PluginFile file = inspect(canonical_text(pinned));
  if (file.verdict != PluginFile::Verdict::kUsable) throw input_error(describe(file));
  id.clear();
  if (has_slash) return file;
  std::vector<std::string> matches;
  for (const std::string& candidate : file.ids) {
    if (candidate == reference || last_component(candidate) == reference)
      matches.push_back(candidate);
  }
  if (matches.size() != 1) {
    throw input_error(describe(file) + ": does not hold " +
                      (matches.empty() ? "the" : "exactly one") + " plugin \"" + reference + "\"");
  }
  id = matches[0];
  return file;
}

// -ffast-math links a constructor that changes how the thread rounds.
std::shared_ptr<const LoadedPlugin> PluginRegistry::load(const PluginFile& file) const {
  const ThreadState before;
  const auto restore = [&] {
    if (const uint32_t parts = before.restore())
      services_.log(KVASIR_LOG_WARN, file.ids[0], restored_text("loading it", parts));
  };
  try {
    auto loaded = std::make_shared<const LoadedPlugin>(file, *services_.host());
    restore();
    return loaded;
  } catch (...) {
    restore();
    throw;
  }
}

OpenPlugin PluginRegistry::open_as(uint32_t kinds, const std::string& reference,
                                   const std::string& path) {
  if (reference.empty())
    throw input_error("no " + (kinds == kAnyKind ? "" : kinds_text(kinds) + " ") +
                      "plugin is named: give its id, as kvasir.dram, or its file, as ./my.so");
  std::string id;
  PluginFile file = find(reference, path, kinds, id);
  auto it = std::find_if(loaded_.begin(), loaded_.end(),
                         [&](const auto& loaded) { return loaded->path() == file.path; });
  if (it == loaded_.end()) {
    if (first_contact_) file.reason = first_contact_(file);
    if (!file.reason.empty()) throw input_error(describe(file));
    loaded_.push_back(load(file));
    it = loaded_.end() - 1;
  }
  const LoadedPlugin& loaded = **it;
  std::vector<uint32_t> matches;
  std::string held;
  for (uint32_t i = 0; i < loaded.descs().size(); ++i) {
    const kvasir_desc& desc = *loaded.descs()[i];
    if (!id.empty() && id != desc.id) continue;
    held += (held.empty() ? "" : ", ") + std::string(desc.id) + " is a " + kind_name(desc.kind);
    if (kinds & KVASIR_KIND_BIT(desc.kind)) matches.push_back(i);
  }
  if (matches.size() != 1) {
    throw input_error(describe(file) + ": " +
                      (matches.empty() ? "wrong kind: a " : "holds more than one: a ") +
                      kinds_text(kinds) + " is needed, " + held +
                      (matches.empty() ? "" : "; write the id, and the file as path = \"…\""));
  }
  return {loaded.table(), loaded.descs()[matches[0]], matches[0], file.path, *it};
}

OpenPlugin PluginRegistry::open(Kind kind, const std::string& reference, const std::string& path) {
  return open_as(KVASIR_KIND_BIT(static_cast<uint32_t>(kind)), reference, path);
}

OpenPlugin PluginRegistry::open_any(const std::string& reference) {
  return open_as(kAnyKind, reference, "");
}

std::vector<std::string> PluginRegistry::ids(Kind kind) const {
  std::vector<std::string> result;
  for (const PluginFile& file : files_) {
    const bool fits = file.kinds & KVASIR_KIND_BIT(static_cast<uint32_t>(kind));
    if (file.verdict == PluginFile::Verdict::kUsable && fits) {
      result.insert(result.end(), file.ids.begin(), file.ids.end());
    }
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

}  // namespace kvasir
