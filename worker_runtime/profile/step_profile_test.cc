#include "worker_runtime/profile/step_profile.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tools/base/clock.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/testing/loopback.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/side_stream.h"
#include "worker_runtime/parallel/linear.h"
#include "worker_runtime/testing/device_array.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::DeviceArray;

TEST_CASE("a profile groups the ops, the longest first, and says what is in none") {
  const std::vector<OpTime> times = {{"RmsNormForward", 4, 0.01},   {"MatMul", 8, 0.05},
                                     {"AttentionForward", 2, 0.02}, {"SwigluForward", 2, 0.015},
                                     {"AdamW", 2, 0.001},           {"communication/tp", 2, 0.002}};
  CHECK(ProfileText(times, {}, {}, 2, 0.1) ==
        "profile of 2 steps         ms a step   share\n"
        "products                       25.00   50.0%\n"
        "  MatMul                       25.00   50.0%\n"
        "memory-bound                   12.50   25.0%\n"
        "  SwigluForward                 7.50   15.0%\n"
        "  RmsNormForward                5.00   10.0%\n"
        "attention                      10.00   20.0%\n"
        "  AttentionForward             10.00   20.0%\n"
        "communication                   1.00    2.0%\n"
        "  tp                            1.00    2.0%\n"
        "optimizer                       0.50    1.0%\n"
        "  AdamW                         0.50    1.0%\n"
        "gaps                            1.00    2.0%\n"
        "step                           50.00\n");
}

TEST_CASE("products of 8-bit floats and of experts are products") {
  CHECK(ProfileText({{"Float8MatMul", 1, 0.01},
                     {"GroupedMatMul", 1, 0.02},
                     {"GroupedWeightGradient", 1, 0.03}},
                    {}, {}, 1, 0.06) ==
        "profile of 1 steps         ms a step   share\n"
        "products                       60.00  100.0%\n"
        "  GroupedWeightGradient        30.00   50.0%\n"
        "  GroupedMatMul                20.00   33.3%\n"
        "  Float8MatMul                 10.00   16.7%\n"
        "gaps                            0.00    0.0%\n"
        "step                           60.00\n");
}

TEST_CASE("communication beside the ops is told behind the step, and is no part of its sum") {
  CHECK(ProfileText({{"MatMul", 1, 0.09}},
                    {{"communication/dp", 1, 0.01}, {"communication/tp", 4, 0.03}}, {}, 1, 0.1) ==
        "profile of 1 steps         ms a step   share\n"
        "products                       90.00   90.0%\n"
        "  MatMul                       90.00   90.0%\n"
        "gaps                           10.00   10.0%\n"
        "step                          100.00\n"
        "communication, beside          40.00   40.0%\n"
        "  tp                           30.00   30.0%\n"
        "  dp                           10.00   10.0%\n");
}

TEST_CASE("the host's update beside the ops has a group of its own, whatever its ops are") {
  const std::string text =
      ProfileText({{"MatMul", 1, 0.09}}, {{"communication/dp", 1, 0.01}, {"ToBFloat16", 1, 0.005}},
                  {{"AdamW", 2, 0.03}, {"ToBFloat16", 2, 0.01}}, 1, 0.1);
  CHECK_THAT(text, Catch::EndsWith("step                          100.00\n"
                                   "optimizer, beside              40.00   40.0%\n"
                                   "  AdamW                        30.00   30.0%\n"
                                   "  ToBFloat16                   10.00   10.0%\n"
                                   "communication, beside          15.00   15.0%\n"
                                   "  dp                           10.00   10.0%\n"
                                   "  ToBFloat16                    5.00    5.0%\n"));
}

TEST_CASE("no steps, no profile") { CHECK(ProfileText({{"MatMul", 1, 1}}, {}, {}, 0, 1).empty()); }

// A tensor-parallel layer's backward pass.
absl::Status Backward(Device& device, Collective& tp) {
  ChunkedRows rows(1, 1, /*is_split=*/false, tp, /*chunks=*/1, &device);
  const DeviceArray<float> x({1}, device), weight({2}, device), dy({3}, device);
  const DeviceArray<float> dx({0}, device), dweight({0}, device);
  const Linear<float> layer = {.shape = {1, 1, 1}, .weight = weight.data()};
  CONVENE_RETURN_IF_ERROR(ColumnParallelBackward(layer, x.data(), dy.data(), dx.data(),
                                                 {.data = dweight.data(), .adds = false}, rows,
                                                 device.compute()));
  CONVENE_RETURN_IF_ERROR(rows.Finish(dx.data(), device.compute()));
  return device.Synchronize(absl::Minutes(1));
}

