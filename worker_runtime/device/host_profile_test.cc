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

}  // namespace
}  // namespace convene::worker
