// See run_folder.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <thread>
#include <tuple>

#include "core/error.h"
#include "core/platform/output_file.h"
#include "tools/kvasir/cli/files.h"

namespace kvasir::tool {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMeta = "run_meta.json";
constexpr const char* kPredictions = "predictions.csv";
constexpr const char* kLayers = "layers.csv";
constexpr uint64_t kMostQuestions = 64;  // more than any run asks about a context

// Lines that end; what stands behind the last line end was being written.
std::vector<std::string> whole_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0;;) {
    const size_t end = text.find('\n', begin);
    if (end == text.npos) return lines;
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

using SampleKey = std::tuple<std::string, uint32_t, uint64_t>;
SampleKey key_of(const AbRecord& r) { return {r.task, r.length, r.index}; }

// The lines of a file of records below its header; where the last one is none, its writer was
// killed.
template <class Record, class Parse>
std::vector<Record> read_lines(const std::string& path, const std::string& header,
                               const Parse& parse) {
  std::vector<Record> out;
  if (!fs::exists(path)) return out;
  const std::vector<std::string> lines = whole_lines(read_file(path, "RUN"));
  if (!lines.empty() && lines[0] != header)
    throw input_error(path + ":1: not the columns of a run: " + lines[0].substr(0, 60));
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::optional<Record> record = parse(lines[i]);
    if (!record && i + 1 == lines.size()) break;
    if (!record)
      throw input_error(path + ":" + std::to_string(i + 1) +
                        ": not a record of a run; was the file edited?");
    out.push_back(*record);
  }
  return out;
}

// Samples have a record for each question and strategy, but for those that failed before.
std::vector<AbRecord> whole_samples(std::vector<AbRecord> records, const Json& meta,
                                    const std::string& path) {
  std::map<std::string, bool> active;
  for (const Json& entrant : meta.at("declared").at("strategies"))
    active[entrant.at("label").get<std::string>()] = true;
  const size_t n_questions = meta.at("declared").at("questions");
  std::vector<AbRecord> out;
  for (size_t begin = 0; begin < records.size();) {
    size_t n_active = 0;
    for (const auto& [label, is_active] : active) n_active += is_active ? n_questions : 0;
    size_t end = begin;
    while (end < records.size() && key_of(records[end]) == key_of(records[begin])) ++end;
    if (end - begin < n_active && end < records.size())
      throw input_error(path + ":" + std::to_string(begin + 2) + ": " +
                        std::to_string(end - begin) + " of a sample's " + std::to_string(n_active) +
                        " records, and others behind them; was the file edited?");
    if (end - begin < n_active) break;
    for (size_t i = begin; i < end; ++i)
      if (records[i].question != (i - begin) % n_questions + 1)
        throw input_error(path + ":" + std::to_string(i + 2) + ": question " +
                          std::to_string(records[i].question) +
                          " is not the next one; was the file edited?");
    for (; begin < end; ++begin) {
      if (records[begin].failed) active[records[begin].strategy] = false;
      out.push_back(std::move(records[begin]));
    }
  }
  return out;
}

void write_whole(const std::string& path, const std::string& text) {
  OutputFile out(path, {.flag = "-o "});
  out.write(text.data(), text.size());
  out.finish();
}

int open_to_append(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) throw write_error("-o " + path + ": cannot be written", errno);
  return fd;
}

void append(int fd, const std::string& path, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw write_error("-o " + path + ": cannot be written", errno);
    done += static_cast<size_t>(n);
  }
  if (::fdatasync(fd) != 0 && errno != EINVAL)
    throw write_error("-o " + path + ": cannot be written", errno);
}

// The first place where two documents differ, with what each says there.
std::string difference(const Json& there, const Json& here, const std::string& at) {
  if (there == here) return "";
  if (there.is_object() && here.is_object())
    for (const auto& [key, value] : there.items()) {
      if (!here.contains(key)) return at + key + " is missing now";
      const std::string below = difference(value, here.at(key), at + key + ".");
      if (!below.empty()) return below;
    }
  if (there.is_array() && here.is_array() && there.size() == here.size())
    for (size_t i = 0; i < there.size(); ++i) {
      const std::string below = difference(there[i], here[i], at + std::to_string(i) + ".");
      if (!below.empty()) return below;
    }
  const auto shown = [](const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80);
  };
  return at.substr(0, at.size() - 1) + " is " + shown(there) + " there and " + shown(here) + " now";
}

