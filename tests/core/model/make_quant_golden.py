#!/usr/bin/env python3
"""Makes quant_golden.h: random blocks of each tensor type and their values by the PyPI package
`gguf` (0.19.0), an implementation independent of ours. Run: make_quant_golden.py > quant_golden.h
SPDX-License-Identifier: Apache-2.0
"""
import gguf
import numpy as np
from gguf.quants import dequantize

# Type name -> (byte offset of an f16 scale, its value) of a block; the other bytes are random.
SCALES = {
    "Q4_0": [(0, 0.0123)],
    "Q4_1": [(0, 0.0123), (2, -0.25)],
    "Q5_0": [(0, -0.0123)],
    "Q5_1": [(0, 0.0123), (2, -0.25)],
    "Q8_0": [(0, 0.00123)],
    "IQ4_NL": [(0, -0.0123)],
    "Q2_K": [(80, 0.0123), (82, 0.0456)],
    "Q3_K": [(108, -0.0123)],
    "Q4_K": [(0, 0.0123), (2, 0.0456)],
    "Q5_K": [(0, 0.0123), (2, 0.0456)],
    "Q6_K": [(208, 0.00123)],
}


def lines(items, per_line):
    lines = [", ".join(items[i : i + per_line]) for i in range(0, len(items), per_line)]
    return ",\n     ".join(lines)


print("// Blocks and their values by the PyPI package gguf; made by make_quant_golden.py.")
print("// SPDX-License-Identifier: Apache-2.0")
print("#pragma once\n\n#include <cstdint>\n#include <vector>\n")
print('#include "core/model/gguf/gguf.h"\n')
print("namespace kvasir::test {\n")
print("struct QuantGolden {\n  GgmlType type;\n  std::vector<uint8_t> block;")
print("  std::vector<float> values;\n};\n")
print("// clang-format off")
print("inline const std::vector<QuantGolden> kQuantGolden = {")
rng = np.random.default_rng(20240607)
for name, scales in SCALES.items():
    kind = gguf.GGMLQuantizationType[name]
    block = rng.integers(0, 256, size=(1, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for offset, value in scales:
        block[0, offset : offset + 2] = np.frombuffer(np.float16(value).tobytes(), dtype=np.uint8)
    values = dequantize(block, kind)[0]
    print(f"    {{GgmlType::k{name},\n     {{{lines([str(b) for b in block[0]], 18)}}},")
    print(f"     {{{lines([f'{v:#.9g}f' for v in np.float32(values)], 6)}}}}},")
print("};\n// clang-format on\n\n}  // namespace kvasir::test")
