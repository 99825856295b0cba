// See store_folder.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/store_folder.h"

#include <fcntl.h>
#include <kvasir/sdk/error.h>
#include <kvasir/status.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>

namespace kvasir::tiered {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kUseSeconds = 60;           // uses closer than this count as one
constexpr int64_t kUnfinishedSeconds = 3600;  // after that nobody writes a temporary file any more
constexpr size_t kHashDigits = 32;
constexpr uint64_t kScansPerLimit = 64;

std::string reason(int error) { return std::generic_category().message(error); }

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

std::string hex(const Hash& hash) {
  char text[kHashDigits + 1];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash[0]),
                static_cast<unsigned long long>(hash[1]));
  return text;
}

std::optional<Hash> hash_of(const std::string& text) {
  if (text.size() != kHashDigits || text.find_first_not_of("0123456789abcdef") != text.npos)
    return std::nullopt;
  return Hash{std::stoull(text.substr(0, 16), nullptr, 16),
              std::stoull(text.substr(16), nullptr, 16)};
}

std::string file_name(const StoreName& name) {
  return hex(name.name) + "-" + std::to_string(name.block) + "-" + std::to_string(name.layer);
}

// A name that file_name() makes, or none.
std::optional<StoreName> name_of(const Hash& run, const std::string& text) {
  StoreName out{run, {}, 0, 0};
  const auto hash = hash_of(text.substr(0, std::min(kHashDigits, text.size())));
  if (!hash || std::sscanf(text.c_str() + kHashDigits, "-%9u-%9u", &out.block, &out.layer) != 2)
    return std::nullopt;
  out.name = *hash;
  if (file_name(out) != text) return std::nullopt;
  return out;
}

// Why what lies there would not be ours alone; empty where it is.
std::string not_ours(const struct stat& status) {
  if (!S_ISDIR(status.st_mode)) return "it is not a folder";
  if (status.st_uid != ::geteuid())
    return "it belongs to another user, and what he writes would be taken for K and V: name a "
           "folder "
           "of your own";
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return "others may write there, and what they write would be taken for K and V: chmod go-w it";
  return "";
}

bool make_folder(const std::string& path, std::string& why) {
  struct stat status {};
  if ((::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) || ::stat(path.c_str(), &status) != 0) {
    why = reason(errno);
    return false;
  }
  why = not_ours(status);
  if (!why.empty()) why = path + ": " + why;
  return why.empty();
}

// Files or folders in `path`, in no order; nothing where it cannot be read.
template <class Fn>
void each_in(const std::string& path, const Fn& fn) {
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error))
    fn(at->path());
}

std::string about_of(const std::string& run_path) {
  const Descriptor file{::open((run_path + "/about").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)};
  char text[sizeof(kvasir_store_run::about)] = {};
  const ssize_t n = file.fd < 0 ? 0 : ::read(file.fd, text, sizeof text - 1);
  std::string out(text, n > 0 ? static_cast<size_t>(n) : 0);
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return out;
}

}  // namespace

StoreFolder::StoreFolder(std::string path, uint64_t limit_bytes)
    : path_(std::move(path)), limit_bytes_(limit_bytes) {
  const auto fail = [&](const std::string& why) {
    throw sdk::Error(KVASIR_ERR_IO, "tiered: store = \"" + path_ + "\": " + why);
  };
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) {
    if (errno == ENOENT) return;  // open_run() makes it
    fail(reason(errno));
  }
  if (const std::string why = not_ours(status); !why.empty()) fail(why);
  if (::access(path_.c_str(), R_OK | W_OK | X_OK) != 0) fail(reason(errno));
}

std::string StoreFolder::unfinished_path() const { return path_ + "/unfinished"; }

std::string StoreFolder::run_path(const Hash& run) const { return path_ + "/" + hex(run); }

std::string StoreFolder::path_of(const StoreName& name) const {
  const std::string file = file_name(name);
  return run_path(name.run) + "/" + file.substr(0, 2) + "/" + file;
}

