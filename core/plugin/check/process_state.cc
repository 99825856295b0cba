// See process_state.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/check/process_state.h"

#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace kvasir {
namespace {

constexpr int kSignals = 32;  // 1 to 31; real-time ones are nobody's

std::map<int, std::string> open_descriptors() {
  std::map<int, std::string> found;
  DIR* const folder = opendir("/proc/self/fd");
  if (!folder) return found;
  while (const dirent* entry = readdir(folder)) {
    const int descriptor = std::atoi(entry->d_name);
    if (entry->d_name[0] == '.' || descriptor == dirfd(folder)) continue;
    char target[4096];
    const std::string link = std::string("/proc/self/fd/") + entry->d_name;
    const ssize_t n = readlink(link.c_str(), target, sizeof target);
    found[descriptor] = n > 0 ? std::string(target, static_cast<size_t>(n)) : "";
  }
  closedir(folder);
  return found;
}

bool same_handler(const struct sigaction& a, const struct sigaction& b) {
  return a.sa_flags & SA_SIGINFO ? (b.sa_flags & SA_SIGINFO) && a.sa_sigaction == b.sa_sigaction
                                 : !(b.sa_flags & SA_SIGINFO) && a.sa_handler == b.sa_handler;
}

std::string name_of(const std::string& setting) { return setting.substr(0, setting.find('=')); }

// The first setting that only one of the sorted lists has.
std::string other_setting(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::string> other;
  std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(other));
  return other.empty() ? "" : name_of(other[0]);
}

}  // namespace

ProcessState::ProcessState() : descriptors_(open_descriptors()) {
  for (char** at = environ; at && *at; ++at) environment_.emplace_back(*at);
  std::sort(environment_.begin(), environment_.end());
  std::error_code error;
  folder_ = std::filesystem::current_path(error).string();
  handlers_.resize(kSignals);
  for (int signal = 1; signal < kSignals; ++signal)
    sigaction(signal, nullptr, &handlers_[static_cast<size_t>(signal)]);
}

std::string ProcessState::change(const ProcessState& before, const ProcessState& after,
                                 std::set<int>& own) {
  std::string fault;
  const auto say = [&](std::string text) {
    if (fault.empty()) fault = std::move(text);
  };
  for (const auto& [descriptor, target] : before.descriptors_) {
    const auto now = after.descriptors_.find(descriptor);
    const bool is_same = now != after.descriptors_.end() && now->second == target;
    if (!is_same && !own.contains(descriptor))
      say("it closed or replaced descriptor " + std::to_string(descriptor) + " (" + target +
          "), which it did not open");
  }
  for (const auto& [descriptor, target] : after.descriptors_)
    if (!before.descriptors_.contains(descriptor)) own.insert(descriptor);
  std::erase_if(own, [&](int descriptor) { return !after.descriptors_.contains(descriptor); });
  if (const std::string name = other_setting(before.environment_, after.environment_);
      !name.empty())
    say("it changed the environment variable " + name);
  if (before.folder_ != after.folder_) say("it changed the working folder to " + after.folder_);
  for (size_t signal = 1; signal < before.handlers_.size(); ++signal)
    if (!same_handler(before.handlers_[signal], after.handlers_[signal]))
      say(std::string("it changed the handler of SIG") + sigabbrev_np(static_cast<int>(signal)));
  return fault;
}

uint64_t allocated_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

}  // namespace kvasir
