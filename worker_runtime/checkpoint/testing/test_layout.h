// For tests: tensors with known values, cut among ranks like tensor parallelism and ZeRO do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tools/base/check.h"
#include "worker_runtime/checkpoint/box.h"

namespace convene::worker::testing {

struct TestTensor {
  std::string name;
  std::vector<int64_t> shape;
};

inline const std::vector<TestTensor> kModel = {
    {"embedding.weight", {17, 6}},
    {"layers.0.norm.weight", {13}},
    {"layers.0.qkv.weight", {12, 10}},
    {"optimizer.first_moment/layers.0.qkv.weight", {12, 10}},
    {"experts", {4, 3, 5}},
    {"convolution", {2, 3, 4, 5}}};

inline Box WholeBox(const std::vector<int64_t>& shape) {
  return {std::vector<int64_t>(shape.size(), 0), shape};
}

// The value of the element at a row-major position of a global tensor: exact in fp32.
inline float ValueAt(const std::string& name, int64_t position, int version) {
  return static_cast<float>(position + 1000 * static_cast<int64_t>(name.size()) + 100000 * version);
}

// Global row-major positions of a piece's elements, one by one: slow and plain, the oracle.
inline std::vector<int64_t> Positions(const TensorPiece& piece) {
  std::vector<int64_t> positions;
  for (int64_t i = piece.flat_begin; i < piece.flat_begin + piece.flat_count; ++i) {
    int64_t rest = i, position = 0, stride = 1;
    for (size_t d = piece.global_shape.size(); d-- > 0;) {
      position += (piece.local_box.offset[d] + rest % piece.local_box.extent[d]) * stride;
      rest /= piece.local_box.extent[d];
      stride *= piece.global_shape[d];
    }
    positions.push_back(position);
  }
  return positions;
}

// [0, size) cut into `parts` at random places; parts may be empty unless `none_empty`.
inline std::vector<int64_t> RandomCuts(int64_t size, int parts, bool none_empty,
                                       std::mt19937_64* random) {
  CONVENE_CHECK(!none_empty || size >= parts);
  std::vector<int64_t> cuts = {0};
  for (int i = 1; i < parts; ++i) {
    const int64_t low = none_empty ? i : 0;
    const int64_t high = none_empty ? size - (parts - i) : size;
    cuts.push_back(std::uniform_int_distribution<int64_t>(low, high)(*random));
  }
  cuts.push_back(size);
  std::sort(cuts.begin(), cuts.end());
  for (size_t i = 1; none_empty && i < cuts.size(); ++i)
    cuts[i] = std::max(cuts[i], cuts[i - 1] + 1);
  for (size_t i = cuts.size() - 1; none_empty && i-- > 0;)
    cuts[i] = std::min(cuts[i], cuts[i + 1] - 1);
  return cuts;
}

// Pieces by rank: each tensor is cut into up to `tp` slices along a random axis, and each slice's
// flattening into `dp` ranges at random places, many of them empty. Rank = dp_rank * tp + tp_rank.
inline std::vector<std::vector<TensorPiece>> CutModel(const std::vector<TestTensor>& tensors,
                                                      int dp, int tp, std::mt19937_64* random) {
  std::vector<std::vector<TensorPiece>> ranks(dp * tp);
  for (const TestTensor& tensor : tensors) {
    const size_t axis = (*random)() % tensor.shape.size();
    const int slices = static_cast<int>(std::min<int64_t>(tp, tensor.shape[axis]));
    const std::vector<int64_t> slice_cuts = RandomCuts(tensor.shape[axis], slices, true, random);
    for (int slice = 0; slice < slices; ++slice) {
      Box box = WholeBox(tensor.shape);
      box.offset[axis] = slice_cuts[slice];
      box.extent[axis] = slice_cuts[slice + 1] - slice_cuts[slice];
      const std::vector<int64_t> flat_cuts = RandomCuts(box.elements(), dp, false, random);
      for (int d = 0; d < dp; ++d) {
        ranks[d * tp + slice].push_back(
            {tensor.name, tensor.shape, box, flat_cuts[d], flat_cuts[d + 1] - flat_cuts[d]});
      }
    }
  }
  return ranks;
}

}  // namespace convene::worker::testing
