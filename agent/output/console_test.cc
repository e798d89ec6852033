#include "agent/output/console.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tools/base/clock.h"

namespace convene::agent {
namespace {

// A console whose stdout is a pipe that this test reads when it likes.
struct Fixture {
  Fixture() {
    signal(SIGPIPE, SIG_IGN);
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    read_end.Reset(ends[0]);
    write_end.Reset(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  std::string ReadAll() {
    std::string text;
    char buffer[1 << 16];
    for (ssize_t n; (n = read(read_end.get(), buffer, sizeof(buffer))) > 0;) text.append(buffer, n);
    return text;
  }

  EventLoop loop;
  UniqueFd read_end;
  UniqueFd write_end;
};

TEST_CASE_METHOD(Fixture, "lines come out with their prefix") {
  Console console(loop, write_end.get(), STDERR_FILENO, {[] {}, [](auto, const auto&) {}});
  console.WriteLine(OutputStream::kStdout, "[3] ", "hello");
  console.SetInPlace(OutputStream::kStdout, "[0] ", "10%");  // No terminal: nothing.
  console.Flush();
  CHECK(ReadAll() == "[3] hello\n");
  CHECK_FALSE(console.IsTerminal(OutputStream::kStdout));
}

TEST_CASE_METHOD(Fixture, "a reader that pauses blocks nobody and loses nothing") {
  int relieved = 0;
  Console console(loop, write_end.get(), STDERR_FILENO,
                  {[&] { ++relieved; }, [](auto, const auto&) {}});
  const std::string line(1023, 'x');
  std::string expected;
  for (int i = 0; i < 2000; ++i) {
    console.WriteLine(OutputStream::kStdout, "", line);
    expected += line + "\n";
  }
  console.Flush();
  CHECK(console.Congested());
  // The descriptor that others share is left as it was.
  CHECK((fcntl(write_end.get(), F_GETFL) & O_NONBLOCK) == 0);
  CHECK_FALSE(console.Drain(absl::Milliseconds(1)));
  std::string text = ReadAll();
  while (text.size() < expected.size()) {
    loop.RunOnce(Clock::Real().Now() + absl::Seconds(5));
    text += ReadAll();
  }
  CHECK(text == expected);
  CHECK(relieved == 1);
  CHECK(console.Drain(absl::Milliseconds(1)));
}

TEST_CASE_METHOD(Fixture, "a reader that is gone costs the lines, told once and counted") {
  std::vector<std::string> told;
  Console console(loop, write_end.get(), STDERR_FILENO,
                  {[] {},
                   [&](OutputStream stream, const std::string& line) {
                     CHECK(stream == OutputStream::kStdout);
                     told.push_back(line);
                   }});
  CHECK(console.Loss().empty());
  read_end.Reset();
  for (int i = 0; i < 100; ++i) {
    console.WriteLine(OutputStream::kStdout, "[0] ", "nobody reads this");
    console.Flush();
  }
  CHECK(console.Drain(absl::Milliseconds(1)));
  CHECK(told == std::vector<std::string>{
                    "this command's stdout takes no output (Broken pipe): lines of the workers are "
                    "lost; the job goes on"});
  CHECK(console.Loss() == "100 lines (2.1 KiB) for stdout (Broken pipe)");
}

TEST_CASE_METHOD(Fixture, "what a reader does not take until the end is counted") {
  Console console(loop, write_end.get(), STDERR_FILENO, {[] {}, [](auto, const auto&) {}});
  console.Write(OutputStream::kStdout, std::string(1 << 20, 'x') + "\n");
  CHECK_FALSE(console.Drain(absl::Milliseconds(1)));
  CHECK_THAT(console.Loss(), Catch::StartsWith("1 line (") &&
                                 Catch::EndsWith(" for stdout (its reader takes nothing)"));
}

TEST_CASE_METHOD(Fixture, "a reader that takes little at a time is waited for up to the limit") {
  Console console(loop, write_end.get(), STDERR_FILENO, {[] {}, [](auto, const auto&) {}});
  console.Write(OutputStream::kStdout, std::string(1 << 22, 'x') + "\n");
  loop.Watch(read_end.get(), [this] {
    char few[16];
    CHECK(read(read_end.get(), few, sizeof(few)) > 0);
  });
  const MonotonicTime begin = Clock::Real().Now();
  CHECK_FALSE(console.Drain(absl::Seconds(20), absl::Milliseconds(10)));
  CHECK(Clock::Real().Now() - begin < absl::Seconds(10));
  loop.Forget(read_end.get());
}

// A terminal whose other side this test reads.
TEST_CASE("on a terminal a redrawn line stays below the lines that follow") {
  UniqueFd master(posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(master.valid());
  REQUIRE(grantpt(master.get()) == 0);
  REQUIRE(unlockpt(master.get()) == 0);
  UniqueFd terminal(open(ptsname(master.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  REQUIRE(terminal.valid());
  EventLoop loop;
  Console console(loop, terminal.get(), terminal.get(), {[] {}, [](auto, const auto&) {}});
  CHECK(console.IsTerminal(OutputStream::kStdout));
  console.SetInPlace(OutputStream::kStderr, "[0] ", "10%");
  console.WriteLine(OutputStream::kStderr, "[1] ", "hello");
  console.SetInPlace(OutputStream::kStderr, "", "");
  console.Flush();
  char buffer[256];
  const ssize_t n = read(master.get(), buffer, sizeof(buffer));
  REQUIRE(n > 0);
  CHECK(std::string(buffer, n) == "\r\033[K[0] 10%\r\033[K[1] hello\r\n[0] 10%\r\033[K");
}

TEST_CASE_METHOD(Fixture, "bytes as they are keep their row, and other lines begin a new one") {
  Console console(loop, write_end.get(), write_end.get(), {[] {}, [](auto, const auto&) {}});
  console.Write(OutputStream::kStdout, "(Pdb) ");
  console.Write(OutputStream::kStdout, "41\n(Pdb) ");
  console.WriteLine(OutputStream::kStderr, "[1] ", "hello");
  console.WriteLine(OutputStream::kStderr, "[1] ", "again");
  console.Flush();
  CHECK(ReadAll() == "(Pdb) 41\n(Pdb) \n[1] hello\n[1] again\n");
}

}  // namespace
}  // namespace convene::agent
