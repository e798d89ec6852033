#include "worker_runtime/comm/flight_recorder.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/base/testing/manual_clock.h"
#include "worker_runtime/device/elements.h"

namespace convene::worker {
namespace {

ConstElements Of(size_t count, DType dtype) { return {nullptr, count, dtype}; }

TEST_CASE("the dump tells what finished, what failed and what still runs") {
  ManualClock clock;
  FlightRecorder recorder(8, clock);
  clock.Advance(absl::Milliseconds(2));
  const uint64_t first = recorder.Start("dp", "all_reduce", 1, Of(1024, DType::kFloat32));
  clock.Advance(absl::Microseconds(120));
  recorder.Finish(first, absl::OkStatus());
  const uint64_t second = recorder.Start("pp", "send", 7, Of(32, DType::kBFloat16));
  recorder.Finish(second, absl::UnavailableError("gone"));
  recorder.Start("dp", "barrier", 2, {});
  clock.Advance(absl::Seconds(1));
  CHECK(recorder.Dump(8) ==
        "2.000 ms  dp #1 all_reduce 4096 B fp32  finished after 0.120 ms\n"
        "2.120 ms  pp #7 send 64 B bf16  failed after 0.000 ms: UNAVAILABLE\n"
        "2.120 ms  dp #2 barrier 0 B  started, unfinished for 1000.000 ms\n");
  CHECK(recorder.Dump(1) == "2.120 ms  dp #2 barrier 0 B  started, unfinished for 1000.000 ms\n");
}

TEST_CASE("only the last operations are kept, and a late finish harms nobody") {
  ManualClock clock;
  FlightRecorder recorder(2, clock);
  const uint64_t overwritten = recorder.Start("dp", "all_reduce", 1, Of(1, DType::kFloat32));
  recorder.Start("dp", "all_reduce", 2, Of(1, DType::kFloat32));
  recorder.Start("dp", "all_reduce", 3, Of(1, DType::kFloat32));
  recorder.Finish(overwritten, absl::OkStatus());
  CHECK(recorder.Dump(8) ==
        "0.000 ms  dp #2 all_reduce 4 B fp32  started, unfinished for 0.000 ms\n"
        "0.000 ms  dp #3 all_reduce 4 B fp32  started, unfinished for 0.000 ms\n");
}

TEST_CASE("the operation that began to wait first is told, and the next one when it ends") {
  ManualClock clock;
  FlightRecorder recorder(8, clock);
  std::vector<std::string> told;
  const auto tell = [&](const AwaitedOperation* awaited) {
    told.push_back(awaited == nullptr ? "none"
                                      : absl::StrCat(awaited->group, " ", awaited->operation, " ",
                                                     awaited->sequence, " ", awaited->global_rank));
  };
  const uint64_t first = recorder.Start("dp", "all_reduce", 17, {});
  recorder.Awaits(first, 2);
  recorder.Observe(tell);
  recorder.Awaits(first, 3);
  const uint64_t second = recorder.Start("pp", "recv from 1", 5, {});
  recorder.Awaits(second, 7);
  CHECK_THAT(recorder.Dump(1), Catch::EndsWith("unfinished for 0.000 ms, waits for rank 7\n"));
  recorder.Finish(first, absl::OkStatus());
  recorder.Finish(second, absl::OkStatus());
  const std::vector<std::string> expected = {"dp all_reduce 17 2", "dp all_reduce 17 3",
                                             "pp recv from 1 5 7", "none"};
  CHECK(told == expected);
  recorder.Observe(nullptr);
  recorder.Awaits(recorder.Start("dp", "barrier", 18, {}), 1);
  CHECK(told == expected);
}

TEST_CASE("a wait beside the training is told only when no other operation waits") {
  ManualClock clock;
  FlightRecorder recorder(8, clock);
  std::vector<std::string> told;
  recorder.Observe([&](const AwaitedOperation* awaited) {
    told.push_back(awaited == nullptr ? "none" : std::string(awaited->group));
  });
  const uint64_t save = recorder.Start("checkpoint", "all_gather", 1, {});
  recorder.Awaits(save, 1, /*is_beside_training=*/true);
  const uint64_t copies = recorder.Start("replicas", "recv from 1", 1, {});
  recorder.Awaits(copies, 1, /*is_beside_training=*/true);
  const uint64_t first = recorder.Start("dp", "all_reduce", 17, {});
  recorder.Awaits(first, 2);
  const uint64_t second = recorder.Start("tp", "all_reduce", 5, {});
  recorder.Awaits(second, 3);
  recorder.Awaits(save, 2, /*is_beside_training=*/true);
  for (const uint64_t handle : {first, second, save, copies}) {
    recorder.Finish(handle, absl::OkStatus());
  }
  CHECK(told ==
        std::vector<std::string>{"checkpoint", "dp", "tp", "checkpoint", "replicas", "none"});
}

TEST_CASE("a wait so long that its entry is another's leaves no wait behind that has ended") {
  ManualClock clock;
  FlightRecorder recorder(2, clock);
  std::vector<std::string> told;
  recorder.Observe([&](const AwaitedOperation* awaited) {
    told.push_back(awaited == nullptr ? "none" : std::string(awaited->group));
  });
  const uint64_t save = recorder.Start("checkpoint", "all_gather", 1, {});
  recorder.Awaits(save, 1, /*is_beside_training=*/true);
  recorder.Start("dp", "all_reduce", 1, {});
  const uint64_t second = recorder.Start("dp", "all_reduce", 2, {});
  recorder.Awaits(second, 2);
  recorder.Finish(second, absl::OkStatus());
  CHECK(told == std::vector<std::string>{"checkpoint", "dp", "none"});
  recorder.Finish(save, absl::OkStatus());
  CHECK(told.back() == "none");
}

TEST_CASE("an unused recorder dumps nothing") {
  ManualClock clock;
  CHECK(FlightRecorder(2, clock).Dump(8).empty());
}

}  // namespace
}  // namespace convene::worker
