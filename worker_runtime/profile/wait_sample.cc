#include "worker_runtime/profile/wait_sample.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"

namespace convene::worker {

// Sees the waits and the collectives of a stream, and none of its arithmetic.
class WaitSample::WaitsOnly final : public OpProfile {
 public:
  explicit WaitsOnly(std::unique_ptr<OpProfile> profile) : profile_(std::move(profile)) {}

  void Begin(const char* op, const OpDetail& detail) override {
    is_open_ = absl::StartsWith(op, kCommunicationPrefix);
    if (is_open_) profile_->Begin(op, detail);
  }
  void End() override {
    if (is_open_) profile_->End();
  }
  void BeginWait() override { profile_->Begin("wait", {}); }
  void EndWait() override { profile_->End(); }
  std::vector<OpTime> Times() override { return profile_->Times(); }
  void KeepSpans(size_t most) override { profile_->KeepSpans(most); }
  OpSpans TakeSpans() override { return profile_->TakeSpans(); }

 private:
  const std::unique_ptr<OpProfile> profile_;
  bool is_open_ = false;
};

WaitSample::WaitSample(Device& device)
    : device_(device), waits_(std::make_unique<WaitsOnly>(device.MakeProfile(device.compute()))) {}

WaitSample::~WaitSample() { End(); }

void WaitSample::Begin(int64_t step) {
  is_sampled_ = step % kEvery == 0 && device_.compute().profile() == nullptr;
  if (is_sampled_) device_.compute().set_profile(waits_.get());
}

void WaitSample::End() {
  if (device_.compute().profile() == waits_.get()) device_.compute().set_profile(nullptr);
}

std::optional<double> WaitSample::Done(absl::Duration time) {
  End();
  // A step's update may follow its result. Behind the next step's result the GPU has come to the
  // end of both, so that reading the times waits for nothing.
  if (unknown_.has_value()) {
    double seconds = 0;
    for (const OpTime& wait : waits_->Times()) seconds += wait.seconds;
    const double waited = seconds - std::exchange(seconds_, seconds);
    share_ = std::clamp(waited / absl::ToDoubleSeconds(*unknown_), 0.0, 1.0);
    unknown_.reset();
  }
  if (is_sampled_ && time > absl::ZeroDuration()) unknown_ = time;
  is_sampled_ = false;
  return share_;
}

}  // namespace convene::worker
