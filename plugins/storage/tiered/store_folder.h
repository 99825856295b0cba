// A folder of blocks that outlive the process: one file per name and layer, which appears whole or
// not at all. Several processes may share it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "plugins/storage/tiered/store_backend.h"
#include "plugins/storage/tiered/store_entries.h"

namespace kvasir::tiered {

// FOLDER/RUN/about: a text; FOLDER/RUN/XX/NAME-BLOCK-LAYER: a block, XX the first digits of NAME;
// FOLDER/unfinished: files that are being written. What has another name is never touched.
class StoreFolder final : public StoreBackend {
 public:
  // Throws sdk::Error(KVASIR_ERR_IO) when it is no folder, or others may write there.
  StoreFolder(std::string path, uint64_t limit_bytes);

  std::string where() const override { return path_; }
  // Makes the folder, mode 0700, and the run's, and says what it is about.
  bool open_run(const Hash& run, const std::string& about, std::string& why) override;
  size_t read(std::span<const StoreName> names, const StoreLayout& layout, std::span<Memory> to,
              std::string& why) override;
  // Removes the files used longest ago when the limit asks for it.
  bool write(std::span<const StoreBlock> blocks, const StoreLayout& layout,
             std::string& why) override;
  std::optional<std::chrono::milliseconds> patience() const override { return std::nullopt; }

  std::vector<kvasir_store_run> list() const override;
  kvasir_store_result verify(const kvasir_store_filter& filter,
                             const sdk::BadRecord& bad) const override;
  kvasir_store_result prune(const kvasir_store_filter& filter) const override;

  uint64_t bytes_read() const override { return bytes_read_; }
  uint64_t bytes_written() const override { return bytes_written_; }

 private:
  std::string unfinished_path() const;
  std::string run_path(const Hash& run) const;
  std::string path_of(const StoreName& name) const;
  std::vector<StoreEntry> files(const kvasir_store_filter* filter) const;
  Memory read_one(const StoreName& name, const StoreLayout& layout, std::string& why);
  bool write_one(const StoreName& name, const StoreLayout& layout, const std::byte* from,
                 std::string& why);
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
