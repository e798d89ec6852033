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

TEST_CASE("cuDNN's scratch grows with the sequence, not with its square") {
  // dQ twice, and dK and dV of half the bytes: 16 MiB each time; 32 heads of 2048 x 2048 scores
  // would be 256 MiB.
  CHECK(CudnnScoresBytes(Shape(1, 2048), 1) == 256 * kMib);
  CHECK(CudnnWorkspaceBytes(Shape(1, 2048)) > 3 * 16 * kMib);
  CHECK(CudnnWorkspaceBytes(Shape(1, 2048)) < 4 * 16 * kMib);
  CHECK(CudnnWorkspaceBytes(Shape(1, 8192)) > 3 * 64 * kMib);
  CHECK(CudnnWorkspaceBytes(Shape(1, 8192)) < 4 * 64 * kMib);
}

TEST_CASE("a deterministic backward pass keeps more scores, up to 1 GiB") {
  AttentionShape shape = Shape(4, 2048);
  const size_t fast = CudnnWorkspaceBytes(shape);
  shape.deterministic = true;
  CHECK(CudnnWorkspaceBytes(shape) > 1024 * kMib);
  CHECK(fast < 512 * kMib);
  // Twice the batch goes in two calls.
  shape.batch = 8;
  CHECK(CudnnWorkspaceBytes(shape) > 1024 * kMib);
  CHECK(CudnnWorkspaceBytes(shape) < 1024 * kMib + 2 * fast);
  // The scores of one key-value head are 2 GiB: our own kernel does it.
  CHECK(CudnnWorkspaceBytes({.batch = 1,
                             .sequence_length = 16384,
                             .heads = 32,
                             .kv_heads = 8,
                             .head_size = 64,
                             .deterministic = true}) == CudnnWorkspaceBytes(Shape(1, 16384)));
}

TEST_CASE("an odd length is rounded up to whole tiles") {
  CHECK(CudnnScoresBytes(Shape(1, 129), 1) == CudnnScoresBytes(Shape(1, 256), 1));
}

TEST_CASE("without grouped heads no copy for each query head is kept") {
  AttentionShape shape = Shape(1, 8192);
  const size_t grouped = CudnnWorkspaceBytes(shape);
  shape.kv_heads = shape.heads;
  CHECK(grouped - CudnnWorkspaceBytes(shape) == 64 * kMib);
}

TEST_CASE("scratch of packed rows grows with the tokens, whatever the documents are") {
  AttentionShape shape = Shape(4, 2048);
  shape.packed = true;
  // dQ takes rows of qkv, dK and dV rows for the 4 query heads that share one.
  const size_t row_bytes = size_t{4} * 2048 * (32 + 2 * 8) * 64 * 4;
  CHECK(CudnnWorkspaceBytes(shape) > 9 * row_bytes);
  CHECK(CudnnWorkspaceBytes(shape) < 9 * row_bytes + 16 * kMib);
  const size_t grouped = CudnnWorkspaceBytes(shape);
  shape.sequence_length *= 4;
  shape.batch /= 4;
  CHECK(CudnnWorkspaceBytes(shape) == grouped);
  shape.kv_heads = shape.heads;
  CHECK(CudnnWorkspaceBytes(shape) < size_t{8192} * 3 * 32 * 64 * 4 + 16 * kMib);
}

TEST_CASE("packed and deterministic, a short row plans no more scores than it can have") {
  AttentionShape shape = Shape(1, 64);
  shape.packed = true;
  const size_t fast = CudnnWorkspaceBytes(shape);
  shape.deterministic = true;
  CHECK(CudnnWorkspaceBytes(shape) > fast);
  CHECK(CudnnWorkspaceBytes(shape) <= fast + CudnnScoresBytes(shape, 64));
}

TEST_CASE("packed and deterministic, scores are planned for only if a few documents fit") {
  AttentionShape shape = Shape(1, 2048);
  shape.packed = true;
  const size_t fast = CudnnWorkspaceBytes(shape);
  shape.deterministic = true;
  CHECK(CudnnScoresBytes(shape, 8) > kLargestScoresBytes);
  CHECK(CudnnWorkspaceBytes(shape) > fast);
  CHECK(CudnnWorkspaceBytes(shape) > kLargestScoresBytes);
  AttentionShape longer = Shape(1, 16384);
  longer.packed = true;
  const size_t longer_fast = CudnnWorkspaceBytes(longer);
  longer.deterministic = true;
  CHECK(CudnnWorkspaceBytes(longer) == longer_fast);
}

}  // namespace
}  // namespace convene::worker::cuda
