#!/usr/bin/env python3
"""Makes encode_golden.h: numbers, and the blocks that the PyPI package `gguf` (0.19.0), an
implementation independent of ours, makes of them, in the quantised types that it writes.
Run: make_encode_golden.py > encode_golden.h
SPDX-License-Identifier: Apache-2.0
"""
import gguf
import numpy as np
from gguf.quants import quantize

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def lines(items, per_line):
    lines = [", ".join(items[i : i + per_line]) for i in range(0, len(items), per_line)]
    return ",\n     ".join(lines)


rng = np.random.default_rng(20240607)
normal = rng.standard_normal(32)
cases = {
    "normal": normal,
    "shifted": 0.25 * rng.standard_normal(32) + 3.0,
    "one large": np.where(np.arange(32) == 17, -900.0, normal),
    "constant": np.full(32, -0.75),
    "small": 1e-5 * rng.standard_normal(32),  # scales below the smallest normal half
    "zeros": np.zeros(32),
}
print("// Numbers and their blocks by the PyPI package gguf; made by make_encode_golden.py.")
print("// SPDX-License-Identifier: Apache-2.0")
print("#pragma once\n\n#include <cstdint>\n#include <vector>\n")
print('#include "core/model/gguf/ggml_type.h"\n')
print("namespace kvasir::test {\n")
print("struct EncodeGolden {\n  GgmlType type;\n  std::vector<uint8_t> block;\n};")
print("struct EncodeCase {\n  const char* name;\n  std::vector<float> values;")
print("  std::vector<EncodeGolden> blocks;\n};\n")
print("// clang-format off")
print("inline const std::vector<EncodeCase> kEncodeGolden = {")
for name, values in cases.items():
    values = np.float32(values)
    print(f'    {{"{name}",\n     {{{lines([f"{v:#.9g}f" for v in values], 6)}}},\n     {{')
    for kind in TYPES:
        block = quantize(values.reshape(1, 32), gguf.GGMLQuantizationType[kind])[0]
        print(f"     {{GgmlType::k{kind}, {{{lines([str(b) for b in block], 16)}}}}},")
    print("     }},")
print("};\n// clang-format on\n\n}  // namespace kvasir::test")
