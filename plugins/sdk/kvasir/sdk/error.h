// The only place where a C++ exception meets the C ABI.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/status.h>

#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace kvasir::sdk {

// What a plugin throws. The text says what is wrong, where, and what to do.
class Error : public std::runtime_error {
 public:
  Error(kvasir_status status, const std::string& text)
      : std::runtime_error(text), status_(status) {}
  kvasir_status status() const { return status_; }

 private:
  kvasir_status status_;
};

[[noreturn]] inline void fail_invalid(const std::string& text) {
  throw Error(KVASIR_ERR_INVALID, text);
}

// Fills the caller's record and returns `status`. A text that is too long is cut before a UTF-8
// continuation byte would be torn from its head.
inline kvasir_status report(kvasir_err* err, kvasir_status status, const char* text) noexcept {
  if (!err) return status;
  size_t n = std::strlen(text);
  if (n >= sizeof err->text) {
    n = sizeof err->text - 1;
    while (n > 0 && (static_cast<unsigned char>(text[n]) & 0xC0u) == 0x80u) --n;
  }
  std::memcpy(err->text, text, n);
  err->text[n] = '\0';
  err->code = status;
  return status;
}

// Runs fn(), which returns nothing (KVASIR_OK) or a kvasir_status, and throws on failure.
template <class Fn>
kvasir_status guard(kvasir_err* err, Fn&& fn) noexcept {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Fn>>) {
      std::forward<Fn>(fn)();
      return KVASIR_OK;
    } else {
      return std::forward<Fn>(fn)();
    }
  } catch (const Error& e) {
    return report(err, e.status(), e.what());
  } catch (const std::bad_alloc&) {
    return report(err, KVASIR_ERR_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return report(err, KVASIR_ERR_INTERNAL, e.what());
  } catch (...) {
    return report(err, KVASIR_ERR_INTERNAL, "an exception that is not a std::exception");
  }
}

}  // namespace kvasir::sdk
