#include "worker_runtime/ops/cuda/attention/attention_split.h"

#include <catch2/catch.hpp>
#include <cstddef>

namespace convene::worker::cuda {
namespace {

constexpr size_t kGib = size_t{1} << 30;

// A 1B Llama's.
AttentionShape Shape(int batch, int sequence_length) {
  return {.batch = batch,
          .sequence_length = sequence_length,
          .heads = 32,
          .kv_heads = 8,
          .head_size = 64,
          .deterministic = true};
}

TEST_CASE("what fits goes in one call") {
  CHECK(CudnnScoresBytes(Shape(4, 2048), 4) == kGib);
  CHECK(SplitAttention(Shape(4, 2048), 4, kGib) == AttentionSplit{4, 8});
}

TEST_CASE("the batch is cut before the heads are, into equal parts") {
  CHECK(SplitAttention(Shape(8, 2048), 8, kGib) == AttentionSplit{4, 8});
  CHECK(SplitAttention(Shape(7, 2048), 7, kGib) == AttentionSplit{1, 8});
  CHECK(SplitAttention(Shape(6, 2048), 6, kGib) == AttentionSplit{3, 8});
  CHECK(SplitAttention(Shape(3, 4096), 3, kGib) == AttentionSplit{1, 8});
  CHECK(SplitAttention(Shape(2, 8192), 2, kGib) == AttentionSplit{1, 2});
}

TEST_CASE("what does not fit for one key-value head is not cut at all") {
  CHECK(SplitAttention(Shape(1, 8192), 1, kGib) == AttentionSplit{1, 2});
  CHECK(SplitAttention(Shape(1, 16384), 1, kGib) == std::nullopt);
}

TEST_CASE("packed rows are cut by heads alone, however many documents") {
  AttentionShape shape = Shape(4, 2048);
  shape.packed = true;
  CHECK(SplitAttention(shape, 4, kGib) == AttentionSplit{4, 8});
  CHECK(SplitAttention(shape, 16, kGib) == AttentionSplit{4, 2});
  CHECK(SplitAttention(shape, 32, kGib) == AttentionSplit{4, 1});
  CHECK(SplitAttention(shape, 64, kGib) == std::nullopt);
  shape.heads = 8;  // one query head a key-value head: 1 and 2 heads start at no 16 bytes
  CHECK(SplitAttention(shape, 32, kGib) == AttentionSplit{4, 4});
  CHECK(SplitAttention(shape, 64, kGib) == std::nullopt);
}

TEST_CASE("every part fits, ends where the next begins, and starts at 16 bytes") {
  for (const int batch : {1, 2, 3, 5, 12}) {
    for (const int length : {1000, 2047, 2050, 4096}) {
      for (const bool packed : {false, true}) {
        AttentionShape shape = Shape(batch, length);
        shape.packed = packed;
        const int sequences = packed ? 4 * batch : batch;
        const auto split = SplitAttention(shape, sequences, kGib);
        CAPTURE(batch, length, packed);
        if (!split.has_value()) continue;
        CHECK(shape.batch % split->batch == 0);
        CHECK(shape.kv_heads % split->kv_heads == 0);
        AttentionShape part = shape;
        part.kv_heads = split->kv_heads;
        part.heads = split->kv_heads * (shape.heads / shape.kv_heads);
        CHECK(CudnnScoresBytes(part, packed ? sequences : split->batch) <= kGib);
        const size_t row = packed ? 1 : length;
        if (part.kv_heads < shape.kv_heads) CHECK(part.heads * row % 4 == 0);
        if (split->batch < batch) CHECK(size_t{1} * split->batch * shape.heads * row % 4 == 0);
      }
    }
  }
}

}  // namespace
}  // namespace convene::worker::cuda