TEST_CASE("the sums of a tensor-parallel backward pass are in the profile") {
  if (!testing::HasPlacesOrSkips(2)) return;
  const auto places = testing::Places::Make({.tp = 2});
  REQUIRE_OK(places);
  std::string unwatched, text;
  for (const absl::Status& status : (*places)->OnEveryRank([&](int rank) -> absl::Status {
         auto& [device, communicators, memory] = (**places)[rank];
         StepProfile profile(*device);
         CONVENE_RETURN_IF_ERROR(Backward(*device, *communicators.tp));
         if (rank == 0) unwatched = profile.Text(1, 1);
         profile.Watch(true);
         CONVENE_RETURN_IF_ERROR(Backward(*device, *communicators.tp));
         if (rank == 0) text = profile.Text(1, 1);
         profile.Watch(false);
         return absl::OkStatus();
       })) {
    REQUIRE_OK(status);
  }
  CHECK(unwatched.find("  tp") == std::string::npos);
  INFO(text);
  const size_t beside = text.find("communication, beside");
  REQUIRE(beside != std::string::npos);
  CHECK(text.find("  MatMul") < beside);
  CHECK(text.find("  tp", beside) != std::string::npos);
}

const OpSpan* Find(const OpSpans& spans, const std::string& op) {
  for (const OpSpan& span : spans.spans) {
    if (op == span.op) return &span;
  }
  return nullptr;
}

TEST_CASE("each call is kept with its bytes, at the time by the host's clock when it ran") {
  if (!testing::HasPlacesOrSkips(2)) return;
  const auto places = testing::Places::Make({.tp = 2});
  REQUIRE_OK(places);
  std::vector<OpSpans> taken;
  MonotonicTime before, after;
  for (const absl::Status& status : (*places)->OnEveryRank([&](int rank) -> absl::Status {
         auto& [device, communicators, memory] = (**places)[rank];
         StepProfile profile(*device);
         profile.KeepSpans(100);
         profile.Watch(true);
         if (rank == 0) before = Clock::Real().Now();
         CONVENE_RETURN_IF_ERROR(Backward(*device, *communicators.tp));
         if (rank == 0) {
           after = Clock::Real().Now();
           taken = profile.TakeSpans();
         }
         return absl::OkStatus();
       })) {
    REQUIRE_OK(status);
  }
  REQUIRE(taken.size() == 4);
  const OpSpan* const product = Find(taken[0], "MatMul");
  const OpSpan* const sum = Find(taken[3], "communication/tp");
  REQUIRE(product != nullptr);
  REQUIRE(sum != nullptr);
  CHECK(std::string(sum->detail.operation) == "all_reduce");
  CHECK(sum->detail.bytes == sizeof(float));
  CHECK(sum->detail.ranks == 2);
  CHECK(product->detail.operation == nullptr);
  const absl::Duration inexact = absl::Milliseconds(testing::OnGpus() ? 5 : 0);
  for (const OpSpan* const span : {product, sum}) {
    CHECK(span->begin >= before - inexact);
    CHECK(span->begin <= span->end);
    CHECK(span->end <= after + inexact);
  }
}

// Sums of buckets, as gradients are reduced: over two ranks in a queue, then over a group of one.
absl::Status SumBuckets(Device& device, CommunicatorSet& set, std::vector<float>& buckets) {
  for (size_t i = 0; i + 1 < buckets.size(); i += 2) {
    const absl::Span<float> bucket(&buckets[i], 2);
    CONVENE_RETURN_IF_ERROR(set.dp->ReduceScatter(bucket, ReduceOp::kSum, device.communication()));
    CONVENE_RETURN_IF_ERROR(
        set.dp_replicate->AllReduce(bucket, ReduceOp::kSum, device.communication()));
  }
  return device.Synchronize(absl::Seconds(60));
}

TEST_CASE("a group of one that passes a queue by leaves the queue's profile alone") {
  if (testing::OnGpus()) return;  // a CPU's queue
  std::vector<CommunicatorSet> sets = LoopbackCommunicators({.dp = 2});
  // More than a queue holds at once, so that the queue runs meanwhile.
  std::vector<float> buckets(4000, 1.0f), other_buckets = buckets;
  absl::Status other;
  Thread peer("peer", [&] {
    const std::unique_ptr<Device> device = Device::Cpu();
    other = SumBuckets(*device, sets[1], other_buckets);
  });
  const std::unique_ptr<Device> device = Device::Cpu();
  StepProfile profile(*device);
  profile.Watch(true);
  const absl::Status status = SumBuckets(*device, sets[0], buckets);
  peer.Join();
  REQUIRE_OK(status);
  REQUIRE_OK(other);
  const std::string text = profile.Text(1, 1);
  INFO(text);
  CHECK(text.find("  dp ") != std::string::npos);
}

}  // namespace
}  // namespace convene::worker
