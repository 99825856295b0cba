// See process.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

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

Finished run(std::vector<std::string> command, const std::vector<std::string>& environment) {
  const TempDir folder;
  const std::string out = folder.path("out"), err = folder.path("err");
  std::vector<std::string> variables = child_environment(environment, folder.path("cache"));
  std::vector<char*> argv = pointers(command), envp = pointers(variables);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    const int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    send_to(STDOUT_FILENO, out);
    send_to(STDERR_FILENO, err);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_bytes(out),
          read_bytes(err)};
}

}  // namespace

Finished run_kvasir(const std::vector<std::string>& arguments,
                    const std::vector<std::string>& environment) {
  std::vector<std::string> command{kvasir_binary()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run(std::move(command), environment);
}

Finished run_shell(const std::string& script) {
  return run({"/bin/sh", "-c", "kvasir() { " + kvasir_binary() + " \"$@\"; }\n" + script}, {});
}

}  // namespace kvasir::test
