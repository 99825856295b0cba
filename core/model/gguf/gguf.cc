// GgufFile: mapping the parts of a model, metadata and tensor look-up, identity hash.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/gguf/gguf.h"

#include <sys/mman.h>

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <boost/interprocess/file_mapping.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <cstdio>
#include <filesystem>
#include <unordered_map>

#include "core/error.h"
#include "core/model/gguf/gguf_format.h"
#include "core/model/gguf/gguf_value.h"

namespace kvasir {

using boost::interprocess::mapped_region;
using gguf::Directory;
using gguf::in_quotes;
using gguf::MetaEntry;
using gguf::ValueType;

namespace {

struct Part {
  std::string path;
  mapped_region region;  // empty for GgufFile::parse
  std::span<const std::byte> bytes;
};

// A mapping stays valid while the file is replaced by rename, but not when it is cut in place:
// then the next access to a lost page raises SIGBUS, as with every mapped file.
Part map_part(const std::string& path) {
  namespace fs = std::filesystem;
  namespace ipc = boost::interprocess;
  std::error_code ec;
  const fs::file_status status = fs::status(path, ec);
  if (!fs::exists(status)) throw input_error(path + ": no such file; check the path of the model");
  if (fs::is_directory(status))
    throw input_error(path + ": is a folder; name the .gguf file inside it");
  if (fs::is_regular_file(status) && fs::file_size(path, ec) == 0)
    throw input_error(path + ": is empty (0 bytes); copy or download it again");
  try {
    Part part{
        path, mapped_region(ipc::file_mapping(path.c_str(), ipc::read_only), ipc::read_only), {}};
    part.bytes = {static_cast<const std::byte*>(part.region.get_address()), part.region.get_size()};
    return part;
  } catch (const ipc::interprocess_exception& e) {
    throw input_error(path + ": cannot be mapped (" + e.what() +
                      "); check that it is a regular file you may read");
  }
}

// ---- split models ----

struct Split {
  uint32_t no = 0;  // from 0
  uint32_t count = 1;
  std::optional<uint64_t> n_tensors;  // of all parts
};

Split read_split(const Directory& dir, const std::string& path) {
  Split split;
  for (const MetaEntry& entry : dir.metadata) {
    if (!entry.key.starts_with("split.")) continue;
    if (entry.type == ValueType::kArray)
      throw input_error(path + ": metadata key " + in_quotes(entry.key) +
                        " is an array; the file is damaged");
    const std::byte* at = entry.values;
    if (entry.key == "split.no") split.no = gguf::read_as<uint32_t>(entry, at, path);
    if (entry.key == "split.count") split.count = gguf::read_as<uint32_t>(entry, at, path);
    if (entry.key == "split.tensors.count")
      split.n_tensors = gguf::read_as<uint64_t>(entry, at, path);
  }
  if (split.count > 99999 || (split.count > 1 && split.no >= split.count))
    throw input_error(path + ": says that it is part " + std::to_string(split.no + 1) + " of " +
                      std::to_string(split.count) + "; the file is damaged");
  return split;
}

// "-00002-of-00003.gguf" for part 1, counted from 0, of 3.
std::string split_suffix(uint32_t no, uint32_t count) {
  std::array<char, 48> buffer;
  std::snprintf(buffer.data(), buffer.size(), "-%05u-of-%05u.gguf", no + 1, count);
  return buffer.data();
}

std::string part_of(uint32_t no, uint32_t count) {
  return "part " + std::to_string(no + 1) + " of " + std::to_string(count);
}

// The path that all parts share, without the suffix.
std::string split_stem(const std::string& path, const Split& split) {
  const std::string suffix = split_suffix(split.no, split.count);
  if (!path.ends_with(suffix))
    throw input_error(path + ": is " + part_of(split.no, split.count) +
                      " of a split model, so its name must end in " + suffix +
                      "; give it its original name, the other parts are found by it");
  return path.substr(0, path.size() - suffix.size());
}

}  // namespace

struct GgufFile::Impl {
  std::vector<Part> parts;  // in order; the first holds the metadata
  uint32_t version = 0;
  std::vector<MetaEntry> metadata;
  std::unordered_map<std::string_view, size_t> metadata_index;
  std::vector<GgufTensor> tensors;
  std::unordered_map<std::string_view, size_t> tensor_index;

  const std::string& path() const { return parts.front().path; }

