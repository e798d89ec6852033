// The weights of a whole model as a source of state, for tests.
#pragma once

#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "worker_runtime/checkpoint/testing/memory_source.h"
#include "worker_runtime/model/initialize.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/model/testing/chunks.h"

namespace convene::worker::testing {

// `values`: of a slice, which is all of its tensor or a run of its rows or columns.
inline MemorySource WeightsSource(
    const ModelConfig& config,
    absl::FunctionRef<std::vector<float>(const ParameterSlice& slice)> values) {
  MemorySource source(CheckpointInfo{});
  std::set<std::pair<std::string, std::array<int64_t, 2>>> added;  // a tied head is the table
  for (const UnitSpec& unit : UnitsOf(config, WholeModel(config), 1, 0)) {
    for (const UnitTensor& tensor : unit.tensors) {
      for (const ParameterSlice& slice : tensor.slices) {
        if (!added.insert({slice.name, slice.offset}).second) continue;
        std::vector<float> data = values(slice);
        source.Add({{.name = slice.name,
                     .global_shape = {slice.global_shape[0], slice.global_shape[1]},
                     .local_box = {.offset = {slice.offset[0], slice.offset[1]},
                                   .extent = {slice.extent[0], slice.extent[1]}},
                     .flat_count = slice.count()},
                    absl::MakeSpan(data)},
                   DType::kFloat32);
      }
    }
  }
  return source;
}

// The weights of the seed 3.
inline MemorySource InitialWeights(const ModelConfig& config) {
  return WeightsSource(config, [](const ParameterSlice& slice) {
    std::vector<float> values(slice.count());
    InitializeParameter(slice, 3, 0, slice.count(), values.data());
    return values;
  });
}

}  // namespace convene::worker::testing
