// Names and block sizes of the tensor types of the ggml format.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/gguf/ggml_type.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

namespace kvasir {
namespace {

struct TypeInfo {
  uint32_t type;
  const char* name;
  uint32_t elements;
  uint32_t bytes;
  bool supported;
};

// Types that are not supported are listed for their size: a file that has one opens, and only using
// that tensor fails.
constexpr TypeInfo kTypes[] = {
    {0, "F32", 1, 4, true},          {1, "F16", 1, 2, true},
    {2, "Q4_0", 32, 18, true},       {3, "Q4_1", 32, 20, true},
    {6, "Q5_0", 32, 22, true},       {7, "Q5_1", 32, 24, true},
    {8, "Q8_0", 32, 34, true},       {10, "Q2_K", 256, 84, true},
    {11, "Q3_K", 256, 110, true},    {12, "Q4_K", 256, 144, true},
    {13, "Q5_K", 256, 176, true},    {14, "Q6_K", 256, 210, true},
    {16, "IQ2_XXS", 256, 66, false}, {17, "IQ2_XS", 256, 74, false},
    {18, "IQ3_XXS", 256, 98, false}, {19, "IQ1_S", 256, 50, false},
    {20, "IQ4_NL", 32, 18, true},    {21, "IQ3_S", 256, 110, false},
    {22, "IQ2_S", 256, 82, false},   {23, "IQ4_XS", 256, 136, false},
    {24, "I8", 1, 1, false},         {25, "I16", 1, 2, false},
    {26, "I32", 1, 4, false},        {27, "I64", 1, 8, false},
    {28, "F64", 1, 8, false},        {29, "IQ1_M", 256, 56, false},
    {30, "BF16", 1, 2, true},        {34, "TQ1_0", 256, 54, false},
    {35, "TQ2_0", 256, 66, false},   {39, "MXFP4", 32, 17, false},
};

const TypeInfo* find(GgmlType type) {
  const auto at = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeInfo& info) {
    return info.type == static_cast<uint32_t>(type);
  });
  return at == std::end(kTypes) ? nullptr : at;
}

}  // namespace

const char* name(GgmlType type) {
  if (const TypeInfo* info = find(type)) return info->name;
  thread_local std::array<char, 24> unknown;  // valid until the thread's next unknown type
  std::snprintf(unknown.data(), unknown.size(), "type %u", static_cast<uint32_t>(type));
  return unknown.data();
}

bool is_supported(GgmlType type) {
  const TypeInfo* info = find(type);
  return info && info->supported;
}

uint32_t block_elements(GgmlType type) {
  const TypeInfo* info = find(type);
  return info ? info->elements : 0;
}

uint32_t block_bytes(GgmlType type) {
  const TypeInfo* info = find(type);
  return info ? info->bytes : 0;
}

std::optional<GgmlType> ggml_type_by_name(std::string_view type_name) {
  const auto upper = [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; };
  for (const TypeInfo& info : kTypes)
    if (std::equal(type_name.begin(), type_name.end(), info.name,
                   info.name + std::char_traits<char>::length(info.name),
                   [&](char a, char b) { return upper(a) == b; }))
      return static_cast<GgmlType>(info.type);
  return std::nullopt;
}

}  // namespace kvasir
