#include "tools/base/shared_output.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <iterator>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/unique_fd.h"

namespace convene {
namespace {

// Until its end no file of this process grows beyond `bytes`.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit = {bytes, before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FileLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_ = {};
};

void Say(SharedOutput* output, const std::string& text) {
  std::string pending = text;
  output->Write(&pending);
  CHECK(pending.empty());
}

TEST_CASE("a device without room takes nothing, and what it does not take is counted") {
  const UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  SharedOutput output(full.get());
  CHECK_FALSE(output.lost().any());
  Say(&output, "one\ntwo\n");
  Say(&output, "three\n");
  CHECK(output.lost().lines == 3);
  CHECK(output.lost().bytes == 14);
  CHECK(output.lost().error == ENOSPC);
  CHECK(output.lost().Amount() == "3 lines (14 B)");
  CHECK(output.lost().Reason() == "No space left on device");
}

TEST_CASE("a file that has room again tells what is missing, and goes on") {
  const testing::TempDir directory;
  const std::string path = directory.File("out");
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  SharedOutput output(file.get());
  {
    const FileLimit limit(6);
    Say(&output, "one\ntwo\n");  // Cut after "tw".
    Say(&output, "three\n");
  }
  Say(&output, "four\n");
  Say(&output, "five\n");
  CHECK(output.lost().lines == 2);
  CHECK(output.lost().bytes == 8);
  CHECK(*ReadFile(path) ==
        "one\ntw\n[convene: 2 lines (8 B) are missing here: File too large]\nfour\nfive\n");
}

TEST_CASE("a reader that is gone is not tried again, nor is a descriptor that takes no output") {
  std::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd write_end(ends[1]);
  close(ends[0]);
  SharedOutput pipe(write_end.get());
  Say(&pipe, "one\n");
  Say(&pipe, "two\n");
  CHECK(pipe.lost().Amount() == "2 lines (8 B)");
  CHECK(pipe.lost().error == EPIPE);
  const UniqueFd folder(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  SharedOutput closed(folder.get());
  Say(&closed, "one\n");
  CHECK(closed.lost().error == EBADF);
  SharedOutput none(-1);
  Say(&none, "one\n");
  Say(&none, "one\n");
  CHECK(none.lost().lines == 2);
  CHECK(none.lost().error == EBADF);
}

TEST_CASE("a pipe that is nearly full takes whole lines, so that another writer cuts none in two") {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  const int room = fcntl(ends[1], F_GETPIPE_SZ);
  REQUIRE(room > 2 * PIPE_BUF);
  const std::string line = std::string(900, '0') + "\n";
  std::string lines;
  while (lines.size() < 2 * static_cast<size_t>(room)) lines += line;
  const std::string long_line = std::string(PIPE_BUF, '1') + "\n";
  std::string pending = lines;
  SharedOutput(ends[1]).Write(&pending);
  REQUIRE(pending.size() < lines.size());
  CHECK(pending.size() % line.size() == 0);
  // A line longer than a pipe takes at once goes out all the same.
  std::string taken(room, '\0');
  REQUIRE(read(ends[0], &taken[0], taken.size()) > 0);
  pending = long_line;
  SharedOutput(ends[1]).Write(&pending);
  CHECK(pending.empty());
}

// Whether this thread heeds no modes of files, if it has the right to that at all (root).
bool UseRightToAnyFile(bool use) {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct rights[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, rights) != 0) return false;
  const __u32 bit = 1U << CAP_DAC_OVERRIDE;
  rights[0].effective = (rights[0].effective & ~bit) | (use ? rights[0].permitted & bit : 0);
  return syscall(SYS_capset, &header, rights) == 0;
}

// A pipe that this process may write to and not open again, as if another user had made it.
struct ForeignPipe {
  ForeignPipe() {
    std::signal(SIGPIPE, SIG_IGN);
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    read_end.Reset(ends[0]);
    write_end.Reset(ends[1]);
    REQUIRE(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    REQUIRE(fchmod(ends[1], 0) == 0);
    // Root would open it all the same.
    REQUIRE(UseRightToAnyFile(false));
    const UniqueFd again(open(absl::StrCat("/proc/self/fd/", ends[1]).c_str(), O_WRONLY));
    REQUIRE_FALSE(again.valid());
  }
  ~ForeignPipe() { UseRightToAnyFile(true); }
  ForeignPipe(const ForeignPipe&) = delete;
  ForeignPipe& operator=(const ForeignPipe&) = delete;

  std::string ReadAll() const {
    std::string text;
    char buffer[1 << 16];
    for (ssize_t n; (n = read(read_end.get(), buffer, sizeof(buffer))) > 0;) text.append(buffer, n);
    return text;
  }
  // Writes more than the pipe holds, in turn with its reader.
  std::string Carry(const std::string& text) const {
    SharedOutput output(write_end.get());
    std::string pending = text;
    std::string read;
    while (!pending.empty()) {
      const size_t before = pending.size();
      output.Write(&pending);
      if (pending.size() == before) break;
      output.Write(&pending);  // A full pipe takes nothing.
      read += ReadAll();
    }
    return output.lost().any() ? output.lost().Reason() : read;
  }

  UniqueFd read_end;
  UniqueFd write_end;
};

// From now on this thread's pwritev2 fails, as on a kernel that has none for pipes.
bool ForbidPwritev2() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pwritev2, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {std::size(filter), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_CASE_METHOD(ForeignPipe, "a pipe that cannot be opened again takes what fits, and no wait") {
  std::string text;
  while (text.size() < 500'000) absl::StrAppend(&text, "line ", text.size(), "\n");
  alarm(30);  // A write that waits for the reader ends this test.
  SECTION("on this kernel") { CHECK(Carry(text) == text); }
  SECTION("on an older one") {
    bool is_forbidden = false;
    std::string read;
    std::thread([&] {
      is_forbidden = ForbidPwritev2();
      read = Carry(text);
    }).join();
    CHECK(is_forbidden);
    CHECK(read == text);
  }
  alarm(0);
  CHECK((fcntl(write_end.get(), F_GETFL) & O_NONBLOCK) == 0);
}

TEST_CASE_METHOD(ForeignPipe,
                 "a reader of such a pipe that is gone is told apart from a slow one") {
  read_end.Reset();
  SharedOutput output(write_end.get());
  Say(&output, "one\n");
  CHECK(output.lost().error == EPIPE);
}

}  // namespace
}  // namespace convene