// Left by processes that were killed.
void StoreFolder::remove_unfinished() const {
  each_in(unfinished_path(), [](const fs::path& file) {
    struct stat status {};
    if (::lstat(file.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        status.st_mtime < std::time(nullptr) - kUnfinishedSeconds)
      ::unlink(file.c_str());
  });
}

bool StoreFolder::open_run(const Hash& run, const std::string& about, std::string& why) {
  std::error_code error;
  fs::create_directories(fs::path(path_).parent_path(), error);
  for (const std::string& folder : {path_, unfinished_path(), run_path(run)})
    if (!make_folder(folder, why)) return false;
  remove_unfinished();
  const std::string path = run_path(run) + "/about";
  const Descriptor file{
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600)};
  // For people: a run without it is as good.
  if (file.fd >= 0 && ::write(file.fd, about.data(), about.size()) < 0) ::unlink(path.c_str());
  return true;
}

StoreFolder::Found StoreFolder::read(const StoreName& name, const StoreLayout& layout,
                                     std::byte* to, std::string& why) {
  const std::string path = path_of(name);
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)};
  if (file.fd < 0) return Found::kNo;  // not there, or no descriptor is left: as good as not there
  if (!read_record(file.fd, name, &layout, to, why)) {
    why = path + ": " + why;
    ::unlink(path.c_str());
    return Found::kBad;
  }
  ::futimens(file.fd, nullptr);
  bytes_read_ += sizeof(StoreHeader) + layout.block_bytes;
  return Found::kYes;
}

bool StoreFolder::write(const StoreName& name, const StoreLayout& layout, const std::byte* from,
                        std::string& why) {
  const std::string path = path_of(name);
  if (::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW) == 0) return true;
  const uint64_t bytes = sizeof(StoreHeader) + layout.block_bytes;
  if (bytes > limit_bytes_) {
    why = "store_limit_bytes is less than one block takes";
    return false;
  }
  make_room(bytes);
  if (!make_folder(fs::path(path).parent_path(), why)) return false;
  const std::string temporary = unfinished_path() + "/" + std::to_string(::getpid()) + "-" +
                                std::to_string(++n_temporary_) + "-" +
                                std::to_string(reinterpret_cast<uintptr_t>(this));
  int error = 0;
  {
    const Descriptor file{
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600)};
    error = file.fd < 0 ? errno : write_record(file.fd, name, layout, from);
  }
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary.c_str());
    why = reason(error);
    return false;
  }
  bytes_written_ += bytes;
  return true;
}

// Other processes write, too: the folder is counted anew after a part of the limit.
void StoreFolder::make_room(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > bytes_until_scan_ || bytes_ + bytes > limit_bytes_) {
    kvasir_store_filter filter{};
    filter.flags = KVASIR_STORE_LIMIT;
    filter.limit_bytes = limit_bytes_ - bytes;
    const uint64_t share = limit_bytes_ / kScansPerLimit;
    // When it is full, a share more goes, so that not every block looks at all files.
    uint64_t now = 0;
    for (const File& file : files(nullptr)) now += file.bytes;
    if (now > filter.limit_bytes) {
      filter.limit_bytes -= std::min(share, filter.limit_bytes);
      now -= prune(filter).removed_bytes;
    }
    bytes_ = now;
    bytes_until_scan_ = std::max(share, bytes);
  }
  bytes_ += bytes;
  bytes_until_scan_ -= bytes;
}