  const MetaEntry* find(std::string_view key) const {
    const auto at = metadata_index.find(key);
    return at == metadata_index.end() ? nullptr : &metadata[at->second];
  }
  void add_part(Part part, Directory dir) {
    if (parts.empty()) {
      version = dir.version;
      metadata = std::move(dir.metadata);
      for (size_t i = 0; i < metadata.size(); ++i) metadata_index.emplace(metadata[i].key, i);
    }
    parts.push_back(std::move(part));
    std::move(dir.tensors.begin(), dir.tensors.end(), std::back_inserter(tensors));
  }
  void add_split(const std::string& stem, const Split& split);
  void index_tensors() {
    for (size_t i = 0; i < tensors.size(); ++i)
      if (!tensor_index.emplace(tensors[i].name, i).second)
        throw input_error(path() + ": tensor " + in_quotes(tensors[i].name) +
                          " occurs twice; the file is damaged");
  }
};

void GgufFile::Impl::add_split(const std::string& stem, const Split& split) {
  for (uint32_t no = 0; no < split.count; ++no) {
    const std::string part_path = stem + split_suffix(no, split.count);
    if (!std::filesystem::exists(part_path))
      throw input_error(part_path + ": missing, it is " + part_of(no, split.count) +
                        " of a split model; put all parts into one folder");
    Part part = map_part(part_path);
    Directory dir = gguf::read_directory(part.bytes, part_path);
    const Split own = read_split(dir, part_path);
    if (own.no != no || own.count != split.count)
      throw input_error(part_path + ": says that it is " + part_of(own.no, own.count) +
                        ", its name says " + part_of(no, split.count) +
                        "; parts of different models are mixed, or one was renamed");
    add_part(std::move(part), std::move(dir));
  }
  if (split.n_tensors && *split.n_tensors != tensors.size())
    throw input_error(path() + ": the parts hold " + std::to_string(tensors.size()) +
                      " tensors together, but split.tensors.count is " +
                      std::to_string(*split.n_tensors) + "; parts of different models are mixed");
}

GgufFile::GgufFile() : impl_(std::make_unique<Impl>()) {}
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;
GgufFile::~GgufFile() = default;

GgufFile GgufFile::open(const std::string& path) {
  GgufFile file;
  Part part = map_part(path);
  Directory dir = gguf::read_directory(part.bytes, path);
  const Split split = read_split(dir, path);
  if (split.count > 1)
    file.impl_->add_split(split_stem(path, split), split);
  else
    file.impl_->add_part(std::move(part), std::move(dir));
  file.impl_->index_tensors();
  return file;
}

GgufFile GgufFile::parse(std::span<const std::byte> bytes, const std::string& label) {
  GgufFile file;
  Directory dir = gguf::read_directory(bytes, label);
  file.impl_->add_part({label, {}, bytes}, std::move(dir));
  file.impl_->index_tensors();
  return file;
}

const std::string& GgufFile::path() const { return impl_->path(); }
uint32_t GgufFile::version() const { return impl_->version; }

void GgufFile::release_pages(const std::byte* data, uint64_t n_bytes) const {
  constexpr uintptr_t kPage = 4096;
  for (const Part& part : impl_->parts) {
    const auto begin = reinterpret_cast<uintptr_t>(part.region.get_address());
    const auto at = reinterpret_cast<uintptr_t>(data);
    if (part.region.get_size() == 0 || at < begin || at >= begin + part.region.get_size()) continue;
    const uintptr_t first = (at + kPage - 1) / kPage * kPage;
    const uintptr_t last = (at + n_bytes) / kPage * kPage;
    // A hint: whether it is taken changes nothing but the resident size.
    if (last > first)  // NOLINTNEXTLINE(performance-no-int-to-ptr): the mapping's own address
      madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }
}

std::vector<std::string> GgufFile::part_paths() const {
  std::vector<std::string> paths;
  for (const Part& part : impl_->parts) paths.push_back(part.path);
  return paths;
}

uint64_t GgufFile::file_bytes() const {
  uint64_t n = 0;
  for (const Part& part : impl_->parts) n += part.bytes.size();
  return n;
}

const std::vector<GgufTensor>& GgufFile::tensors() const { return impl_->tensors; }

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto at = impl_->tensor_index.find(name);
  if (at == impl_->tensor_index.end()) return nullptr;
  const GgufTensor& tensor = impl_->tensors[at->second];
  if (!is_supported(tensor.type))
    throw input_error(path() + ": tensor " + in_quotes(name) + " has type " +
                      kvasir::name(tensor.type) +
                      ", which is not supported; use F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
                      "Q2_K to Q6_K or IQ4_NL");
  return &tensor;
}

const GgufTensor& GgufFile::tensor(std::string_view name) const {
  if (const GgufTensor* found = find_tensor(name)) return *found;
  throw input_error(path() + ": has no tensor " + in_quotes(name) +
                    (impl_->tensors.empty() ? "; it is a vocabulary without weights"
                                            : "; the file is incomplete or of another model kind"));
}

