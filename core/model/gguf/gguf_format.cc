// The GGUF v2/v3 parser: every length, count, dimension and offset is checked against the file's
// own size before it is used.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/gguf/gguf_format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>
#include <unordered_set>

#include "core/error.h"

namespace kvasir::gguf {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor data is used in place");

constexpr int kMaxArrayDepth = 4;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kMaxNameBytes = 65535;      // of a key or a tensor; the format's limit for keys
constexpr uint64_t kMinMetaBytes = 8 + 4 + 1;  // empty key, type, one-byte value
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;  // empty name, n_dims, 1 dim, type, offset

struct TypeInfo {
  const char* name;
  size_t bytes;
};
constexpr std::array<TypeInfo, 13> kValueTypes = {{{"u8", 1},
                                                   {"i8", 1},
                                                   {"u16", 2},
                                                   {"i16", 2},
                                                   {"u32", 4},
                                                   {"i32", 4},
                                                   {"f32", 4},
                                                   {"bool", 1},
                                                   {"string", 0},
                                                   {"array", 0},
                                                   {"u64", 8},
                                                   {"i64", 8},
                                                   {"f64", 8}}};

uint64_t saturating_add(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<uint64_t>::max() : sum;
}

// A read position that never passes the end: a short file is an error that says how short.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& label)
      : bytes_(bytes), label_(label) {}

  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return bytes_.size() - offset_; }
  const std::byte* here() const { return bytes_.data() + offset_; }

  const std::byte* take(uint64_t n, const std::string& what) {
    need(n, what);
    const std::byte* at = here();
    offset_ += n;
    return at;
  }
  // `count` things of at least `each` bytes must fit before anything is sized by `count`.
  void need_many(uint64_t count, uint64_t each, const std::string& what) const {
    uint64_t n;
    if (__builtin_mul_overflow(count, each, &n)) n = std::numeric_limits<uint64_t>::max();
    need(n, what);
  }
  template <class T>
  T number(const std::string& what) {
    return load<T>(take(sizeof(T), what));
  }
  std::string_view text(const std::string& what) {
    const auto n = number<uint64_t>(what);
    return {reinterpret_cast<const char*>(take(n, what)), n};
  }
  [[noreturn]] void fail(const std::string& message) const {
    throw input_error(label_ + ": " + message);
  }

 private:
  void need(uint64_t n, const std::string& what) const {
    if (n <= remaining()) return;
    fail("truncated or damaged: " + what + " needs " + std::to_string(n) + " bytes at offset " +
         std::to_string(offset_) + " (a file of at least " +
         std::to_string(saturating_add(offset_, n)) + " bytes), but the file has " +
         std::to_string(bytes_.size()) + " bytes; copy or download it again");
  }

  std::span<const std::byte> bytes_;
  const std::string& label_;
  uint64_t offset_ = 0;
};

// What a file that is not a GGUF probably is, so that the user knows what to fetch instead.
std::string guess_foreign(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                              std::min<size_t>(bytes.size(), 64));
  const auto starts = [&](std::string_view head) { return text.substr(0, head.size()) == head; };
  if (starts("PK\x03\x04")) return "a zip archive, perhaps a PyTorch checkpoint";
  if (starts("version https://git-lfs")) return "a Git LFS pointer; fetch the file itself";
  if (starts("<")) return "perhaps a web page saved in place of the model; download it again";
  if (starts("tjgg") || starts("fmgg") || starts("lmgg") || starts("algg"))
    return "a ggml file older than GGUF; convert it with a current converter";
  if (text.size() > 9 && load<uint64_t>(bytes.data()) < (uint64_t{1} << 32) && text[8] == '{')
    return "perhaps a safetensors file; convert it to GGUF";
  return "not a model file this program reads; a GGUF file begins with \"GGUF\"";
}

uint32_t read_version(Cursor& in, std::span<const std::byte> bytes) {
  if (bytes.size() < 4 || load<uint32_t>(bytes.data()) != kMagic) {
    const std::string_view found(reinterpret_cast<const char*>(bytes.data()),
                                 std::min<size_t>(bytes.size(), 4));
    in.fail("not a GGUF file: it begins with " + in_quotes(found) + " (" + guess_foreign(bytes) +
            ")");
  }
  in.take(4, "the magic");
  const auto version = in.number<uint32_t>("the version");
  if (version == 2 || version == 3) return version;
  if (version == 1)
    in.fail("GGUF version 1 is no longer read (versions 2 and 3 are); convert the model again");
  if ((version & 0xFFFFu) == 0 && version != 0)
    in.fail("a big-endian GGUF file; only little-endian files are read, convert the model again");
  in.fail("GGUF version " + std::to_string(version) +
          " is not supported (versions 2 and 3 are); a newer kvasir may read it");
}

ValueType read_value_type(Cursor& in, const std::string& what) {
  const auto type = in.number<uint32_t>(what);
  if (type >= kValueTypes.size())
    in.fail(what + " has the unknown value type " + std::to_string(type) +
            "; the file is damaged or newer than this program");
  return static_cast<ValueType>(type);
}

