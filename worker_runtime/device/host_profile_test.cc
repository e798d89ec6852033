#include "worker_runtime/device/host_profile.h"

#include <catch2/catch.hpp>
#include <string>

#include "absl/time/time.h"
#include "tools/base/testing/manual_clock.h"

namespace convene::worker {
namespace {

TEST_CASE("a profile adds up the calls and the time of each op") {
  ManualClock clock;
  Stream stream = Stream::Cpu();
  HostProfile profile(clock, stream);
  const auto run = [&](const char* op, absl::Duration time) {
    const OpScope scope(stream, op);
    clock.Advance(time);
  };
  run("MatMul", absl::Seconds(5));  // nobody watches yet
  stream.set_profile(&profile);
  run("MatMul", absl::Seconds(1));
  run("AdamW", absl::Seconds(2));
  run("MatMul", absl::Seconds(3));
  const auto times = profile.Times();
  REQUIRE(times.size() == 2);
  CHECK(std::string(times[0].op) == "MatMul");
  CHECK(times[0].calls == 2);
  CHECK(times[0].seconds == 4.0);
  CHECK(times[1].seconds == 2.0);
}

TEST_CASE("spans are kept once they are wanted, passes behind their ops, and each is taken once") {
  ManualClock clock;
  Stream stream = Stream::Cpu();
  HostProfile profile(clock, stream);
  stream.set_profile(&profile);
  const MonotonicTime start = clock.Now();
  const auto run = [&](const char* op, const OpDetail& detail = {}) {
    const OpScope scope(stream, op, detail);
    clock.Advance(absl::Seconds(1));
  };
  run("MatMul");
  CHECK(profile.TakeSpans().spans.empty());
  profile.KeepSpans(4);
  {
    const PassScope pass(stream, "forward", {.chunk = 1, .microbatch = 3});
    run("MatMul");
    clock.Advance(absl::Seconds(1));
    run("communication/tp", {.operation = "all_reduce", .bytes = 8, .ranks = 2});
  }
  OpSpans taken = profile.TakeSpans();
  REQUIRE(taken.spans.size() == 3);
  CHECK(std::string(taken.spans[0].op) == "MatMul");
  CHECK(taken.spans[0].begin - start == absl::Seconds(1));
  CHECK(taken.spans[0].end - start == absl::Seconds(2));
  CHECK(taken.spans[1].detail.bytes == 8);
  CHECK(std::string(taken.spans[2].op) == "forward");
  CHECK(taken.spans[2].begin == taken.spans[0].begin);
  CHECK(taken.spans[2].end == taken.spans[1].end);
  CHECK(taken.spans[2].detail.microbatch == 3);
  CHECK(taken.left_out == 0);
  CHECK(profile.Times().size() == 2);  // a pass is no op

  for (int i = 0; i < 6; ++i) run("MatMul");
  taken = profile.TakeSpans();
  CHECK(taken.spans.size() == 4);
  CHECK(taken.left_out == 2);
}

}  // namespace
}  // namespace convene::worker