// A program or plugin file that both name, and that has changed. "": none.
std::string rebuilt_file(const Json& there, const Json& here) {
  const auto of = [](const Json& json, const char* key) { return json.value(key, Json()); };
  if (of(there, "program_xxh3") != of(here, "program_xxh3")) return "kvasir";
  for (const Json& before : of(there, "plugins"))
    for (const Json& now : of(here, "plugins"))
      if (of(before, "file") == of(now, "file") && of(before, "xxh3") != of(now, "xxh3"))
        return of(now, "file").get<std::string>();
  return "";
}

}  // namespace

bool has_run(const std::string& folder) { return fs::exists(fs::path(folder) / kMeta); }

AbRun read_run(const std::string& folder) {
  const std::string meta = folder + "/" + kMeta;
  if (!fs::exists(meta))
    throw input_error(folder + ": no " + kMeta + " there: not the folder of a kvasir ab run");
  AbRun run;
  try {
    run.meta = Json::parse(read_file(meta, "RUN"));
    if (run.meta.at("format") != 3)
      throw input_error(meta + ": written by another version of kvasir");
    const uint64_t n_questions = run.meta.at("declared").at("questions");
    if (n_questions < 1 || n_questions > kMostQuestions)
      throw input_error(meta + ": declared.questions is " + std::to_string(n_questions) +
                        ", expected 1 to " + std::to_string(kMostQuestions));
    const std::string predictions = folder + "/" + kPredictions;
    run.records = whole_samples(read_lines<AbRecord>(predictions, record_header(), parse_record),
                                run.meta, predictions);
    run.layers =
        read_lines<LayerRecord>(folder + "/" + kLayers, layer_header(), parse_layer_record);
  } catch (const Json::exception& e) {
    throw input_error(meta + ": not what kvasir ab writes: " + e.what());
  }
  return run;
}

std::map<std::string, std::string> failed_in(const AbRun& run) {
  std::map<std::string, std::string> out;
  for (const AbRecord& record : run.records)
    if (record.failed) out[record.strategy] = record.given;
  return out;
}

RunFolder::RunFolder(const std::string& folder, const Json& meta) : folder_(folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw input_error("-o " + folder + ": the folder cannot be made: " + error.message());
  lock();
  if (!fs::exists(path(kMeta))) {
    if (fs::exists(path(kPredictions)))
      throw input_error("-o " + folder + ": has a " + kPredictions + " but no " + kMeta +
                        ": give another folder");
    write(kMeta, meta.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    run_.meta = meta;
  } else {
    run_ = read_run(folder);
    const std::string differs = difference(run_.meta.at("declared"), meta.at("declared"), "");
    if (!differs.empty())
      throw input_error("-o " + folder + ": holds another run (" + differs +
                        "): give another folder, or the same flags to go on with it");
    if (const std::string file = rebuilt_file(run_.meta, meta); !file.empty())
      throw input_error("-o " + folder + ": the run began with another build of " + file +
                        ": its samples would not be of one program; begin a new run");
  }
  open_predictions();
}

RunFolder::~RunFolder() {
  for (const int fd : {predictions_, lock_})
    if (fd >= 0) ::close(fd);
}

void RunFolder::lock() {
  lock_ = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_ < 0) throw write_error("-o " + folder_ + ": cannot be opened", errno);
  constexpr int kTries = 30;
  for (int i = 0; ::flock(lock_, LOCK_EX | LOCK_NB) != 0; ++i) {
    if (errno != EWOULDBLOCK) return;  // a file system without locks
    if (i == kTries) throw input_error("-o " + folder_ + ": another kvasir ab is writing there");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

// The file holds whole samples and nothing else from here on.
void RunFolder::open_predictions() {
  std::string text = record_header() + "\n";
  for (const AbRecord& record : run_.records) text += to_line(record) + "\n";
  write(kPredictions, text);
  predictions_ = open_to_append(path(kPredictions));
}

void RunFolder::add(const std::vector<AbRecord>& records) {
  std::string lines;
  for (const AbRecord& record : records) lines += to_line(record) + "\n";
  append(predictions_, path(kPredictions), lines);
  // As a run that is read again has them: numbers rounded.
  for (const AbRecord& record : records) run_.records.push_back(*parse_record(to_line(record)));
}

void RunFolder::add_layers(const std::vector<LayerRecord>& records) {
  run_.layers.insert(run_.layers.end(), records.begin(), records.end());
  std::string text = layer_header() + "\n";
  for (LayerRecord& record : run_.layers) {
    text += to_line(record) + "\n";
    record = *parse_layer_record(to_line(record));  // as a run that is read again has it
  }
  write(kLayers, text);
}

void RunFolder::write(const std::string& name, const std::string& text) const {
  write_whole(path(name), text);
}

}  // namespace kvasir::tool
