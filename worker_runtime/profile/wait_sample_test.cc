// Runs on CPUs, and on GPUs in //worker_runtime/trainer/testing:on_gpus_test.
#include "worker_runtime/profile/wait_sample.h"

#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/op_profile.h"
#include "worker_runtime/testing/forwarding_device.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

// The ops that a profile saw, and the seconds that it tells.
struct Seen {
  std::vector<std::string> ops;
  double seconds = 0;
};

class Spy final : public OpProfile {
 public:
  explicit Spy(Seen& seen) : seen_(seen) {}
  void Begin(const char* op, const OpDetail& /*detail*/) override { seen_.ops.push_back(op); }
  void End() override { seen_.ops.push_back("end"); }
  std::vector<OpTime> Times() override { return {{"wait", 1, seen_.seconds}}; }
  void KeepSpans(size_t /*most*/) override {}
  OpSpans TakeSpans() override { return {}; }

 private:
  Seen& seen_;
};

class SpiedDevice final : public testing::ForwardingDevice {
 public:
  SpiedDevice(Device& device, Seen& seen) : ForwardingDevice(device), seen_(seen) {}
  std::unique_ptr<OpProfile> MakeProfile(Stream& /*stream*/) override {
    return std::make_unique<Spy>(seen_);
  }

 private:
  Seen& seen_;
};

struct Fixture {
  Seen seen;
  std::unique_ptr<Device> base = testing::MakeTestDevice();
  SpiedDevice device{*base, seen};
  WaitSample sample{device};
};

constexpr absl::Duration kSecond = absl::Seconds(1);

TEST_CASE("every fourth step is sampled, and its share is known behind the next step") {
  if (!testing::HasPlacesOrSkips(1)) return;
  Fixture fixture;
  const Stream& compute = fixture.device.compute();
  std::vector<std::optional<double>> shares;
  for (int step = 1; step <= 9; ++step) {
    CAPTURE(step);
    fixture.sample.Begin(step);
    CHECK((compute.profile() != nullptr) == (step % 4 == 0));
    if (step == 4) fixture.seen.seconds += 0.5;  // of two seconds
    if (step == 8) fixture.seen.seconds += 3;    // events of two clocks need not agree
    shares.push_back(fixture.sample.Done(step == 4 ? 2 * kSecond : kSecond));
    CHECK(compute.profile() == nullptr);
  }
  const std::vector<std::optional<double>> expected = {{}, {}, {}, {}, 0.25, 0.25, 0.25, 0.25, 1.0};
  CHECK(shares == expected);
}

TEST_CASE("waits and collectives are seen, and no arithmetic; a GPU's stream tells its waits") {
  if (!testing::HasPlacesOrSkips(1)) return;
  Fixture fixture;
  Device& device = fixture.device;
  Stream& compute = device.compute();
  const std::unique_ptr<Event> event = device.MakeEvent();
  fixture.sample.Begin(4);
  for (const char* op : {"MatMul", "communication/dp", "AdamW"}) const OpScope scope(compute, op);
  device.Record(*event, device.communication());
  device.Order(*event, compute);
  fixture.sample.Done(kSecond);
  device.Order(*event, compute);  // belongs to no step
  std::vector<std::string> expected = {"communication/dp", "end"};
  if (testing::OnGpus()) expected.insert(expected.end(), {"wait", "end"});
  CHECK(fixture.seen.ops == expected);
  CHECK_OK(device.Synchronize(absl::Minutes(1)));
}

TEST_CASE("another profile of the stream is left alone, and its step is no sample") {
  if (!testing::HasPlacesOrSkips(1)) return;
  Fixture fixture;
  Seen others;
  Spy spy(others);
  Stream& compute = fixture.device.compute();
  compute.set_profile(&spy);
  fixture.sample.Begin(4);
  CHECK(compute.profile() == &spy);
  CHECK(!fixture.sample.Done(kSecond).has_value());
  CHECK(compute.profile() == &spy);
  compute.set_profile(nullptr);
  fixture.sample.Begin(5);
  CHECK(!fixture.sample.Done(kSecond).has_value());
}

TEST_CASE("a device's own profile tells the times") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const std::unique_ptr<Device> device = testing::MakeTestDevice();
  WaitSample sample(*device);
  const std::unique_ptr<Event> event = device->MakeEvent();
  std::optional<double> share;
  for (int step = 4; step <= 5; ++step) {
    sample.Begin(step);
    device->Record(*event, device->communication());
    device->Order(*event, device->compute());
    CHECK_OK(device->Synchronize(absl::Minutes(1)));
    share = sample.Done(absl::Hours(1));
  }
  REQUIRE(share.has_value());
  CHECK(*share >= 0);
  CHECK(*share < 0.5);
  CHECK_OK(device->status());
}

}  // namespace
}  // namespace convene::worker
