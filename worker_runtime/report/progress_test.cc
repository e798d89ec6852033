#include "worker_runtime/report/progress.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <string>

namespace convene::worker {
namespace {

ProgressState At(int64_t step) {
  return {.step = step,
          .steps = 500,
          .loss = 2.34118,
          .grad_norm = 0.813,
          .learning_rate = 9.8e-4,
          .tokens_per_second = 41'234,
          .remaining = absl::Seconds(42)};
}

MonotonicTime Millis(int64_t milliseconds) {
  return MonotonicTime::FromEpoch(absl::Hours(1) + absl::Milliseconds(milliseconds));
}

// The text that a printer writes when `use` uses it.
template <typename Use>
std::string Written(bool is_terminal, int64_t log_every, Use use) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  REQUIRE(stream != nullptr);
  ProgressPrinter printer(stream, is_terminal, log_every);
  use(printer);
  std::fclose(stream);
  const std::string result(text, size);
  std::free(text);
  return result;
}

TEST_CASE("the bar shows how far a file has come") {
  CHECK(ProgressBar(0, 4096) == "[--------------------]   0%  0 B of 4.0 KiB");
  CHECK(ProgressBar(2048, 4096) == "[##########----------]  50%  2.0 KiB of 4.0 KiB");
  CHECK(ProgressBar(4096, 4096) == "[####################] 100%  4.0 KiB of 4.0 KiB");
}

TEST_CASE("a progress line is short and complete") {
  CHECK(ProgressLine(At(120)) ==
        "step 120/500  loss 2.3412  grad 0.81  lr 9.8e-04  41.2k tok/s  ETA 0:42");
  ProgressState state = At(1);
  state.loss = NAN;
  state.remaining = absl::InfiniteDuration();
  CHECK(ProgressLine(state) ==
        "step 1/500  loss nan  grad 0.81  lr 9.8e-04  41.2k tok/s  ETA -:--");
  state = At(120);
  state.reward_accuracy = 0.714;
  state.reward_margin = 0.1236;
  CHECK(ProgressLine(state) ==
        "step 120/500  loss 2.3412  right 71 %  margin 0.124  grad 0.81  lr 9.8e-04  41.2k tok/s  "
        "ETA 0:42");
}

TEST_CASE("the time left is unknown before a step, and forgets the slow first one") {
  TokenRate rate;
  CHECK(rate.Remaining(10) == absl::InfiniteDuration());
  CHECK(rate.tokens_per_second() == 0);
  rate.Record(absl::Seconds(9), 2);
  CHECK(rate.Remaining(20) == absl::Seconds(90));
  rate.Record(absl::Seconds(1), 2);
  CHECK(rate.Remaining(20) == absl::Seconds(10));
  rate.Record(absl::Seconds(2), 2);
  CHECK(rate.tokens_per_second() == Approx(2 / 1.1));
  CHECK(rate.Remaining(0) == absl::ZeroDuration());
}

TEST_CASE("a batch that grows changes neither the rate nor what is left of the run") {
  TokenRate rate;
  for (const int64_t batch : {1, 1, 1, 2, 2, 4}) {
    rate.Record(absl::Seconds(batch), batch * 1024);
    CHECK(rate.tokens_per_second() == Approx(1024));
    CHECK(absl::ToDoubleSeconds(rate.Remaining(100 * 1024)) == Approx(100));
  }
}

TEST_CASE("a log gets a line for the first, the last and every tenth step") {
  const std::string text = Written(false, 10, [](ProgressPrinter& printer) {
    for (int64_t step = 483; step <= 500; ++step) printer.Print(At(step), Millis(0));
    printer.EndLine();
  });
  CHECK(text ==
        ProgressLine(At(483)) + "\n" + ProgressLine(At(490)) + "\n" + ProgressLine(At(500)) + "\n");
}

TEST_CASE("a terminal's line is redrawn in place, ten times a second, and ended once") {
  const std::string text = Written(true, 10, [](ProgressPrinter& printer) {
    printer.Print(At(1), Millis(0));
    printer.Print(At(2), Millis(99));
    printer.Print(At(3), Millis(100));
    printer.Print(At(500), Millis(101));
    printer.EndLine();
    printer.EndLine();
  });
  CHECK(text == "\r" + ProgressLine(At(1)) + "\x1b[K\r" + ProgressLine(At(3)) + "\x1b[K\r" +
                    ProgressLine(At(500)) + "\x1b[K\n");
}

}  // namespace
}  // namespace convene::worker
