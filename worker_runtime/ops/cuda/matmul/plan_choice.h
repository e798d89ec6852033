// PURE: the key under which a chosen algorithm is remembered, and the choice among timed
// candidates.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "worker_runtime/device/dtype.h"

namespace convene::worker::cuda {

// How an algorithm is chosen for a product that was not seen before.
enum class MatMulMode {
  kTimed,  // the fastest of the library's first candidates, by a clock: may differ from run to run
  kFirst,  // the library's first candidate
  kDeterministic,  // the same, and partial sums only in float and in a fixed order
};

// The largest power of two that divides the address, up to 256: what cuBLASLt asks about.
inline int AlignmentBytes(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  constexpr uintptr_t kLargest = 256;
  return static_cast<int>(address == 0 ? kLargest : std::min(kLargest, address & (~address + 1)));
}

// Products that are alike in all of this run by the same algorithm. The matrices are as in
// ops/matmul.h.
struct MatMulKey {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  // beta is 1
  int m = 0;
  int n = 0;
  int k = 0;
  DType in_a = DType::kFloat32;
  DType in_b = DType::kFloat32;
  DType out = DType::kFloat32;
  bool fast_sums = false;  // Float8Sums::kFast
  int alignment_a = 0;     // bytes
  int alignment_b = 0;
  int alignment_c = 0;
  int multiprocessors = 0;  // that it may use; 0: all
  bool unsplit = false;     // no algorithm that cuts the sum over k into slices
  MatMulMode mode = MatMulMode::kTimed;

  friend bool operator==(const MatMulKey&, const MatMulKey&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const MatMulKey& key) {
    return H::combine(std::move(state), key.transpose_a, key.transpose_b, key.accumulate, key.m,
                      key.n, key.k, key.in_a, key.in_b, key.out, key.fast_sums, key.alignment_a,
                      key.alignment_b, key.alignment_c, key.multiprocessors, key.unsplit, key.mode);
  }
};

// The key in that mode. For kDeterministic it leaves out what changes with the layout of a run and
// not with the product: alignment beyond 16 bytes, and multiprocessors that a collective beside it
// wants. Else the library may propose another algorithm, and so other bits.
inline MatMulKey InMode(MatMulKey key, MatMulMode mode) {
  key.mode = mode;
  if (mode != MatMulMode::kDeterministic) return key;
  constexpr int kWidestLoad = 16;  // bytes
  for (int* alignment : {&key.alignment_a, &key.alignment_b, &key.alignment_c}) {
    *alignment = std::min(*alignment, kWidestLoad);
  }
  key.multiprocessors = 0;
  return key;
}

// Whether the library may cut the sum over k into slices ("split-K") that are added afterwards.
// For 16-bit numbers cuBLASLt 12 and 13 were seen to drop the end of k where k is no multiple of
// the tile that a slice is made of, silently (facebookexperimental/triton, pull request 2767; not
// tried here). 128 is the deepest tile of such products.
inline bool MaySplit(const MatMulKey& key) {
  return key.in_a != DType::kBFloat16 || (!key.unsplit && key.k % 128 == 0);
}

// The product's name to MatMulChoices: all of the key but the mode, as "aT,b m64 n64 k16384
// bf16,bf16>fp32 +c align 256,256,256", with " fast", " of 116 multiprocessors" and " unsplit"
// where they are.
inline std::string ToText(const MatMulKey& key) {
  return absl::StrCat(
      key.transpose_a ? "aT," : "a,", key.transpose_b ? "bT" : "b", " m", key.m, " n", key.n, " k",
      key.k, " ", DTypeName(key.in_a), ",", DTypeName(key.in_b), ">", DTypeName(key.out),
      key.accumulate ? " +c" : "", " align ", key.alignment_a, ",", key.alignment_b, ",",
      key.alignment_c, key.fast_sums ? " fast" : "",
      key.multiprocessors > 0 ? absl::StrCat(" of ", key.multiprocessors, " multiprocessors") : "",
      key.unsplit ? " unsplit" : "");
}

// The index of the candidate with the lowest median time. `milliseconds[i]` are candidate i's
// times; none when it cannot run. Within 1 %, which is noise, the earlier candidate: the library
// ranked them. 0 when none can run.
inline size_t FastestCandidate(absl::Span<const std::vector<float>> milliseconds) {
  constexpr float kNoise = 0.01f;
  size_t fastest = 0;
  float best = 0;
  bool found = false;
  for (size_t i = 0; i < milliseconds.size(); ++i) {
    std::vector<float> times = milliseconds[i];
    if (times.empty()) continue;
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    const float median = times[times.size() / 2];
    if (found && median >= best * (1 - kNoise)) continue;
    found = true;
    best = median;
    fastest = i;
  }
  return fastest;
}

}  // namespace convene::worker::cuda
