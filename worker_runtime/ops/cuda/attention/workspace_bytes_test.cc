#include "worker_runtime/ops/cuda/attention/workspace_bytes.h"

#include <catch2/catch.hpp>

namespace convene::worker::cuda {
namespace {

constexpr size_t kMib = size_t{1} << 20;

// A 1B Llama's.
AttentionShape Shape(int batch, int sequence_length) {
  return {.batch = batch,
          .sequence_length = sequence_length,
          .heads = 32,
          .kv_heads = 8,
          .head_size = 64};
}

TEST_CASE("our own backward pass keeps one float a row") {
  CHECK(FlashWorkspaceBytes(Shape(2, 2048)) == size_t{2} * 32 * 2048 * 4);
}

TEST_CASE("cuDNN's scratch grows with the square of the sequence only while that is small") {
  // 32 heads of 2048 x 2048 scores are 256 MiB: the last that fit.
  CHECK(CudnnScoresBytes(Shape(1, 2048)) == 256 * kMib);
  CHECK(CudnnWorkspaceBytes(Shape(1, 2048)) > 256 * kMib);
  // 8192: dQ, dK and dV of 64 MiB each instead of 4 GiB.
  CHECK(CudnnWorkspaceBytes(Shape(1, 8192)) > 3 * 64 * kMib);
  CHECK(CudnnWorkspaceBytes(Shape(1, 8192)) < 4 * 64 * kMib);
}

TEST_CASE("a deterministic backward pass keeps more scores, up to 1 GiB") {
  AttentionShape shape = Shape(4, 2048);
  const size_t fast = CudnnWorkspaceBytes(shape);
  shape.deterministic = true;
  CHECK(CudnnWorkspaceBytes(shape) > 1024 * kMib);
  CHECK(fast < 512 * kMib);
  shape.batch = 8;
  CHECK(CudnnWorkspaceBytes(shape) < 1024 * kMib);
}

TEST_CASE("an odd length is rounded up to whole tiles") {
  CHECK(CudnnScoresBytes(Shape(1, 129)) == CudnnScoresBytes(Shape(1, 256)));
}

TEST_CASE("without grouped heads no copy for each query head is kept") {
  AttentionShape shape = Shape(1, 8192);
  const size_t grouped = CudnnWorkspaceBytes(shape);
  shape.kv_heads = shape.heads;
  CHECK(grouped - CudnnWorkspaceBytes(shape) == 2 * 64 * kMib);
}

}  // namespace
}  // namespace convene::worker::cuda
