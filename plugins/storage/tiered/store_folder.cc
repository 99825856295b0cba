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
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "plugins/storage/tiered/reason.h"

namespace kvasir::tiered {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kUnfinishedSeconds = 3600;  // after that nobody writes a temporary file any more
constexpr uint64_t kScansPerLimit = 64;

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

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
  return std::string(text, n > 0 ? static_cast<size_t>(n) : 0);
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
  const std::string file = record_text(name);
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

size_t StoreFolder::read(std::span<const StoreName> names, const StoreLayout& layout,
                         std::span<Memory> to, std::string& why) {
  for (size_t i = 0; i < names.size(); ++i)
    if (to[i] = read_one(names[i], layout, why); !to[i]) return i;
  return names.size();
}

Memory StoreFolder::read_one(const StoreName& name, const StoreLayout& layout, std::string& why) {
  const std::string path = path_of(name);
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)};
  if (file.fd < 0) return {};  // not there, or no descriptor is left: as good as not there
  Memory memory = allocate(layout.block_bytes);
  if (!read_record(file.fd, name, &layout, memory.get(), why)) {
    why = path + ": " + why + ", it is removed";
    ::unlink(path.c_str());
    return {};
  }
  ::futimens(file.fd, nullptr);
  bytes_read_ += sizeof(StoreHeader) + layout.block_bytes;
  return memory;
}

bool StoreFolder::write(std::span<const StoreBlock> blocks, const StoreLayout& layout,
                        std::string& why) {
  bool all = true;
  for (const StoreBlock& block : blocks)
    all &= write_one(block.name, layout, block.memory.get(), why);
  return all;
}

bool StoreFolder::write_one(const StoreName& name, const StoreLayout& layout, const std::byte* from,
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
    for (const StoreEntry& file : files(nullptr)) now += file.bytes;
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

std::vector<StoreEntry> StoreFolder::files(const kvasir_store_filter* filter) const {
  std::vector<StoreEntry> out;
  each_in(path_, [&](const fs::path& run_folder) {
    const auto run = hash_of(run_folder.filename());
    if (!run || (filter && !is_of_run(*filter, *run))) return;
    each_in(run_folder, [&](const fs::path& part) {
      each_in(part, [&](const fs::path& file) {
        const auto name = record_name(*run, file.filename());
        struct stat status {};
        if (!name || ::lstat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
        out.push_back({file, *name, static_cast<uint64_t>(status.st_size), status.st_mtime});
      });
    });
  });
  return out;
}

std::vector<kvasir_store_run> StoreFolder::list() const {
  return runs_of(
      files(nullptr), [&](const Hash& run) { return about_of(run_path(run)); },
      [](const StoreEntry& entry) {
        StoreHeader header;
        const Descriptor file{::open(entry.place.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)};
        const bool is_read =
            file.fd >= 0 && ::read(file.fd, &header, sizeof header) == sizeof header;
        return is_read && header.magic == StoreHeader::kMagic ? header.layout.block_size : 0;
      });
}

kvasir_store_result StoreFolder::verify(const kvasir_store_filter& filter,
                                        const sdk::BadRecord& bad) const {
  kvasir_store_result out{};
  out.struct_size = sizeof out;
  for (const StoreEntry& file : files(&filter)) {
    ++out.n_files;
    out.bytes += file.bytes;
    const Descriptor fd{::open(file.place.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)};
    if (fd.fd < 0 && errno == ENOENT) continue;  // another process removed it
    std::string why = fd.fd < 0 ? reason(errno) : "";
    if (fd.fd >= 0 && read_record(fd.fd, file.name, nullptr, nullptr, why)) continue;
    ++out.n_bad;
    out.bad_bytes += file.bytes;
    bad(file.place, why);
    if ((filter.flags & KVASIR_STORE_DELETE) == 0 || ::unlink(file.place.c_str()) != 0) continue;
    ++out.n_removed;
    out.removed_bytes += file.bytes;
  }
  return out;
}

kvasir_store_result StoreFolder::prune(const kvasir_store_filter& filter) const {
  return tiered::prune(files(&filter), filter, [](const StoreEntry& file, bool& gone) {
    const bool removed = ::unlink(file.place.c_str()) == 0;
    gone = !removed && errno == ENOENT;  // another process removed it
    return removed;
  });
}

}  // namespace kvasir::tiered