bool GgufFile::has(std::string_view key) const { return impl_->find(key) != nullptr; }

bool GgufFile::is_array(std::string_view key) const {
  const MetaEntry* entry = impl_->find(key);
  return entry && entry->type == ValueType::kArray;
}

std::vector<std::string> GgufFile::keys() const {
  std::vector<std::string> out;
  out.reserve(impl_->metadata.size());
  for (const MetaEntry& entry : impl_->metadata) out.emplace_back(entry.key);
  return out;
}

std::string GgufFile::describe(std::string_view key) const {
  const MetaEntry* entry = impl_->find(key);
  if (!entry) throw input_error(path() + ": has no metadata key " + in_quotes(key));
  return gguf::describe(*entry);
}

template <class T>
std::optional<T> GgufFile::get(std::string_view key) const {
  const MetaEntry* entry = impl_->find(key);
  if (!entry) return std::nullopt;
  if (entry->type == ValueType::kArray)
    gguf::fail_conversion(*entry, gguf::describe(*entry), gguf::wanted_name<T>(), path());
  const std::byte* at = entry->values;
  return gguf::read_as<T>(*entry, at, path());
}

template <class T>
T GgufFile::require(std::string_view key) const {
  if (const auto value = get<T>(key)) return *value;
  throw input_error(path() + ": has no metadata key " + in_quotes(key) +
                    ", which this kind of model needs; convert the model again");
}

template <class T>
std::optional<std::vector<T>> GgufFile::get_array(std::string_view key) const {
  const MetaEntry* entry = impl_->find(key);
  if (!entry) return std::nullopt;
  if (entry->type != ValueType::kArray || entry->element == ValueType::kArray)
    gguf::fail_conversion(*entry, gguf::describe(*entry), "an array of values", path());
  std::vector<T> out;
  out.reserve(entry->count);  // backed by the file: each element takes a byte of it or more
  const std::byte* at = entry->values;
  for (uint64_t i = 0; i < entry->count; ++i) out.push_back(gguf::read_as<T>(*entry, at, path()));
  return out;
}

std::optional<GgufRaw> GgufFile::raw(std::string_view key) const {
  const MetaEntry* entry = impl_->find(key);
  if (!entry) return std::nullopt;
  constexpr size_t kArrayHead = sizeof(uint32_t) + sizeof(uint64_t);  // element type, count
  const size_t head = entry->type == ValueType::kArray ? kArrayHead : 0;
  return GgufRaw{static_cast<uint32_t>(entry->type),
                 {reinterpret_cast<const char*>(entry->values - head), entry->n_bytes + head}};
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define KVASIR_INSTANTIATE(T)                                         \
  template std::optional<T> GgufFile::get<T>(std::string_view) const; \
  template T GgufFile::require<T>(std::string_view) const;            \
  template std::optional<std::vector<T>> GgufFile::get_array<T>(std::string_view) const;
// NOLINTEND(bugprone-macro-parentheses)
KVASIR_INSTANTIATE(bool)
KVASIR_INSTANTIATE(uint32_t)
KVASIR_INSTANTIATE(int32_t)
KVASIR_INSTANTIATE(uint64_t)
KVASIR_INSTANTIATE(float)
KVASIR_INSTANTIATE(std::string_view)
#undef KVASIR_INSTANTIATE

// A split model and the same model in one file have the same hash: the layout of the files and the
// split keys are left out.
uint64_t GgufFile::content_hash() const {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  if (!state) throw Error(ErrorKind::kResource, path() + ": out of memory");
  XXH3_64bits_reset(state.get());
  const auto add = [&](const void* data, size_t n) { XXH3_64bits_update(state.get(), data, n); };
  const auto add_number = [&](uint64_t value) { add(&value, sizeof value); };
  for (const MetaEntry& entry : impl_->metadata) {
    if (entry.key.starts_with("split.")) continue;
    add_number(entry.key.size());
    add(entry.key.data(), entry.key.size());
    add_number(static_cast<uint64_t>(entry.type) << 32 | static_cast<uint64_t>(entry.element));
    add_number(entry.count);
    add(entry.values, entry.n_bytes);
  }
  for (const GgufTensor& tensor : impl_->tensors) {
    add_number(tensor.name.size());
    add(tensor.name.data(), tensor.name.size());
    add_number(static_cast<uint64_t>(tensor.type));
    add_number(tensor.shape.size());
    for (const uint64_t n : tensor.shape) add_number(n);
    add(tensor.data, tensor.n_bytes);
    release_pages(tensor.data, tensor.n_bytes);
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace kvasir
