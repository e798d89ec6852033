#include "worker_runtime/ops/cuda/matmul/plan_choice.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace convene::worker::cuda {
namespace {

using Times = std::vector<std::vector<float>>;

TEST_CASE("the candidate with the lowest median is chosen, whatever its slowest run took") {
  CHECK(FastestCandidate(Times{{3, 3, 3}, {2, 90, 2}, {2.5, 2.5, 2.5}}) == 1);
  CHECK(FastestCandidate(Times{{3, 3, 3}, {1, 4, 4}}) == 0);
}

TEST_CASE("within noise the library's own order decides") {
  CHECK(FastestCandidate(Times{{1.0f}, {0.995f}}) == 0);
  CHECK(FastestCandidate(Times{{1.0f}, {0.98f}}) == 1);
  CHECK(FastestCandidate(Times{{1.0f}, {1.0f}, {1.0f}}) == 0);
}

TEST_CASE("candidates that cannot run are passed over") {
  CHECK(FastestCandidate(Times{{}, {5.0f}, {}, {4.0f}}) == 3);
  CHECK(FastestCandidate(Times{{}, {5.0f}}) == 1);
  CHECK(FastestCandidate(Times{{}, {}}) == 0);
  CHECK(FastestCandidate(Times{}) == 0);
}

TEST_CASE("an address's alignment is its largest power of two, up to 256") {
  const auto at = [](uintptr_t address) {
    return AlignmentBytes(reinterpret_cast<const void*>(address));  // NOLINT
  };
  CHECK(at(0x1000) == 256);
  CHECK(at(0x1040) == 64);
  CHECK(at(0x1042) == 2);
  CHECK(at(0x1043) == 1);
  CHECK(at(0) == 256);
}

TEST_CASE("a key differs in each of its parts") {
  const MatMulKey key{
      .m = 3, .n = 4, .k = 5, .alignment_a = 16, .alignment_b = 16, .alignment_c = 16};
  std::vector<MatMulKey> keys(17, key);
  keys[1].transpose_a = true;
  keys[2].transpose_b = true;
  keys[3].accumulate = true;
  keys[4].m = 6;
  keys[5].n = 6;
  keys[6].k = 6;
  keys[7].in_a = DType::kBFloat16;
  keys[8].out = DType::kBFloat16;
  keys[9].alignment_a = 2;
  keys[10].alignment_b = 2;
  keys[11].alignment_c = 2;
  keys[12].mode = MatMulMode::kDeterministic;
  keys[13].multiprocessors = 116;
  keys[14].in_b = DType::kE5M2;
  keys[15].fast_sums = true;
  keys[16].unsplit = true;
  const absl::flat_hash_set<MatMulKey> different(keys.begin(), keys.end());
  CHECK(different.size() == keys.size());
  CHECK(different.contains(key));
  // Only what the clock chose is remembered by name, so the mode is not in it.
  absl::flat_hash_set<std::string> names;
  for (const MatMulKey& other : keys) names.insert(ToText(other));
  CHECK(names.size() == keys.size() - 1);
  CHECK(ToText(keys[12]) == ToText(key));
}

TEST_CASE("a deterministic choice knows nothing of the layout") {
  const MatMulKey one{
      .m = 3, .alignment_a = 256, .alignment_b = 16, .alignment_c = 2, .multiprocessors = 116};
  MatMulKey other = one;
  other.alignment_a = 64;
  other.multiprocessors = 0;
  const MatMulKey chosen = InMode(one, MatMulMode::kDeterministic);
  CHECK(chosen == InMode(other, MatMulMode::kDeterministic));
  // A smaller alignment excludes algorithms, so it is still told.
  CHECK(chosen.alignment_a == 16);
  CHECK(chosen.alignment_b == 16);
  CHECK(chosen.alignment_c == 2);
  CHECK(chosen.m == 3);
  CHECK(chosen.mode == MatMulMode::kDeterministic);
  for (const MatMulMode mode : {MatMulMode::kTimed, MatMulMode::kFirst}) {
    CHECK_FALSE(InMode(one, mode) == InMode(other, mode));
    CHECK(InMode(one, mode).mode == mode);
  }
}

TEST_CASE("16-bit sums over k are cut into slices only where whole tiles fill it") {
  const auto may_split = [](DType in, int k, bool unsplit) {
    return MaySplit({.k = k, .in_a = in, .in_b = in, .unsplit = unsplit});
  };
  CHECK(may_split(DType::kBFloat16, 1024, false));
  CHECK_FALSE(may_split(DType::kBFloat16, 1024, true));
  CHECK_FALSE(may_split(DType::kBFloat16, 1025, false));
  CHECK_FALSE(may_split(DType::kBFloat16, 2880, false));
  CHECK(may_split(DType::kFloat32, 1025, false));
  CHECK(may_split(DType::kE4M3, 2880, false));
}

TEST_CASE("the longest name of a product is one line of 128 bytes at most") {
  const int large = 2'000'000'000;
  MatMulKey key{true, true, true, large, large, large, DType::kBFloat16, DType::kBFloat16};
  key.fast_sums = true;
  key.alignment_a = key.alignment_b = key.alignment_c = 256;
  key.multiprocessors = 1000;
  key.unsplit = true;
  CHECK(ToText(key) ==
        "aT,bT m2000000000 n2000000000 k2000000000 bf16,bf16>fp32 +c align 256,256,256 fast of "
        "1000 multiprocessors unsplit");
  CHECK(ToText(key).size() <= 128);
}

}  // namespace
}  // namespace convene::worker::cuda
