// Which code runs: what the linker wrote into a program or a shared object.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kvasir {

// The GNU build ID, in hexadecimal, of the program or shared object that has `address`, a function
// of it. Empty where it was linked without one.
std::string build_id_of(const void* address);

}  // namespace kvasir
