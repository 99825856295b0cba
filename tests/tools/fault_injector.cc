// A library for LD_PRELOAD: system calls on files below a folder fail, or do only a part.
//   FAULT_FOLDER  calls on files below it count, no others; as /proc says it, without links
//   FAULT_CALLS   which, separated by commas: create (a file), write, cut (ftruncate), sync, close
//                 (of a file open for writing), rename, mkdir; open (a file that is there), read,
//                 map
//   FAULT_KIND    an error that they fail with: enospc, eio, eopnotsupp; eintr (each second call);
//                 short (half of the bytes are moved); flip (a bit of what is read is wrong);
//                 shrink (what is mapped loses its second half)
//   FAULT_AT      5: the fifth of them; 5+: from the fifth on
//   FAULT_LOG     a file: a line of each call that failed, "write /folder/file"
// Not seen are the calls that the C library makes for itself: those behind fopen(), fwrite() and
// mkostemp(), and mapping a shared library. Those of std::fstream are seen, except opening.
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

const char* setting(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_kind(const char* kind) { return std::strcmp(setting("FAULT_KIND"), kind) == 0; }

bool is_below(const char* path) {
  const char* folder = setting("FAULT_FOLDER");
  const size_t n = std::strlen(folder);
  return n > 0 && std::strncmp(path, folder, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

bool is_chosen(const char* call) {
  const size_t n = std::strlen(call);
  for (const char* at = setting("FAULT_CALLS"); *at;) {
    const size_t length = std::strcspn(at, ",");
    if (length == n && std::strncmp(at, call, n) == 0) return true;
    at += length + (at[length] == ',');
  }
  return false;
}

void log(const char* call, const char* path) {
  const auto fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, setting("FAULT_LOG"),
                                           O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (fd < 0) return;
  char line[4300];
  const int n = std::snprintf(line, sizeof line, "%s %s\n", call, path);
  if (n > 0) syscall(SYS_write, fd, line, static_cast<size_t>(n));
  syscall(SYS_close, fd);
}

std::atomic<long> n_calls{0};

// True when this call on this path is to fail.
bool hits(const char* call, const char* path) {
  const int error = errno;
  bool hit = false;
  if (is_chosen(call) && is_below(path)) {
    char* end = nullptr;
    const long wanted = std::strtol(setting("FAULT_AT"), &end, 10), n = ++n_calls;
    hit = n == wanted || (*end == '+' && n > wanted);
    if (hit && is_kind("eintr")) hit = n == wanted || (n - wanted) % 2 == 0;
    if (hit) log(call, path);
  }
  errno = error;
  return hit;
}

bool hits(const char* call, int fd) {
  const int error = errno;
  char link[64], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, path, sizeof path - 1);
  errno = error;
  if (n <= 0) return false;
  path[n] = '\0';
  return hits(call, path);
}

// Sets errno and returns true for a kind that is an error.
bool fails() {
  struct Error {
    const char* kind;
    int number;
  };
  constexpr Error kErrors[] = {
      {"enospc", ENOSPC}, {"eio", EIO}, {"eintr", EINTR}, {"eopnotsupp", EOPNOTSUPP}};
  for (const Error& error : kErrors) {
    if (!is_kind(error.kind)) continue;
    errno = error.number;
    return true;
  }
  return false;
}

size_t half(size_t bytes) { return bytes - bytes / 2; }

bool is_for_writing(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
}

// Of a read: `call(n)` reads n bytes to `to`.
template <class Call>
ssize_t read_with_fault(int fd, void* to, size_t bytes, const Call& call) {
  if (!hits("read", fd)) return call(bytes);
  if (fails()) return -1;
  const ssize_t n = call(is_kind("short") ? half(bytes) : bytes);
  if (n > 0 && is_kind("flip")) static_cast<unsigned char*>(to)[n / 2] ^= 1;
  return n;
}

template <class Call>
ssize_t write_with_fault(int fd, size_t bytes, const Call& call) {
  if (!hits("write", fd)) return call(bytes);
  if (fails()) return -1;
  return call(half(bytes));
}

// Of several buffers the first that holds something is written, which is as short.
template <class Call>
ssize_t writev_with_fault(int fd, const iovec* parts, int n_parts, const Call& call) {
  if (!hits("write", fd)) return call(parts, n_parts);
  if (fails()) return -1;
  while (n_parts > 1 && parts->iov_len == 0) ++parts, --n_parts;
  const iovec first{parts->iov_base, half(parts->iov_len)};
  return call(&first, 1);
}

int open_with_fault(const char* name, const char* path, int flags, mode_t mode) {
  const bool creates = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  if (hits(creates ? "create" : "open", path) && fails()) return -1;
  return next<int(const char*, int, ...)>(name)(path, flags, mode);
}

// The mode is there only when the flags say so; 0 does no harm otherwise.
mode_t mode_of(int flags, va_list arguments) {
  const bool has_mode = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return has_mode ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_with_fault("open", path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_with_fault("open64", path, flags, mode);
}

ssize_t read(int fd, void* to, size_t bytes) {
  static auto* const real = next<ssize_t(int, void*, size_t)>("read");
  return read_with_fault(fd, to, bytes, [&](size_t n) { return real(fd, to, n); });
}
ssize_t pread(int fd, void* to, size_t bytes, off_t at) {
  static auto* const real = next<ssize_t(int, void*, size_t, off_t)>("pread");
  return read_with_fault(fd, to, bytes, [&](size_t n) { return real(fd, to, n, at); });
}
ssize_t pread64(int fd, void* to, size_t bytes, off64_t at) {
  static auto* const real = next<ssize_t(int, void*, size_t, off64_t)>("pread64");
  return read_with_fault(fd, to, bytes, [&](size_t n) { return real(fd, to, n, at); });
}

ssize_t write(int fd, const void* from, size_t bytes) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  return write_with_fault(fd, bytes, [&](size_t n) { return real(fd, from, n); });
}
ssize_t pwrite(int fd, const void* from, size_t bytes, off_t at) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return write_with_fault(fd, bytes, [&](size_t n) { return real(fd, from, n, at); });
}
ssize_t pwrite64(int fd, const void* from, size_t bytes, off64_t at) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
  return write_with_fault(fd, bytes, [&](size_t n) { return real(fd, from, n, at); });
}
ssize_t writev(int fd, const iovec* parts, int n_parts) {
  static auto* const real = next<ssize_t(int, const iovec*, int)>("writev");
  return writev_with_fault(fd, parts, n_parts,
                           [&](const iovec* p, int n) { return real(fd, p, n); });
}

