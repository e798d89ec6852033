#include "tools/base/shared_output.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <string>

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

}  // namespace
}  // namespace convene