std::vector<StoreFolder::File> StoreFolder::files(const kvasir_store_filter* filter) const {
  std::vector<File> out;
  each_in(path_, [&](const fs::path& run_folder) {
    const auto run = hash_of(run_folder.filename());
    if (!run || (filter && (filter->flags & KVASIR_STORE_ONE_RUN) != 0 &&
                 *run != Hash{filter->run[0], filter->run[1]}))
      return;
    each_in(run_folder, [&](const fs::path& part) {
      each_in(part, [&](const fs::path& file) {
        const auto name = name_of(*run, file.filename());
        struct stat status {};
        if (!name || ::lstat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
        out.push_back({file, *name, static_cast<uint64_t>(status.st_size), status.st_mtime});
      });
    });
  });
  return out;
}

std::vector<kvasir_store_run> StoreFolder::list() const {
  std::map<Hash, kvasir_store_run> runs;
  std::map<Hash, std::set<Hash>> names;
  for (const File& file : files(nullptr)) {
    const auto [at, is_new] = runs.try_emplace(file.name.run);
    kvasir_store_run& run = at->second;
    const auto used = static_cast<uint64_t>(std::max<int64_t>(file.used, 0));
    if (is_new) {
      std::copy(file.name.run.begin(), file.name.run.end(), run.run);
      std::strncpy(run.about, about_of(run_path(file.name.run)).c_str(), sizeof run.about - 1);
      run.first_used = run.last_used = used;
    }
    ++run.n_files;
    run.bytes += file.bytes;
    run.first_used = std::min(run.first_used, used);
    run.last_used = std::max(run.last_used, used);
    if (!names[file.name.run].insert(file.name.name).second) continue;
    ++run.n_blocks;
    StoreHeader header;
    const Descriptor fd{::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)};
    if (fd.fd >= 0 && ::read(fd.fd, &header, sizeof header) == sizeof header &&
        header.magic == StoreHeader::kMagic)
      run.n_tokens += header.layout.block_size;
  }
  std::vector<kvasir_store_run> out;
  for (const auto& [hash, run] : runs) out.push_back(run);
  return out;
}

kvasir_store_result StoreFolder::verify(const kvasir_store_filter& filter,
                                        const sdk::BadRecord& bad) const {
  kvasir_store_result out{};
  out.struct_size = sizeof out;
  for (const File& file : files(&filter)) {
    ++out.n_files;
    out.bytes += file.bytes;
    const Descriptor fd{::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)};
    if (fd.fd < 0 && errno == ENOENT) continue;  // another process removed it
    std::string why = fd.fd < 0 ? reason(errno) : "";
    if (fd.fd >= 0 && read_record(fd.fd, file.name, nullptr, nullptr, why)) continue;
    ++out.n_bad;
    out.bad_bytes += file.bytes;
    bad(file.path, why);
    if ((filter.flags & KVASIR_STORE_DELETE) == 0 || ::unlink(file.path.c_str()) != 0) continue;
    ++out.n_removed;
    out.removed_bytes += file.bytes;
  }
  return out;
}

kvasir_store_result StoreFolder::prune(const kvasir_store_filter& filter) const {
  kvasir_store_result out{};
  out.struct_size = sizeof out;
  std::vector<File> all = files(&filter);
  // Of one prompt's blocks, the last go first: those behind a gap are of no use.
  std::sort(all.begin(), all.end(), [](const File& a, const File& b) {
    return std::tuple(a.used / kUseSeconds, b.name.block, a.name.layer, a.path) <
           std::tuple(b.used / kUseSeconds, a.name.block, b.name.layer, b.path);
  });
  for (const File& file : all) out.bytes += file.bytes;
  out.n_files = all.size();
  const bool by_limit = (filter.flags & KVASIR_STORE_LIMIT) != 0;
  const bool by_age = (filter.flags & KVASIR_STORE_OLDER) != 0;
  const auto oldest = std::time(nullptr) - static_cast<int64_t>(std::min<uint64_t>(
                                               filter.older_than_seconds, INT64_MAX / 2));
  uint64_t left = out.bytes;
  for (const File& file : all) {
    const bool goes = (by_limit && left > filter.limit_bytes) || (by_age && file.used < oldest) ||
                      (!by_limit && !by_age);
    if (!goes) continue;
    const bool removed = ::unlink(file.path.c_str()) == 0;
    if (removed || errno == ENOENT) left -= file.bytes;  // by us, or by another process
    if (!removed) continue;
    ++out.n_removed;
    out.removed_bytes += file.bytes;
  }
  return out;
}

}  // namespace kvasir::tiered