int ftruncate(int fd, off_t bytes) noexcept {
  if (hits("cut", fd) && fails()) return -1;
  return next<int(int, off_t)>("ftruncate")(fd, bytes);
}
int fsync(int fd) {
  if (hits("sync", fd) && fails()) return -1;
  return next<int(int)>("fsync")(fd);
}
int fdatasync(int fd) {
  if (hits("sync", fd) && fails()) return -1;
  return next<int(int)>("fdatasync")(fd);
}

// Closes it all the same, as Linux does.
int close(int fd) {
  const bool hit = is_chosen("close") && is_for_writing(fd) && hits("close", fd);
  const int closed = next<int(int)>("close")(fd);
  return hit && fails() ? -1 : closed;
}

int rename(const char* from, const char* to) noexcept {
  if (hits("rename", to) && fails()) return -1;
  return next<int(const char*, const char*)>("rename")(from, to);
}
int mkdir(const char* path, mode_t mode) noexcept {
  if (hits("mkdir", path) && fails()) return -1;
  return next<int(const char*, mode_t)>("mkdir")(path, mode);
}

void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  static auto* const real = next<void*(void*, size_t, int, int, int, off_t)>("mmap");
  void* const mapped = real(at, bytes, protection, flags, fd, offset);
  if (fd < 0 || mapped == MAP_FAILED || !hits("map", fd)) return mapped;
  if (is_kind("shrink")) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (truncate(path, static_cast<off_t>(bytes / 2)) != 0) std::abort();
    return mapped;
  }
  if (!fails()) return mapped;
  munmap(mapped, bytes);
  return MAP_FAILED;
}

}  // extern "C"
