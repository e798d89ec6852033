#include "worker_runtime/data/prepare/progress_output.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>

#include "tools/base/testing/manual_clock.h"

namespace convene::worker {
namespace {

// The text that `show` wrote.
template <typename Show>
std::string Written(bool is_terminal, ManualClock* clock, const Show& show) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* const stream = open_memstream(&text, &size);
  REQUIRE(stream != nullptr);
  ProgressOutput output(stream, is_terminal, "tokens ", clock);
  show(&output);
  std::fclose(stream);
  const std::string written(text, size);
  std::free(text);
  return written;
}

TEST_CASE("a line comes now and then, with the rate of this process") {
  ManualClock clock;
  CHECK(Written(false, &clock, [&](ProgressOutput* output) {
          output->Show(1 << 20, 4 << 20);
          clock.Advance(absl::Seconds(29));
          output->Show(2 << 20, 4 << 20);
          clock.Advance(absl::Seconds(1));
          output->Show(2 << 20, 4 << 20);
          clock.Advance(absl::Seconds(1));
          output->Show(3 << 20, 4 << 20);
          output->End();
        }) == "tokens [##########----------]  50%  2.0 MiB of 4.0 MiB  34.1 KiB/s  ETA 1:00\n");
}

TEST_CASE("on a terminal one line is drawn again, and taken away at the end") {
  ManualClock clock;
  CHECK(Written(true, &clock, [&](ProgressOutput* output) {
          output->End();
          output->Show(0, 4 << 20);
          clock.Advance(absl::Milliseconds(100));
          output->Show(1 << 20, 4 << 20);
          clock.Advance(absl::Milliseconds(99));
          output->Show(2 << 20, 4 << 20);
          output->End();
          output->End();
        }) == "\rtokens [#####---------------]  25%  1.0 MiB of 4.0 MiB\x1b[K\r\x1b[K");
}

}  // namespace
}  // namespace convene::worker
