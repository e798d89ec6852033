#include "agent/output/output_pump.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <optional>

#include "tools/base/clock.h"
#include "tools/base/testing/status_testing.h"

namespace convene::agent {
namespace {

// A console that nobody reads, and pumps into it.
struct Fixture {
  Fixture() {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    reader.Reset(ends[0]);
    writer.Reset(ends[1]);
    console.emplace(loop, writer.get(), writer.get(),
                    Console::Listener{[] {}, [](auto, const auto&) {}});
  }
  std::unique_ptr<OutputPump> Pump(StreamOutput output = {}) {
    auto pump = OutputPump::Create(loop, *console, {OutputStream::kStdout, output, [] {}});
    REQUIRE_OK(pump);
    fcntl((*pump)->write_end(), F_SETFL, O_NONBLOCK);
    return *std::move(pump);
  }
  // How much the pump takes of a worker that writes as much as it can, up to `most`.
  size_t Feed(OutputPump& pump, size_t most) {
    const std::string line = std::string(1023, 'x') + "\n";
    size_t fed = 0;
    while (fed < most) {
      const ssize_t n = write(pump.write_end(), line.data(), line.size());
      if (n > 0) {
        fed += n;
        continue;
      }
      loop.RunOnce(Clock::Real().Now());
      if (write(pump.write_end(), "\n", 1) != 1) break;
      ++fed;
    }
    return fed;
  }

  EventLoop loop;
  UniqueFd reader;
  UniqueFd writer;
  std::optional<Console> console;
};

TEST_CASE_METHOD(Fixture,
                 "who fills a slow console waits, others that write little do not notice") {
  const auto noisy = Pump();
  const auto quiet = Pump();
  for (const auto* pump : {&noisy, &quiet}) (*pump)->SetConsoleSlow(true);
  constexpr size_t kMuch = 4 << 20;
  CHECK(Feed(*noisy, kMuch) < 512 * 1024);  // Its allowance and a pipe's content.
  CHECK(Feed(*quiet, 32 * 1024) >= 32 * 1024);
  loop.RunOnce(Clock::Real().Now());
  CHECK(quiet->last_lines().Get().size() == 20);
  for (const auto* pump : {&noisy, &quiet}) (*pump)->SetConsoleSlow(false);
  CHECK(Feed(*noisy, kMuch) >= kMuch);
}

TEST_CASE_METHOD(Fixture, "a stream that is not on the console does not wait for it") {
  StreamOutput output;
  output.on_console = false;
  const auto pump = Pump(output);
  pump->SetConsoleSlow(true);
  CHECK(Feed(*pump, 4 << 20) >= 4 << 20);
}

TEST_CASE_METHOD(Fixture, "a line without an end is shown to readers and viewers while it waits") {
  RecentLines recent;
  StreamOutput output;
  output.recent = &recent;
  const auto pump = Pump(output);
  REQUIRE(write(pump->write_end(), "loading ... ", 12) == 12);
  loop.RunOnce(Clock::Real().Now() + absl::Seconds(5));
  const MonotonicTime due = pump->next_deadline();
  CHECK(due <= Clock::Real().Now() + LineAssembler::kOpenPatience);
  char text[64];
  fcntl(reader.get(), F_SETFL, O_NONBLOCK);
  CHECK(read(reader.get(), text, sizeof(text)) == -1);
  pump->OnTime(due);
  CHECK(pump->next_deadline() == MonotonicTime::InfiniteFuture());
  const ssize_t n = read(reader.get(), text, sizeof(text));
  REQUIRE(n > 0);
  CHECK(std::string(text, n) == "loading ... \n");
  rendezvous::LogBatch batch;
  CHECK(recent.Next(*recent.Open({}, -1, false, 0), &batch));
  REQUIRE(batch.lines.size() == 1);
  CHECK(batch.lines[0].text == "loading ... ");
  CHECK(pump->last_lines().Get().empty());
}

TEST_CASE_METHOD(Fixture, "a line that is whole by the time it would be shown is not torn") {
  const auto pump = Pump();
  REQUIRE(write(pump->write_end(), "loading ... ", 12) == 12);
  loop.RunOnce(Clock::Real().Now() + absl::Seconds(5));
  const MonotonicTime due = pump->next_deadline();
  REQUIRE(write(pump->write_end(), "done\n", 5) == 5);
  pump->OnTime(due);
  char text[64];
  const ssize_t n = read(reader.get(), text, sizeof(text));
  REQUIRE(n > 0);
  CHECK(std::string(text, n) == "loading ... done\n");
}

}  // namespace
}  // namespace convene::agent