void check_bools(const Cursor& in, const std::byte* values, uint64_t count,
                 const std::string& what) {
  const bool valid = std::all_of(
      values, values + count, [](std::byte b) { return b == std::byte{0} || b == std::byte{1}; });
  if (!valid) in.fail(what + " holds a bool that is neither 0 nor 1; the file is damaged");
}

void skip_values(Cursor& in, ValueType type, uint64_t count, int depth, const std::string& what);

// Reads an array's head and passes over its elements.
MetaEntry read_array(Cursor& in, int depth, const std::string& what) {
  if (depth > kMaxArrayDepth)
    in.fail(what + " nests arrays deeper than " + std::to_string(kMaxArrayDepth) +
            " levels; the file is damaged");
  MetaEntry entry{};
  entry.type = ValueType::kArray;
  entry.element = read_value_type(in, what);
  entry.count = in.number<uint64_t>(what);
  entry.values = in.here();
  const uint64_t begin = in.offset();
  skip_values(in, entry.element, entry.count, depth, what);
  entry.n_bytes = in.offset() - begin;
  return entry;
}

void skip_values(Cursor& in, ValueType type, uint64_t count, int depth, const std::string& what) {
  if (type == ValueType::kString) {
    in.need_many(count, sizeof(uint64_t), what);
    for (uint64_t i = 0; i < count; ++i) in.text(what);
  } else if (type == ValueType::kArray) {
    in.need_many(count, sizeof(uint32_t) + sizeof(uint64_t), what);
    for (uint64_t i = 0; i < count; ++i) read_array(in, depth + 1, what);
  } else {
    in.need_many(count, scalar_bytes(type), what);
    const std::byte* values = in.take(count * scalar_bytes(type), what);
    if (type == ValueType::kBool) check_bools(in, values, count, what);
  }
}

MetaEntry read_metadata(Cursor& in, uint64_t index) {
  const std::string_view key = in.text("the name of metadata key " + std::to_string(index));
  if (key.size() > kMaxNameBytes)
    in.fail("metadata key " + std::to_string(index) + " has a name of " +
            std::to_string(key.size()) + " bytes; the file is damaged");
  const std::string what = "metadata key " + in_quotes(key);
  const ValueType type = read_value_type(in, what);
  MetaEntry entry{};
  if (type == ValueType::kArray) {
    entry = read_array(in, 1, what);
  } else {
    entry.type = entry.element = type;
    entry.count = 1;
    entry.values = in.here();
    const uint64_t begin = in.offset();
    skip_values(in, type, 1, 0, what);
    entry.n_bytes = in.offset() - begin;
  }
  entry.key = key;
  return entry;
}

// Fills n_elements and n_bytes from type and shape.
void measure_tensor(const Cursor& in, GgufTensor& tensor, const std::string& what) {
  const uint64_t block = block_elements(tensor.type);
  if (block == 0)
    in.fail(what + " has " + kvasir::name(tensor.type) +
            ", whose size is unknown; use a file quantised to a common type such as Q8_0 or Q4_K");
  std::string dims;
  bool fits = true;
  tensor.n_elements = 1;
  for (const uint64_t n : tensor.shape) {
    dims += (dims.empty() ? "" : " x ") + std::to_string(n);
    if (n == 0) in.fail(what + " has a dimension of 0; the file is damaged");
    fits = fits && !__builtin_mul_overflow(tensor.n_elements, n, &tensor.n_elements);
  }
  fits = fits && !__builtin_mul_overflow(tensor.n_elements / block,
                                         uint64_t{block_bytes(tensor.type)}, &tensor.n_bytes);
  if (!fits) in.fail(what + " of " + dims + " elements is impossibly large; the file is damaged");
  if (tensor.shape[0] % block != 0)
    in.fail(what + " of " + dims + " elements: the first dimension is not a multiple of " +
            std::to_string(block) + ", the block of " + kvasir::name(tensor.type));
}

// Returns the offset of the data, relative to the data section.
uint64_t read_tensor(Cursor& in, uint64_t index, GgufTensor& tensor) {
  const std::string_view tensor_name = in.text("the name of tensor " + std::to_string(index));
  if (tensor_name.size() > kMaxNameBytes)
    in.fail("tensor " + std::to_string(index) + " has a name of " +
            std::to_string(tensor_name.size()) + " bytes; the file is damaged");
  const std::string what = "tensor " + in_quotes(tensor_name);
  tensor.name = tensor_name;
  const auto n_dims = in.number<uint32_t>(what);
  if (n_dims == 0 || n_dims > kMaxDims)
    in.fail(what + " has " + std::to_string(n_dims) + " dimensions (1 to " +
            std::to_string(kMaxDims) + " are possible); the file is damaged");
  for (uint32_t d = 0; d < n_dims; ++d) tensor.shape.push_back(in.number<uint64_t>(what));
  tensor.type = static_cast<GgmlType>(in.number<uint32_t>(what));
  measure_tensor(in, tensor, what);
  return in.number<uint64_t>(what);
}

