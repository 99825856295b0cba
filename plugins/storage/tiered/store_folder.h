// A folder of blocks that outlive the process: one file per name and layer, which appears whole or
// not at all. Several processes may share it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/draft/store.h>
#include <kvasir/sdk/store.h>

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "plugins/storage/tiered/store_record.h"

namespace kvasir::tiered {

// FOLDER/RUN/about: a text; FOLDER/RUN/XX/NAME-BLOCK-LAYER: a block, XX the first digits of NAME;
// FOLDER/unfinished: files that are being written. What has another name is never touched.
class StoreFolder {
 public:
  // Throws sdk::Error(KVASIR_ERR_IO) when it is no folder, or others may write there.
  StoreFolder(std::string path, uint64_t limit_bytes);

  const std::string& path() const { return path_; }
  // Makes the folder, mode 0700, and the run's, and says what it is about. False with a reason in
  // `why`.
  bool open_run(const Hash& run, const std::string& about, std::string& why);

  enum class Found { kNo, kYes, kBad };
  // kBad: `why` says what is wrong; the file is gone. A hit counts as a use.
  Found read(const StoreName& name, const StoreLayout& layout, std::byte* to, std::string& why);
  // Keeps what is there already. Removes the files used longest ago when the limit asks for it.
  // False with a reason in `why`.
  bool write(const StoreName& name, const StoreLayout& layout, const std::byte* from,
             std::string& why);

  // See kvasir_store.
  std::vector<kvasir_store_run> list() const;
  kvasir_store_result verify(const kvasir_store_filter& filter, const sdk::BadRecord& bad) const;
  kvasir_store_result prune(const kvasir_store_filter& filter) const;

  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t bytes_written() const { return bytes_written_; }

 private:
  struct File {
    std::string path;
    StoreName name;
    uint64_t bytes = 0;
    int64_t used = 0;  // seconds since 1970
  };
  std::string unfinished_path() const;
  std::string run_path(const Hash& run) const;
  std::string path_of(const StoreName& name) const;
  std::vector<File> files(const kvasir_store_filter* filter) const;
  void make_room(uint64_t bytes);
  void remove_unfinished() const;

  std::string path_;
  uint64_t limit_bytes_;
  std::mutex mutex_;  // of the next two
  uint64_t bytes_ = 0;
  uint64_t bytes_until_scan_ = 0;  // that may be written before the folder is looked at again
  std::atomic<uint64_t> n_temporary_{0}, bytes_read_{0}, bytes_written_{0};
};

}  // namespace kvasir::tiered
