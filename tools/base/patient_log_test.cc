#include "tools/base/patient_log.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <string>

#include "absl/strings/str_cat.h"
#include "tools/base/clock.h"
#include "tools/base/unique_fd.h"

namespace convene {
namespace {

constexpr absl::Duration kShort = absl::Milliseconds(1);

// A pipe or a socket that this test reads when it likes.
struct Fixture {
  Fixture() {
    std::signal(SIGPIPE, SIG_IGN);
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    Take(ends);
  }
  void UseSocket() {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    Take(ends);
  }
  void Take(const int (&ends)[2]) {
    read_end.Reset(ends[0]);
    write_end.Reset(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  std::string ReadAll() const {
    std::string text;
    char buffer[1 << 16];
    for (ssize_t n; (n = read(read_end.get(), buffer, sizeof(buffer))) > 0;) text.append(buffer, n);
    return text;
  }

  UniqueFd read_end;
  UniqueFd write_end;
};

TEST_CASE_METHOD(Fixture, "lines come out at once") {
  PatientLog log(write_end.get(), kShort);
  log.Add("one\n");
  CHECK(ReadAll() == "one\n");
  log.Add("two\n");
  CHECK(ReadAll() == "two\n");
}

TEST_CASE_METHOD(Fixture, "a reader that stands still costs one wait and, later, lines") {
  const bool is_socket = GENERATE(false, true);
  if (is_socket) UseSocket();
  PatientLog log(write_end.get(), kShort);
  const std::string line = std::string(99, 'x') + "\n";
  // More lines than a pipe or a socket takes and PatientLog keeps.
  constexpr int kLines = 20'000;
  for (int i = 0; i < kLines; ++i) log.Add(line);
  CHECK((fcntl(write_end.get(), F_GETFL) & O_NONBLOCK) ==
        0);  // Other processes share the descriptor.
  std::string text;
  const auto read_until = [&](const std::string& wanted) {
    for (int i = 0; i < 100 && text.find(wanted) == std::string::npos; ++i) {
      text += ReadAll();
      log.Flush(kShort);
    }
  };
  read_until("are missing here");
  log.Add("the end\n");
  read_until("the end\n");
  const size_t notice = text.find("[");
  REQUIRE(notice != std::string::npos);
  const size_t kept = notice / line.size();
  CHECK(text.substr(notice) ==
        absl::StrCat("[", kLines - kept,
                     " lines of this log are missing here: the reader took none]\nthe end\n"));
}

TEST_CASE_METHOD(Fixture, "the last lines wait longer, for a reader that is slow") {
  PatientLog log(write_end.get(), kShort);
  for (int i = 0; i < 1000; ++i) log.Add(std::string(99, 'x') + "\n");
  const MonotonicTime begin = Clock::Real().Now();
  log.Flush(absl::Milliseconds(20));
  CHECK(Clock::Real().Now() - begin >= absl::Milliseconds(20));
  const size_t first = ReadAll().size();
  log.Flush(absl::Milliseconds(20));
  CHECK(first + ReadAll().size() == 100'000);
}

TEST_CASE_METHOD(Fixture, "a reader that is gone, or never was, costs nothing") {
  PatientLog log(write_end.get(), absl::Hours(1));
  read_end.Reset();
  log.Add("one\n");
  log.Flush(absl::Hours(1));
  PatientLog nowhere(-1, absl::Hours(1));
  nowhere.Add("one\n");
  nowhere.Flush(absl::Hours(1));
}

}  // namespace
}  // namespace convene
