#include "worker_runtime/ops/cuda/attention/plan_key.h"

#include <catch2/catch.hpp>

#include "worker_runtime/ops/cuda/attention/attention_split.h"

namespace convene::worker::cuda {
namespace {

AttentionShape Shape(bool deterministic, bool packed) {
  return {.batch = 4,
          .sequence_length = 2048,
          .heads = 32,
          .kv_heads = 8,
          .head_size = 64,
          .deterministic = deterministic,
          .packed = packed};
}

PlanKey KeyOf(const AttentionShape& shape, int document_count, AttentionPass pass) {
  return MakePlanKey(shape, FusedStrides(shape), document_count, pass);
}

TEST_CASE("one graph goes forward, deterministic or not; backward there are two") {
  CHECK(KeyOf(Shape(true, false), 0, AttentionPass::kForward) ==
        KeyOf(Shape(false, false), 0, AttentionPass::kForward));
  CHECK_FALSE(KeyOf(Shape(true, false), 0, AttentionPass::kBackward) ==
              KeyOf(Shape(false, false), 0, AttentionPass::kBackward));
}

TEST_CASE("packed rows have a graph for each rounded number of documents") {
  const PlanKey few = KeyOf(Shape(false, true), 8, AttentionPass::kForward);
  const PlanKey many = KeyOf(Shape(false, true), 64, AttentionPass::kForward);
  CHECK_FALSE(few == many);
  CHECK(few.sequences() == 8);
  CHECK(many.sequences() == 64);
  CHECK(KeyOf(Shape(false, false), 0, AttentionPass::kForward).sequences() == 4);
}

TEST_CASE("a deterministic backward pass is cut where it keeps too many scores, and no other is") {
  AttentionShape shape = Shape(true, false);
  shape.batch = 8;
  const PlanKey key = KeyOf(shape, 0, AttentionPass::kBackward);
  CHECK(key.split == AttentionSplit{4, 8});
  CHECK(key.sequences() == 4);
  CHECK(key.heads() == 32);
  CHECK(KeyOf(shape, 0, AttentionPass::kForward).split == AttentionSplit{8, 8});
  shape.deterministic = false;
  CHECK(KeyOf(shape, 0, AttentionPass::kBackward).split == AttentionSplit{8, 8});
  const PlanKey packed = KeyOf(Shape(true, true), 16, AttentionPass::kBackward);
  CHECK(packed.split == AttentionSplit{4, 2});
  CHECK(packed.sequences() == 16);
  CHECK(packed.heads() == 8);
  CHECK(packed.kv_heads() == 2);
}

TEST_CASE("a graph can be named in a warning") {
  CHECK(ToText(KeyOf(Shape(true, true), 8, AttentionPass::kBackward)) ==
        "backward pass, batch 4, length 2048, heads 32/8 of 64, deterministic, packed");
  AttentionShape part = Shape(false, false);
  part.keys = 1024;
  CHECK(ToText(KeyOf(part, 0, AttentionPass::kForward)) ==
        "forward pass, batch 4, length 2048 against 1024 keys, heads 32/8 of 64");
}

TEST_CASE("heads that lie elsewhere, and keys that are seen otherwise, have a graph of their own") {
  AttentionShape part = Shape(false, false);
  part.keys = part.sequence_length;
  part.keys_seen = KeysSeen::kAll;
  const PlanKey all = KeyOf(part, 0, AttentionPass::kForward);
  CHECK_FALSE(all == MakePlanKey(part, PartGradientStrides(part), 0, AttentionPass::kForward));
  part.keys_seen = KeysSeen::kInOrder;
  CHECK_FALSE(all == KeyOf(part, 0, AttentionPass::kForward));
}

}  // namespace
}  // namespace convene::worker::cuda
