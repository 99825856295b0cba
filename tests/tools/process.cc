// See process.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/process.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <stdexcept>
#include <thread>
#include <utility>

namespace kvasir::test {

std::string kvasir_binary() { return KVASIR_BINARY_DIR "/bin/kvasir"; }

namespace {

// The first of two variables of one name holds.
std::vector<std::string> child_environment(const std::vector<std::string>& added,
                                           const std::string& cache) {
  std::vector<std::string> list = added;
  list.push_back("XDG_CACHE_HOME=" + cache);
  for (char** at = environ; *at; ++at)
    if (!std::string(*at).starts_with("KVASIR_")) list.emplace_back(*at);
  return list;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> list;
  for (std::string& s : strings) list.push_back(s.data());
  list.push_back(nullptr);
  return list;
}

void send_to(int descriptor, const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0 || dup2(file, descriptor) < 0) _exit(126);
}

// Writes what it prints to `out` and `err` in the folder. SIGINT is not ignored, as it is in what a
// script starts in the background.
pid_t start(std::vector<std::string> command, const std::vector<std::string>& environment,
            const TempDir& folder, int input) {
  const std::string out = folder.path("out"), err = folder.path("err");
  std::vector<std::string> variables = child_environment(environment, folder.path("cache"));
  std::vector<char*> argv = pointers(command), envp = pointers(variables);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    std::signal(SIGINT, SIG_DFL);
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    dup2(input, STDIN_FILENO);
    send_to(STDOUT_FILENO, out);
    send_to(STDERR_FILENO, err);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  return child;
}

Finished wait_for(pid_t child, const TempDir& folder) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          read_bytes(folder.path("out")), read_bytes(folder.path("err"))};
}

Finished run(std::vector<std::string> command, const std::vector<std::string>& environment) {
  const TempDir folder;
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const pid_t child = start(std::move(command), environment, folder, nothing);
  close(nothing);
  return wait_for(child, folder);
}

std::vector<std::string> kvasir_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> command{kvasir_binary()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace

Finished run_kvasir(const std::vector<std::string>& arguments,
                    const std::vector<std::string>& environment) {
  return run(kvasir_command(arguments), environment);
}

Finished run_shell(const std::string& script) {
  return run({"/bin/sh", "-c", "kvasir() { " + kvasir_binary() + " \"$@\"; }\n" + script}, {});
}

bool wait_until(const std::function<bool()>& holds) {
  for (int i = 0; i < 6000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

RunningKvasir::RunningKvasir(const std::vector<std::string>& arguments) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  input_ = ends[1];
  child_ = start(kvasir_command(arguments), {}, folder_, ends[0]);
  close(ends[0]);
}

RunningKvasir::~RunningKvasir() {
  close(input_);
  if (child_ < 0) return;
  kill(child_, SIGKILL);
  wait_for(child_, folder_);
}

// Before it runs kvasir the child is a copy of this process, which catches other signals.
bool RunningKvasir::catches_interrupts() const {
  const std::string folder = "/proc/" + std::to_string(child_) + "/";
  std::error_code error;
  if (std::filesystem::read_symlink(folder + "exe", error) != kvasir_binary()) return false;
  const std::string status = read_bytes(folder + "status");
  const size_t at = status.find("SigCgt:");
  if (at == std::string::npos) return false;
  return std::stoull(status.substr(at + 7), nullptr, 16) >> (SIGINT - 1) & 1;
}

std::string RunningKvasir::out() const { return read_bytes(folder_.path("out")); }
std::string RunningKvasir::err() const { return read_bytes(folder_.path("err")); }

void RunningKvasir::interrupt() { kill(child_, SIGINT); }

Finished RunningKvasir::finish() { return wait_for(std::exchange(child_, -1), folder_); }

}  // namespace kvasir::test
