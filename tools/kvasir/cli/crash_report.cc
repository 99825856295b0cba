// Signal handlers that use nothing but memory of their own, stat(), open(), read() and write().
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/crash_report.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>

#include "core/plugin/breadcrumb.h"
#include "core/plugin/check/guarded_memory.h"
#include "core/plugin/plugin_code.h"

namespace kvasir::tool {
namespace {

struct Caught {
  int signal;
  const char* name;
};
constexpr Caught kCaught[] = {{SIGSEGV, "SIGSEGV"},
                              {SIGBUS, "SIGBUS"},
                              {SIGFPE, "SIGFPE"},
                              {SIGILL, "SIGILL"},
                              {SIGABRT, "SIGABRT"}};
constexpr size_t kCaughtSignals = sizeof kCaught / sizeof kCaught[0];

struct sigaction handlers_before[kCaughtSignals];
char blocked_list[4096];
char* crash_text = nullptr;  // of write_crashes_to()
size_t crash_text_bytes = 0;
std::atomic<pid_t> reporter{0};  // the thread that crashed first
std::atomic<bool> reported{false};

// True for the first thread that asks. Others wait until its report is written, for at most two
// seconds; a crash inside the report itself waits for nothing.
bool is_first() {
  pid_t first = 0;
  if (reporter.compare_exchange_strong(first, gettid())) return true;
  const timespec moment{0, 10'000'000};
  for (int i = 0; i < 200 && first != gettid() && !reported; ++i) nanosleep(&moment, nullptr);
  return false;
}

// A line in memory of its own; what does not fit is left out.
class Line {
 public:
  Line& operator<<(const char* text) {
    for (; *text && n_ < sizeof bytes_; ++text) bytes_[n_++] = *text;
    return *this;
  }
  Line& operator<<(unsigned long long number) {
    char digits[21];
    char* at = digits + sizeof digits - 1;
    *at = '\0';
    do {
      *--at = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number != 0);
    return *this << at;
  }
  Line& append(const Line& other) {
    for (size_t i = 0; i < other.n_ && n_ < sizeof bytes_; ++i) bytes_[n_++] = other.bytes_[i];
    return *this;
  }
  // Without spaces: a word of the list.
  Line& word(const char* text) {
    const size_t begin = n_;
    *this << text;
    for (size_t i = begin; i < n_; ++i)
      if (bytes_[i] == ' ') bytes_[i] = '+';
    return *this;
  }
  void copy_to(char* text, size_t bytes) const {
    const size_t n = n_ < bytes ? n_ : bytes - 1;
    std::memcpy(text, bytes_, n);
    text[n] = '\0';
  }
  void write_to(int descriptor) const {
    for (size_t done = 0; done < n_;) {
      const ssize_t n = write(descriptor, bytes_ + done, n_ - done);
      if (n <= 0) return;
      done += static_cast<size_t>(n);
    }
  }

