// kvasir.tiered's file: many calls at a time, past the page cache, and what the kernel may answer.
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <functional>

#include "tests/plugins/storage/tiered_fixture.h"

namespace {

// What the kernel answers to a call through io_uring, and may be made to answer instead. Called by
// the plugin's thread.
std::function<int(int)> answer_of;  // from what a call gave: bytes, or -errno
std::atomic<int> n_interrupted{0};  // waits that a signal shall end before they begin

}  // namespace

// The plugin's call of liburing comes here, for the executable's symbols go first.
extern "C" __attribute__((visibility("default"))) int io_uring_submit_and_wait(
    struct io_uring* ring, unsigned wait_nr) {
  using Function = int(struct io_uring*, unsigned);
  static auto* const real =
      reinterpret_cast<Function*>(dlsym(RTLD_NEXT, "io_uring_submit_and_wait"));
  if (n_interrupted > 0 && n_interrupted-- > 0) return -EINTR;
  const int submitted = real(ring, wait_nr);
  unsigned head = 0;
  struct io_uring_cqe* entry = nullptr;
  io_uring_for_each_cqe(ring, head, entry) {
    if (answer_of) entry->res = answer_of(entry->res);
  }
  return submitted;
}

namespace {
using namespace kvasir::test;

constexpr uint32_t kBlocks = 80;

float first_of(uint32_t block) { return 100.0f * static_cast<float>(block); }

// Blocks 0 to kBlocks - 1 in the file, the last one in memory as well.
void fill(Tiered& t) {
  for (uint32_t block = 0; block < kBlocks; ++block) t.store(block, first_of(block));
  t.settle(kBlocks, kBlocks - 1);
}
std::vector<uint32_t> first_blocks(uint32_t n) {
  std::vector<uint32_t> out(n);
  std::iota(out.begin(), out.end(), 0u);
  return out;
}
FakeHost::Report fetch_all(Tiered& t) { return t.fetch(first_blocks(kBlocks), 1); }
void check_all(Tiered& t) { t.check_blocks(first_blocks(kBlocks), first_of); }

// Answers of io_uring as they are again, whatever a test did.
struct Answers {
  explicit Answers(std::function<int(int)> answer) { answer_of = std::move(answer); }
  ~Answers() { answer_of = nullptr; }
  Answers(const Answers&) = delete;
};

bool has_uring() {
  struct io_uring ring {};
  if (io_uring_queue_init(1, &ring, 0) != 0) {
    MESSAGE("SKIPPED: no io_uring here");
    return false;
  }
  io_uring_queue_exit(&ring);
  return true;
}

// From now on this thread, and those that it starts, get `error` from io_uring_setup().
bool deny_uring(int error) {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {4, code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_SUITE("plugins/storage/tiered_file") {
  TEST_CASE("bytes come back the same, one call at a time or many, past the page cache or not") {
    for (const std::string io : {"uring", "thread"})
      for (const bool direct : {false, true}) {
        CAPTURE(io);
        CAPTURE(direct);
        if (io == "uring" && !has_uring()) continue;
        Tiered t({{"cached_blocks", int64_t{1}}, {"io", io}, {"direct", int64_t{direct}}});
        fill(t);
        const auto before = t.count()[1];
        CHECK(fetch_all(t).status == KVASIR_OK);
        const auto after = t.count()[1];
        CHECK(after.n_reads - before.n_reads == kBlocks - 1);
        CHECK(after.busy_nanos > before.busy_nanos);
        const uint64_t read = after.read_nanos - before.read_nanos;
        const uint64_t busy = after.busy_nanos - before.busy_nanos;
        if (io == "uring")
          CHECK(read > 4 * busy);  // 32 are under way together
        else
          CHECK(read <= busy);
        check_all(t);
        CHECK(t.host.lines().empty());
      }
  }

  TEST_CASE("no more calls are under way than queue_depth says, though there are more buffers") {
    if (!has_uring()) return;
    for (const uint64_t depth : {1, 3}) {
      Tiered t({{"cached_blocks", int64_t{1}}, {"queue_depth", static_cast<int64_t>(depth)}});
      fill(t);
      const auto before = t.count()[1];
      CHECK(fetch_all(t).status == KVASIR_OK);
      const auto after = t.count()[1];
      CHECK(after.n_reads - before.n_reads == kBlocks - 1);
      CHECK(after.read_nanos - before.read_nanos <= depth * (after.busy_nanos - before.busy_nanos));
      check_all(t);
    }
  }

  TEST_CASE("past the page cache, calls are aligned, and no page is read twice") {
    Tiered t({{"cached_blocks", int64_t{1}}, {"direct", int64_t{1}}, {"gap_bytes", int64_t{0}}});
    const int file = ::open(t.file().c_str(), O_RDONLY);
    const bool is_direct = (::fcntl(file, F_GETFL) & O_DIRECT) != 0;
    ::close(file);
    fill(t);
    // The descriptor that was opened anew has flags of its own: the plugin's say what it does.
    const std::string info =
        "/proc/self/fdinfo/" + std::filesystem::path(t.file()).filename().string();
    std::string text;
    if (FILE* in = std::fopen(info.c_str(), "r")) {
      char bytes[256];
      text.assign(bytes, std::fread(bytes, 1, sizeof bytes, in));
      std::fclose(in);
    }
    const auto flags = std::stoul(text.substr(text.find("flags:") + 6), nullptr, 8);
    if (!is_direct && (flags & O_DIRECT) == 0) {
      MESSAGE("SKIPPED: this file system has no O_DIRECT");
      return;
    }
    CHECK(std::filesystem::file_size(t.file()) == kBlocks * 4096);
    CHECK(t.count()[1].bytes_written == kBlocks * 4096);
    const uint64_t before = t.count()[1].bytes_read;
    CHECK(t.fetch_tokens(3, 0b10000001, 1) == KVASIR_OK);  // 576 bytes from end to end
    const uint64_t read = t.count()[1].bytes_read - before;
    CHECK(read % 512 == 0);
    CHECK(read <= 4096);
    t.check_tokens(t.acquire_tokens(3, 0b10000001), 0b10000001, first_of(3));
  }

  TEST_CASE("a block longer than a call is read in several, each token with its own bytes") {
    // 1024 tokens of 2 heads: 147,456 bytes of records, in pieces of 56.
    for (const bool direct : {false, true}) {
      CAPTURE(direct);
      Tiered t({{"cached_blocks", int64_t{1}},
                {"direct", int64_t{direct}},
                {"read_bytes", int64_t{4096}},
                {"queue_depth", int64_t{3}}},
               1024);
      for (uint32_t block = 0; block < 3; ++block) {
        kvasir_lease lease = t.acquire(block, KVASIR_ACQUIRE_WRITE);
        auto *k = static_cast<float*>(lease.k), *v = static_cast<float*>(lease.v);
        for (uint32_t i = 0; i < 1024 * 16; ++i) {
          k[i] = static_cast<float>(i + block);
          v[i] = -k[i];
        }
        t.seal(block, lease);
        t.release(lease);
      }
      for (int i = 0; i < 5000 && (t.resident(0) || t.resident(1)); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        CHECK(t.resident(2));  // and so the last one used
      }
      REQUIRE(!t.resident(0));
      REQUIRE(!t.resident(1));
      CHECK(t.fetch({0, 1}, 1).status == KVASIR_OK);
      const kvasir_lease leases[] = {t.acquire(0), t.acquire(1)};
      for (uint32_t block = 0; block < 2; ++block) {
        const kvasir_lease& lease = leases[block];
        REQUIRE(lease.state == KVASIR_LEASE_RESIDENT);
        const auto *k = static_cast<const float*>(lease.k), *v = static_cast<const float*>(lease.v);
        uint32_t n_wrong = 0;
        for (uint32_t i = 0; i < 1024 * 16; ++i)
          n_wrong += k[i] != static_cast<float>(i + block) || v[i] != -k[i];
        CHECK(n_wrong == 0);
      }
      CHECK(t.count()[1].n_reads >= 2 * 37);
    }
  }

  TEST_CASE("loads of one block from several tickets are one after another, and add up") {
    Tiered t({{"cached_blocks", int64_t{1}}, {"gap_bytes", int64_t{0}}});
    fill(t);
    std::vector<uint64_t> needed = {0b00000011, 0b00000110, 0b11000000, 0b11111111};
    const kvasir_io_hint ahead = {sizeof ahead, 0}, now = {sizeof now, 2};
    for (uint64_t i = 0; i < 40; ++i) {
      kvasir_block_key name = Tiered::key(static_cast<uint32_t>(i / 4));
      name.needed = &needed[i % 4];
      uint32_t accepted = 0;
      REQUIRE(t.plugin->prefetch(t.plugin.self(), &name, 1, sizeof name, i % 2 ? &now : &ahead,
                                 100 + i, &accepted, t.plugin.err()) == KVASIR_OK);
    }
    for (uint64_t i = 0; i < 40; ++i) CHECK(t.host.wait(100 + i).status == KVASIR_OK);
    t.check_blocks(first_blocks(10), first_of);
    CHECK(t.count()[1].bytes_read == 10 * kFileBytes);
  }

  TEST_CASE("calls that do a half, or are interrupted, change no byte") {
    if (!has_uring()) return;
    for (const bool direct : {false, true}) {
      CAPTURE(direct);
      std::atomic<uint64_t> n{0};
      const Answers answers([&](int result) {
        const uint64_t i = n++;
        if (i % 3 == 0) return -EINTR;
        if (i % 3 == 1) return -EAGAIN;
        return result > 4096 || (result > 1 && !direct) ? result - result / 2 : result;
      });
      n_interrupted = 5;
      Tiered t({{"cached_blocks", int64_t{1}}, {"direct", int64_t{direct}}});
      fill(t);
      n_interrupted = 5;
      CHECK(fetch_all(t).status == KVASIR_OK);
      check_all(t);
      CHECK(n > 4 * kBlocks);
      CHECK(t.host.lines().empty());
    }
  }

  TEST_CASE("a call that is refused past the page cache goes through it from then on") {
    if (!has_uring()) return;
    Tiered t({{"cached_blocks", int64_t{1}}, {"direct", int64_t{1}}});
    std::atomic<int> n{0};
    // A write, and a read that was under way when that was refused.
    const Answers answers(
        [&](int result) { return ++n == 3 || n == kBlocks + 10 ? -EINVAL : result; });
    fill(t);
    CHECK(fetch_all(t).status == KVASIR_OK);
    check_all(t);
    CHECK(n >= 2 * kBlocks);
    CHECK(t.host.lines().empty());
  }

  TEST_CASE("a read that fails loses its block, by name, and no other") {
    if (!has_uring()) return;
    for (const auto& [error, text] :
         {std::pair{-EIO, "Input/output error"}, std::pair{0, "Input/output error"}}) {
      Tiered t({{"cached_blocks", int64_t{1}}});
      fill(t);
      std::atomic<uint64_t> n{0};
      const int with = error;
      const Answers answers([&](int result) { return n++ == 10 ? with : result; });
      const auto report = fetch_all(t);
      CHECK(report.status == KVASIR_ERR_IO);
      std::vector<uint32_t> kept;
      for (uint32_t block = 0; block < kBlocks; ++block)
        if (report.blocks[block] == KVASIR_OK)
          kept.push_back(block);
        else
          CHECK(t.acquire(block).state == KVASIR_LEASE_FAILED);
      CHECK(kept.size() == kBlocks - 1);
      t.check_blocks(kept, first_of);
      REQUIRE(t.host.lines().size() == 1);
      CHECK(t.host.lines()[0].find(text) != std::string::npos);
      CHECK(t.host.lines()[0].find("could not be read back") != std::string::npos);
    }
  }

  TEST_CASE("a full disk keeps blocks in memory, says so once, and loses nothing") {
    if (!has_uring()) return;
    std::atomic<uint64_t> n{0};
    std::atomic<bool> is_full{true};
    const Answers answers([&](int result) { return is_full && n++ >= 2 ? -ENOSPC : result; });
    Tiered t({{"cached_blocks", int64_t{1}}});
    for (uint32_t block = 0; block < 12; ++block) t.store(block, first_of(block));
    for (int i = 0; i < 5000 && (n < 12 || t.host.lines().empty()); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    is_full = false;
    CHECK(t.fetch(first_blocks(12), 5).status == KVASIR_OK);
    t.check_blocks(first_blocks(12), first_of);
    REQUIRE(t.host.lines().size() == 1);
    CHECK(t.host.lines()[0].find("No space left on device") != std::string::npos);
  }

  TEST_CASE(
      "where the kernel denies io_uring the file is read one call at a time, and it is said") {
    for (const int error : {ENOSYS, EPERM}) {
      CAPTURE(error);
      std::thread([&] {
        if (!deny_uring(error)) {
          MESSAGE("SKIPPED: no seccomp here");
          return;
        }
        Tiered t({{"cached_blocks", int64_t{1}}});
        fill(t);
        CHECK(fetch_all(t).status == KVASIR_OK);
        check_all(t);
        REQUIRE(t.host.lines().size() == 1);
        CHECK(t.host.lines()[0].find("the kernel gives no io_uring (") != std::string::npos);
        const Tiered quiet({{"io", std::string("thread")}});
        CHECK(quiet.host.lines().empty());
      }).join();
    }
  }

  TEST_CASE("a host that knows fewer fields of a tier's counters gets those and no more") {
    constexpr uint32_t kOldBytes = offsetof(kvasir_tier_count, n_reads);
    Tiered t({{"cached_blocks", int64_t{1}}});
    fill(t);
    const auto whole = t.count();
    const auto* counters = static_cast<const kvasir_tier_counters*>(
        t.plugin->base.get_extension(t.plugin.self(), KVASIR_EXT_TIER_COUNTERS));
    alignas(kvasir_tier_count) std::array<unsigned char, 2 * kOldBytes + 64> bytes{};
    bytes.fill(0xa5);
    uint32_t n = 0;
    REQUIRE(counters->count(t.plugin.self(), reinterpret_cast<kvasir_tier_count*>(bytes.data()), 2,
                            kOldBytes, &n, t.plugin.err()) == KVASIR_OK);
    CHECK(n == 2);
    for (uint32_t tier = 0; tier < 2; ++tier)
      CHECK(std::memcmp(&bytes[tier * kOldBytes], &whole[tier], kOldBytes) == 0);
    for (size_t i = 2 * kOldBytes; i < bytes.size(); ++i) CHECK(bytes[i] == 0xa5);
  }

  TEST_CASE("sizes of calls that make no sense are refused by name") {
    const CompletingHost host;
    const PluginInstance<kvasir_storage> plugin(host, "tiered", {{"read_bytes", int64_t{1000}}});
    CHECK(plugin.status() == KVASIR_ERR_INVALID);
    CHECK(plugin.text().find("read_bytes = 1000: expected 4 KiB to 1 GiB") != std::string::npos);
  }
}

}  // namespace
