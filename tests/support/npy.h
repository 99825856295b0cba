// Reads the arrays of a NumPy .npz file (a zip of .npy files): the form of our golden values.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvasir::test {

struct NpyArray {
  std::vector<uint64_t> shape;
  std::vector<double> values;  // of any numeric type, C order
};

// Name without ".npy" to array; arrays of text are left out. Throws std::runtime_error.
std::map<std::string, NpyArray> read_npz(const std::string& path);

}  // namespace kvasir::test