 private:
  char bytes_[8192];
  size_t n_ = 0;
};

// The plugin that this thread is in, or whose code the address lies in.
Breadcrumb culprit(uintptr_t address) {
  Breadcrumb crumb = breadcrumb();
  if (crumb.plugin) return crumb;
  if (const PluginCode* code = plugin_code_at(address))
    crumb = {code->plugin, code->path, "a thread of its own", Breadcrumb::kNoLayer};
  return crumb;
}

// Appends the file as it is now. Returns false when that cannot be written down.
bool block(const Breadcrumb& crumb, const char* cause) {
  struct stat s;
  if (blocked_list[0] == '\0' || stat(crumb.path, &s) != 0) return false;
  char folder[sizeof blocked_list];  // each one on the way to the list; mkdir() does no harm
  for (size_t i = 0; blocked_list[i] != '\0'; folder[i] = blocked_list[i], ++i) {
    folder[i] = '\0';
    if (i > 0 && blocked_list[i] == '/') mkdir(folder, 0700);
  }
  const int list = open(blocked_list, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (list < 0) return false;
  Line line;
  for (const auto number :
       {static_cast<unsigned long long>(s.st_dev), static_cast<unsigned long long>(s.st_ino),
        static_cast<unsigned long long>(s.st_size),
        static_cast<unsigned long long>(s.st_mtim.tv_sec),
        static_cast<unsigned long long>(s.st_mtim.tv_nsec),
        static_cast<unsigned long long>(s.st_ctim.tv_sec),
        static_cast<unsigned long long>(s.st_ctim.tv_nsec)})
    line << number << " ";
  line << cause << " ";
  line.word(crumb.function) << " " << crumb.plugin << " " << crumb.path << "\n";
  line.write_to(list);
  close(list);
  return true;
}

// What the address has to do with what validate mode gave the plugin.
void say_place(Line& line, uintptr_t address, bool writes) {
  const GuardedPlace place = guarded_place_at(address);
  if (!place.name) return;
  line << "kvasir: it " << (writes ? "wrote" : "read") << " ";
  if (place.is_over)
    line << "'" << place.name << "', which was valid during an earlier call only\n";
  else if (place.where == GuardedPlace::Where::kInside)
    line << "'" << place.name << "', which it was given to read only\n";
  else
    line << place.distance
         << (place.where == GuardedPlace::Where::kBefore ? " bytes before '" : " bytes behind '")
         << place.name << "', which has " << place.bytes << " bytes\n";
}

void report(const Breadcrumb& crumb, const char* cause, uintptr_t address = 0,
            bool writes = false) {
  Line what, line;
  what << cause;
  if (crumb.plugin) {
    what << " in plugin " << crumb.plugin << " (" << crumb.path << "): " << crumb.function;
    if (crumb.layer != Breadcrumb::kNoLayer) what << ", layer " << crumb.layer;
  } else {
    what << " outside any plugin";
  }
  if (crash_text) what.copy_to(crash_text, crash_text_bytes);
  (line << "\nkvasir: crash: ").append(what);
  line << (crumb.plugin ? "\n" : ": a defect of kvasir\n");
  if (!crumb.plugin) return line.write_to(STDERR_FILENO);
  if (address != 0) say_place(line, address, writes);
  if (!crash_text && block(crumb, cause))
    line << "kvasir: this file is refused until it changes; allow it again: kvasir plugin unblock "
         << crumb.plugin << "\n";
  line.write_to(STDERR_FILENO);
}

// Of a line of /proc/self/maps, "BEGIN-END PERMISSIONS OFFSET DEVICE INODE   PATH": the path, when
// the address lies in it; else null.
const char* path_in(const char* line, uintptr_t address) {
  char* at = nullptr;
  const uintptr_t begin = std::strtoull(line, &at, 16);
  const uintptr_t end = *at == '-' ? std::strtoull(at + 1, &at, 16) : 0;
  return address >= begin && address < end ? std::strchr(at, '/') : nullptr;
}

// The file that is mapped there. False when there is none.
bool mapped_file(uintptr_t address, char* path, size_t capacity) {
  const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0) return false;
  char bytes[1024], line[4300];
  size_t n_line = 0;
  bool found = false;
  for (ssize_t n; !found && (n = read(maps, bytes, sizeof bytes)) > 0;) {
    for (ssize_t i = 0; !found && i < n; ++i) {
      if (bytes[i] != '\n') {
        if (n_line < sizeof line - 1) line[n_line++] = bytes[i];
        continue;
      }
      line[n_line] = '\0';
      n_line = 0;
      const char* name = path_in(line, address);
      found = name && std::strlen(name) < capacity;
      if (found) std::strcpy(path, name);
    }
  }
  close(maps);
  return found;
}

// A page of a mapped file that the file has no more, or that its disk does not give: an error in
// reading, which here comes as a signal. False when the signal says something else.
bool report_lost_page(const siginfo_t& info) {
  char path[4300];
  if (info.si_signo != SIGBUS || info.si_code != BUS_ADRERR ||
      !mapped_file(reinterpret_cast<uintptr_t>(info.si_addr), path, sizeof path) ||
      std::strncmp(path, "/anon_hugepage", 14) == 0)
    return false;
  Line line;
  line << "\nkvasir: error: " << path << ": cannot be read (SIGBUS): it was cut short, or its disk "
       << "fails; make or copy it anew\n";
  line.write_to(STDERR_FILENO);
  return true;
}

uintptr_t address_of(const void* context) {
#if defined(__x86_64__)
  return static_cast<uintptr_t>(
      static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return static_cast<const ucontext_t*>(context)->uc_mcontext.pc;
#else
  return 0 * reinterpret_cast<uintptr_t>(context);
#endif
}

// Of a fault on memory.
bool is_write(const void* context) {
#if defined(__x86_64__)
  return static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2;
#else
  return context == nullptr;
#endif
}

// The signal then does what it would have done without us: a fault happens again, what was sent is
// sent again.
void on_crash(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  for (size_t i = 0; i < kCaughtSignals; ++i) {
    if (kCaught[i].signal != signal) continue;
    if (is_first()) {
      if (report_lost_page(*info)) _exit(2);
      const bool has_address = info->si_code > 0 && (signal == SIGSEGV || signal == SIGBUS);
      report(culprit(address_of(context)), kCaught[i].name,
             has_address ? reinterpret_cast<uintptr_t>(info->si_addr) : 0, is_write(context));
      reported = true;
    }
    sigaction(signal, &handlers_before[i], nullptr);
  }
  if (info->si_code <= 0) raise(signal);
  errno = error;
}

[[noreturn]] void on_terminate() {
  Line line;
  line << "\nkvasir: an exception that nobody catches";
  if (const std::exception_ptr error = std::current_exception()) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      line << ": " << e.what();
    } catch (...) {  // of a type without words
    }
  }
  (line << "\n").write_to(STDERR_FILENO);
  std::abort();
}

// exit() inside a plugin would end the run as if it were done.
void on_exit_call() {
  const Breadcrumb crumb = breadcrumb();
  if (!crumb.plugin || !is_first()) return;
  report(crumb, "exit()");
  _exit(1);
}

}  // namespace

void install_crash_report(const std::string& blocked_plugins) {
  if (blocked_plugins.size() < sizeof blocked_list)
    std::memcpy(blocked_list, blocked_plugins.c_str(), blocked_plugins.size() + 1);
  struct sigaction action {};
  action.sa_sigaction = on_crash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (size_t i = 0; i < kCaughtSignals; ++i)
    sigaction(kCaught[i].signal, &action, &handlers_before[i]);
  std::set_terminate(on_terminate);
  std::atexit(on_exit_call);
}

void write_crashes_to(char* text, size_t bytes) {
  crash_text_bytes = bytes;
  crash_text = text;
}

}  // namespace kvasir::tool
