// A thread that brings blocks back and writes them away, and reports what it was asked for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/completion.h>

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <variant>
#include <vector>

#include "plugins/storage/tiered/job_queues.h"
#include "plugins/storage/tiered/move.h"
#include "plugins/storage/tiered/move_queue.h"
#include "plugins/storage/tiered/token_set.h"

namespace kvasir::tiered {

// What is to come back of a block.
struct Load {
  uint64_t handle = 0;  // 0: no such block
  TokenSet tokens;
};

// A block on its way into a file, and others that go one file further to make room for it: the last
// one moves first.
struct Save {
  struct Step {
    uint64_t handle = 0;
    uint32_t file = 0;  // where to
    Extent from{};      // where it is; not valid: in no file
    Memory memory{};    // its bytes, once they are there
    bool begun = false;
  };
  std::vector<Step> steps;
  bool waits = false;  // for another one to end
};

struct LoadJob : QueuedJob<std::monostate> {
  std::vector<Load> loads{};
  std::vector<size_t> open{};   // loads that were not begun, the last one first
  std::vector<size_t> again{};  // whose block another load is bringing
  size_t n_ended = 0;
  uint64_t bytes = 0;
};

// One report per ticket, whatever happens. Blocks are on their way together, as many as the queue
// takes. Saves are in the queue until they have begun.
class Transfers : public JobQueues<LoadJob> {
 public:
  // What the thread calls, with no lock held. Exceptions are taken: a load whose call throws has
  // failed, a save that throws is given up.
  class Work {
   public:
    struct Begun {
      std::unique_ptr<Reading> reading;  // null: it has ended
      kvasir_status status = KVASIR_OK;  // KVASIR_AGAIN: another load of that block is under way
    };
    virtual Begun begin_load(const Load& load) = 0;
    virtual kvasir_status end_load(uint64_t handle, Reading& reading) = 0;
    // The next move of a save; null: it has ended, or waits.
    virtual std::unique_ptr<Move> next_move(Save& save) = 0;
    virtual void end_move(Save& save, Move& move) = 0;
    virtual void give_up(Save& save) noexcept = 0;  // its blocks stay where they are

   protected:
    ~Work() = default;
  };

  Transfers(Work& work, const kvasir_completion* completion) : JobQueues(completion), work_(work) {}
  ~Transfers();  // what is left of loads is reported as cancelled, saves are forgotten

  // The thread, and where the bytes move; once, before anything is loaded or saved. May throw.
  void start(std::unique_ptr<FileIo> io, uint32_t n_files);
  FlowCounts flow(uint32_t file) const;  // of reads so far
  // Urgent ones go first, also before the rest of a job that is not.
  void load(uint64_t ticket, std::vector<Load> loads, bool is_urgent);
  // The same, urgent, and without a ticket: waits until all are done, or for 30 s; then the rest is
  // cancelled.
  void load_now(std::vector<Load> loads);

 private:
  void serve();
  bool begin_next(std::unique_lock<std::mutex>& lock);  // false: nothing can begin now
  LoadJob* next_job();                                  // that has an open load
  void begin_load(LoadJob& job, std::unique_lock<std::mutex>& lock);
  void begin_save(std::unique_lock<std::mutex>& lock);
  // Without the lock.
  void go_on(Save& save);
  void go_on_waiting();
  void end_moves(std::unique_lock<std::mutex>& lock);
  void end_load(LoadJob& job, size_t load, kvasir_status status,
                std::unique_lock<std::mutex>& lock);

  Work& work_;
  std::vector<FlowCounts> flow_;    // by file; under the lock
  std::optional<MoveQueue> moves_;  // the thread's
  std::list<Save> begun_saves_;     // the thread's
};

}  // namespace kvasir::tiered