uint64_t read_alignment(const Cursor& in, const std::vector<MetaEntry>& metadata) {
  const auto at = std::find_if(metadata.begin(), metadata.end(),
                               [](const MetaEntry& e) { return e.key == "general.alignment"; });
  if (at == metadata.end()) return kDefaultAlignment;
  if (at->type != ValueType::kU32)
    in.fail("metadata key \"general.alignment\" is " + std::string(name(at->type)) + ", not u32");
  const auto alignment = load<uint32_t>(at->values);
  if (alignment < 8 || !std::has_single_bit(alignment))
    in.fail("metadata key \"general.alignment\" is " + std::to_string(alignment) +
            "; it must be a power of two, 8 or more");
  return alignment;
}

// Each byte of the data belongs to one tensor, but for padding up to the alignment: the format says
// so, and a damaged offset shows in nothing else.
void check_adjacent(const Cursor& in, const std::vector<uint64_t>& offsets, const Directory& dir) {
  std::vector<size_t> order(offsets.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return offsets[a] < offsets[b]; });
  uint64_t end = 0;  // of what lies before, padded
  for (size_t i = 0; i < order.size(); ++i) {
    const GgufTensor& tensor = dir.tensors[order[i]];
    const uint64_t begin = offsets[order[i]];
    if (begin < end)
      in.fail("tensor " + in_quotes(tensor.name) + " begins at " + std::to_string(begin) +
              ", within tensor " + in_quotes(dir.tensors[order[i - 1]].name) + ", which ends at " +
              std::to_string(end) + "; the file is damaged");
    if (begin > end)
      in.fail("bytes " + std::to_string(end) + " to " + std::to_string(begin) +
              " of the data, before tensor " + in_quotes(tensor.name) +
              ", belong to no tensor; the file is damaged");
    end = (begin + tensor.n_bytes + dir.alignment - 1) / dir.alignment * dir.alignment;
  }
}

// Turns offsets into pointers. The largest end is reported, so that one look tells how much of the
// file is missing.
void place_tensors(const Cursor& in, std::span<const std::byte> bytes,
                   const std::vector<uint64_t>& offsets, Directory& dir) {
  const uint64_t data_begin = (in.offset() + dir.alignment - 1) / dir.alignment * dir.alignment;
  uint64_t needed = 0;
  const GgufTensor* last = nullptr;
  for (size_t i = 0; i < offsets.size(); ++i) {
    const GgufTensor& tensor = dir.tensors[i];
    if (offsets[i] % dir.alignment != 0)
      in.fail("tensor " + in_quotes(tensor.name) + " begins at " + std::to_string(offsets[i]) +
              ", which is not a multiple of the alignment " + std::to_string(dir.alignment) +
              "; the file is damaged");
    const uint64_t end = saturating_add(saturating_add(data_begin, offsets[i]), tensor.n_bytes);
    if (end > needed) {
      needed = end;
      last = &tensor;
    }
  }
  if (needed > bytes.size())
    in.fail("truncated or damaged: tensor " + in_quotes(last->name) + " ends at byte " +
            std::to_string(needed) + ", but the file has " + std::to_string(bytes.size()) +
            " bytes; copy or download it again");
  check_adjacent(in, offsets, dir);
  for (size_t i = 0; i < offsets.size(); ++i)
    dir.tensors[i].data = bytes.data() + data_begin + offsets[i];
}

void check_unique_keys(const Cursor& in, const std::vector<MetaEntry>& metadata) {
  std::unordered_set<std::string_view> seen;
  for (const MetaEntry& entry : metadata)
    if (!seen.insert(entry.key).second)
      in.fail("metadata key " + in_quotes(entry.key) + " occurs twice; the file is damaged");
}

}  // namespace

const char* name(ValueType type) {
  const auto i = static_cast<size_t>(type);
  return i < kValueTypes.size() ? kValueTypes[i].name : "unknown";
}

size_t scalar_bytes(ValueType type) {
  const auto i = static_cast<size_t>(type);
  return i < kValueTypes.size() ? kValueTypes[i].bytes : 0;
}

std::string in_quotes(std::string_view text, size_t limit) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + (text.size() > limit ? "\"..." : "\"");
}

Directory read_directory(std::span<const std::byte> bytes, const std::string& label) {
  Cursor in(bytes, label);
  Directory dir;
  dir.version = read_version(in, bytes);
  const auto n_tensors = in.number<uint64_t>("the number of tensors");
  const auto n_metadata = in.number<uint64_t>("the number of metadata keys");
  in.need_many(n_metadata, kMinMetaBytes, std::to_string(n_metadata) + " metadata keys");
  for (uint64_t i = 0; i < n_metadata; ++i) dir.metadata.push_back(read_metadata(in, i));
  check_unique_keys(in, dir.metadata);
  dir.alignment = read_alignment(in, dir.metadata);
  in.need_many(n_tensors, kMinTensorBytes, std::to_string(n_tensors) + " tensors");
  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < n_tensors; ++i)
    offsets.push_back(read_tensor(in, i, dir.tensors.emplace_back()));
  place_tensors(in, bytes, offsets, dir);
  return dir;
}

}  // namespace kvasir::gguf
