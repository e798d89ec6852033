// A unit store for tests of one rank: everything lies in two arrays of its device.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "worker_runtime/device/device.h"
#include "worker_runtime/model/initialize.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/shard/placement.h"
#include "worker_runtime/shard/unit_store.h"
#include "worker_runtime/testing/device_array.h"

namespace convene::worker::testing {

// Not thread-safe. Weights are those of the seed 3, in float. Borrows the device.
class WholeStore : public UnitStore {
 public:
  WholeStore(const std::vector<UnitSpec>& units, Device& its_device)
      : placement(PlaceUnits(units, /*dp=*/1, std::numeric_limits<int64_t>::max())),
        device(its_device),
        parameters(FirstWeights(placement), device),
        gradients(std::vector<float>(placement.flat_count), device) {
    for (const Placement::Unit& unit : placement.units) {
      std::vector<const void*>& weights = weights_.emplace_back();
      for (const int tensor : unit.tensors) {
        weights.push_back(parameters.data() + placement.tensors[tensor].begin);
      }
    }
  }

  absl::StatusOr<absl::Span<const void* const>> Acquire(int unit) override {
    return weights_[unit];
  }
  WeightGradient Gradient(int unit, int tensor, bool is_first) override {
    const Placement::Tensor& place = placement.tensors[placement.units[unit].tensors[tensor]];
    return {.data = gradients.data() + place.begin, .adds = !is_first || unit != place.last_unit};
  }
  absl::Status GradientsDone(int /*unit*/, bool /*is_last*/) override { return absl::OkStatus(); }

  const Placement placement;
  Device& device;
  const DeviceArray<float> parameters;
  const DeviceArray<float> gradients;

 private:
  static std::vector<float> FirstWeights(const Placement& placement) {
    std::vector<float> weights(placement.flat_count);
    for (const PlacedParameter& slice : placement.parameters) {
      InitializeParameter(slice, 3, 0, slice.count(), weights.data() + slice.flat_offset);
    }
    return weights;
  }

  std::vector<std::vector<const void*>> weights_;
};

}  // namespace convene::worker::testing
