#include "worker_runtime/device/device.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/device/host_queue.h"
#include "worker_runtime/ops/elementwise.h"

namespace convene::worker {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// A queue's work that stands until the test lets it go on.
class Obstacle {
 public:
  explicit Obstacle(Stream& stream) {
    RunIn(stream, [this] { passed_.wait(false); });
  }
  ~Obstacle() { Remove(); }
  void Remove() {
    passed_ = true;
    passed_.notify_all();
  }

 private:
  std::atomic<bool> passed_ = false;
};

TEST_CASE("ops and copies run in their stream's order, with the arguments of the call") {
  std::vector<float> x = {1, 2}, y = {10, 20}, copy(2);
  const std::unique_ptr<Device> device = Device::Cpu();
  Stream& stream = device->communication();
  {
    Obstacle obstacle(stream);
    AddInPlace(2, x.data(), y.data(), stream);
    device->Copy(y.data(), copy.data(), sizeof(float) * 2, stream);
    device->Zero(x.data(), sizeof(float) * 2, stream);
    CHECK(y == std::vector<float>{10, 20});  // none of it has run
    CHECK(absl::IsDeadlineExceeded(device->Synchronize(absl::Milliseconds(1))));
    obstacle.Remove();
    REQUIRE_OK(device->Synchronize(kPatience));
  }
  CHECK(copy == std::vector<float>{11, 22});
  CHECK(x == std::vector<float>{0, 0});
  AddInPlace(2, copy.data(), x.data(), device->compute());
  CHECK(x == copy);
}

TEST_CASE("an event orders what comes after it behind what came before it, in every pair") {
  const std::unique_ptr<Device> device = Device::Cpu();
  Stream* const streams[] = {&device->compute(), &device->communication(),
                             &device->layer_communication()};
  const std::unique_ptr<Event> event = device->MakeEvent();
  float value = 0;
  const float one = 1;
  std::vector<float> seen;
  seen.reserve(100);
  for (Stream* earlier : streams) {
    for (Stream* later : streams) {
      AddInPlace(1, &one, &value, *earlier);
      device->Record(*event, *earlier);
      device->Order(*event, *later);
      seen.push_back(0);
      device->Copy(&value, &seen.back(), sizeof(float), *later);
      // The next turn writes `value` in yet another stream.
      device->Record(*event, *later);
      for (Stream* stream : streams) device->Order(*event, *stream);
    }
  }
  REQUIRE_OK(device->Synchronize(kPatience));
  CHECK(seen == std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST_CASE("an event is what was queued when it was recorded last") {
  const std::unique_ptr<Device> device = Device::Cpu();
  const std::unique_ptr<Event> event = device->MakeEvent();
  CHECK_OK(device->Wait(*event, absl::ZeroDuration()));  // never recorded
  device->Record(*event, device->communication());
  Obstacle obstacle(device->communication());
  CHECK_OK(device->Wait(*event, absl::ZeroDuration()));
  device->Order(*event, device->compute());
  // A wait that is queued keeps the point that it was given.
  device->Order(*event, device->layer_communication());
  device->Record(*event, device->communication());
  CHECK(absl::IsDeadlineExceeded(device->Wait(*event, absl::Milliseconds(1))));
  const std::unique_ptr<Event> beside = device->MakeEvent();
  device->Record(*beside, device->layer_communication());
  CHECK_OK(device->Wait(*beside, kPatience));
  obstacle.Remove();
  CHECK_OK(device->Wait(*event, kPatience));
}

TEST_CASE("a device that is destroyed finishes its queues, also where one waits for the other") {
  float value = 0;
  const float one = 1;
  {
    const std::unique_ptr<Device> device = Device::Cpu();
    const std::unique_ptr<Event> event = device->MakeEvent();
    Stream *earlier = &device->communication(), *later = &device->layer_communication();
    for (int i = 0; i < 100; ++i) {
      AddInPlace(1, &one, &value, *earlier);
      device->Record(*event, *earlier);
      device->Order(*event, *later);
      std::swap(earlier, later);
    }
  }
  CHECK(value == 100);
}

TEST_CASE("a profile counts the ops that a queue ran since it was given to the stream") {
  const std::unique_ptr<Device> device = Device::Cpu();
  Stream& stream = device->communication();
  const std::unique_ptr<OpProfile> profile = device->MakeProfile(stream);
  float value = 0;
  const float one = 1;
  AddInPlace(1, &one, &value, stream);
  stream.set_profile(profile.get());
  for (int i = 0; i < 3; ++i) AddInPlace(1, &one, &value, stream);
  stream.set_profile(nullptr);
  AddInPlace(1, &one, &value, stream);
  const std::vector<OpTime> times = profile->Times();  // waits
  CHECK(value == 5);
  REQUIRE(times.size() == 1);
  CHECK(std::string(times[0].op) == "AddInPlace");
  CHECK(times[0].calls == 3);
}

}  // namespace
}  // namespace convene::worker
