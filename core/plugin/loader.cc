// dlopen through Boost.DLL, pinned; then entry, version, table, count, descriptions.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/loader.h"

#include <dlfcn.h>

#include <algorithm>
#include <boost/dll/shared_library.hpp>
#include <cstring>
#include <map>
#include <mutex>

#include "core/plugin/breadcrumb.h"
#include "core/plugin/plugin_code.h"
#include "core/plugin/sizes.h"

namespace kvasir {
namespace {

constexpr const char* kEntrySymbol = "kvasir_plugin_entry";
constexpr uint32_t kMaxPlugins = 64;  // the note has room for fewer

Error refuse(PluginFile file, const std::string& reason) {
  file.reason = reason;
  return input_error(describe(file));
}

using Entry = decltype(&kvasir_plugin_entry);

// Never unloaded (thread-locals, own threads and unique symbols make unloading silently wrong), so
// the handle is pinned and then of no further use.
Entry open_library(const PluginFile& file) {
  const BreadcrumbScope crumb(
      {kept_text(file.ids[0]), kept_text(file.path), "its constructors", Breadcrumb::kNoLayer});
  std::error_code error;
  dlerror();
  boost::dll::shared_library library;
  library.load(file.path, error,
               boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
  if (error) {
    const char* text = dlerror();
    throw refuse(file, std::string("cannot be loaded: ") + (text ? text : "no reason given") +
                           "; install what it links against, or rebuild it for this machine");
  }
  if (!dlopen(file.path.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE)) {
    const char* text = dlerror();
    throw refuse(file, std::string("cannot be pinned: ") + (text ? text : "no reason given"));
  }
  if (!library.has(kEntrySymbol)) {
    throw refuse(file, std::string("does not export ") + kEntrySymbol +
                           "; define it, and link with abi/plugin.map so that it stays visible");
  }
  const Entry entry = &library.get<std::remove_pointer_t<Entry>>(kEntrySymbol);
  remember_plugin_code(reinterpret_cast<const void*>(entry), file.ids[0], file.path);
  return entry;
}

const kvasir_plugin* call_entry(const PluginFile& file, Entry entry, const kvasir_host& host) {
  kvasir_request request{};
  request.struct_size = sizeof(request);
  kvasir_err err{};
  err.struct_size = sizeof(err);
  kvasir_status status;
  {
    const BreadcrumbScope crumb(
        {kept_text(file.ids[0]), kept_text(file.path), kEntrySymbol, Breadcrumb::kNoLayer});
    status = entry(&host, &request, &err);
  }
  if (status != KVASIR_OK) {
    throw refuse(file, std::string(kEntrySymbol) + " refused with " + status_name(status) + ": " +
                           err_text(err));
  }
  if (request.abi_minor < host.abi_minor_min || request.abi_minor > host.abi_minor_max) {
    throw refuse(file, "answered plugin ABI minor " + std::to_string(request.abi_minor) +
                           "; this host offers " + std::to_string(host.abi_minor_min) + " to " +
                           std::to_string(host.abi_minor_max) +
                           "; the plugin must answer one of these (a defect of the plugin)");
  }
  const kvasir_plugin* table = request.plugin;
  if (!table) throw refuse(file, "returned no plugin table (a defect of the plugin)");
  if (table->struct_size < abi_least::kPluginBytes) {
    throw refuse(file, "returned a plugin table of " + std::to_string(table->struct_size) +
                           " bytes; it must have at least " +
                           std::to_string(abi_least::kPluginBytes) +
                           "; set struct_size to sizeof(kvasir_plugin)");
  }
  if (!table->count || !table->describe || !table->create) {
    throw refuse(file, "returned a plugin table without count, describe or create");
  }
  return table;
}

// What describe() says, with everything the core dereferences later checked.
const kvasir_desc* describe_one(const PluginFile& file, const kvasir_plugin& table,
                                uint32_t index) {
  const kvasir_desc* desc = table.describe(index);
  const std::string which = "describe(" + std::to_string(index) + ") ";
  if (!desc) throw refuse(file, which + "returned nothing (a defect of the plugin)");
  if (desc->struct_size < abi_least::kDescBytes) {
    throw refuse(file, which + "returned a description of " + std::to_string(desc->struct_size) +
                           " bytes; it must have at least " +
                           std::to_string(abi_least::kDescBytes) +
                           "; set struct_size to sizeof(kvasir_desc)");
  }
  if (!desc->id || !desc->version) {
    throw refuse(file, which + "gives no id or no version (a defect of the plugin)");
  }
  if (std::find(file.ids.begin(), file.ids.end(), desc->id) == file.ids.end()) {
    throw refuse(file, which + "says \"" + std::string(desc->id, strnlen(desc->id, 128)) +
                           "\", an id that the note does not list; make note and description "
                           "agree");
  }
  if (desc->kind < KVASIR_KIND_SELECTOR || desc->kind > KVASIR_KIND_ATTENTION ||
      !(file.kinds & KVASIR_KIND_BIT(desc->kind))) {
    throw refuse(file, std::string(desc->id) + " says it is of kind " + kind_name(desc->kind) +
                           ", which the note does not list; make note and description agree");
  }
  return desc;
}

std::vector<const kvasir_desc*> describe_all(const PluginFile& file, const kvasir_plugin& table) {
  const BreadcrumbScope crumb(
      {kept_text(file.ids[0]), kept_text(file.path), "describe", Breadcrumb::kNoLayer});
  const uint32_t count = table.count();
  if (count == 0 || count > kMaxPlugins || count != file.ids.size()) {
    throw refuse(file, "holds " + std::to_string(count) +
                           " plugins by count(), but its note lists " +
                           std::to_string(file.ids.size()) + " ids; make them agree");
  }
  std::vector<const kvasir_desc*> descs;
  for (uint32_t i = 0; i < count; ++i) {
    const kvasir_desc* desc = describe_one(file, table, i);
    for (const kvasir_desc* other : descs) {
      if (std::strcmp(other->id, desc->id) == 0) {
        throw refuse(file, "describes " + std::string(desc->id) + " twice");
      }
    }
    descs.push_back(desc);
  }
  return descs;
}

// One plugin table may be open in several registries of the process; it is shut down once.
struct Users {
  std::mutex mutex;
  std::map<const kvasir_plugin*, size_t> count;
};
Users& users() {
  static Users* const instance = new Users;  // outlives every static destructor
  return *instance;
}

}  // namespace

LoadedPlugin::LoadedPlugin(const PluginFile& file, const kvasir_host& host) : path_(file.path) {
  table_ = call_entry(file, open_library(file), host);
  descs_ = describe_all(file, *table_);
  const std::lock_guard lock(users().mutex);
  ++users().count[table_];
}

LoadedPlugin::~LoadedPlugin() {
  const std::lock_guard lock(users().mutex);
  if (--users().count[table_] == 0 && table_->shutdown) {
    const BreadcrumbScope crumb(
        {kept_text(descs_[0]->id), kept_text(path_), "shutdown", Breadcrumb::kNoLayer});
    table_->shutdown();
  }
}

const char* kind_name(uint32_t kind) {
  return kind >= KVASIR_KIND_SELECTOR && kind <= KVASIR_KIND_ATTENTION
             ? table_name(static_cast<Kind>(kind))
             : "unknown kind";
}

std::string status_name(kvasir_status status) {
  switch (status) {
    case KVASIR_OK:
      return "KVASIR_OK";
    case KVASIR_FALLBACK:
      return "KVASIR_FALLBACK";
    case KVASIR_AGAIN:
      return "KVASIR_AGAIN";
    case KVASIR_REBUILD:
      return "KVASIR_REBUILD";
    case KVASIR_ERR_INVALID:
      return "KVASIR_ERR_INVALID";
    case KVASIR_ERR_UNSUPPORTED:
      return "KVASIR_ERR_UNSUPPORTED";
    case KVASIR_ERR_VERSION:
      return "KVASIR_ERR_VERSION";
    case KVASIR_ERR_CAPACITY:
      return "KVASIR_ERR_CAPACITY";
    case KVASIR_ERR_OUT_OF_MEMORY:
      return "KVASIR_ERR_OUT_OF_MEMORY";
    case KVASIR_ERR_IO:
      return "KVASIR_ERR_IO";
    case KVASIR_ERR_CANCELLED:
      return "KVASIR_ERR_CANCELLED";
    case KVASIR_ERR_INTERNAL:
      return "KVASIR_ERR_INTERNAL";
  }
  return "unknown status " + std::to_string(status);
}

std::string err_text(const kvasir_err& err) {
  std::string text(err.text, strnlen(err.text, sizeof(err.text)));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text.empty() ? "it gave no reason (a defect of the plugin)" : text;
}

}  // namespace kvasir
