// See device_library.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/device_library.h"

#include <dlfcn.h>

#include <boost/dll/shared_library.hpp>
#include <filesystem>

#include "core/error.h"

namespace kvasir {
namespace {

constexpr const char* kSymbol = "kvasir_device_layers";

Error refuse(const std::string& path, const std::string& why) {
  return {ErrorKind::kResource, "layers on a GPU: " + path + " " + why};
}

}  // namespace

const DeviceLibraryTable& open_device_library(const std::string& path) {
  if (!std::filesystem::exists(path))
    throw refuse(path, "does not exist: build with the preset \"cuda\", or take -ngl 0");
  std::error_code error;
  dlerror();
  boost::dll::shared_library library;
  library.load(path, error, boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
  if (error) {
    const char* text = dlerror();
    throw refuse(path, std::string("cannot be loaded (") + (text ? text : "no reason given") +
                           "): install what it links against, or take -ngl 0");
  }
  if (!library.has(kSymbol))
    throw refuse(path, std::string("does not export ") + kSymbol + ": it is no library of Kvasir");
  const auto& table = library.get<const DeviceLibraryTable>(kSymbol);
  // Linked with -z nodelete: it stays when `library` goes.
  if (std::string(table.interface_id) != KVASIR_DEVICE_INTERFACE)
    throw refuse(path, std::string("is of another build (") + table.interface_id +
                           ", this program is of " KVASIR_DEVICE_INTERFACE
                           "): install both from one build, or take -ngl 0");
  return table;
}

}  // namespace kvasir
