// The contract of ops/attention.h against PyTorch's doubles: queries and keys of different counts
// and places, documents, the log-sum-exp, parts and their merge. golden/make_golden.py wrote them.
//
// Every device's attention is judged by the reference in double (ops/attention_part_test, and on a
// GPU ops/cuda/attention); here stands why the reference is right.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/testing/attention_parts.h"
#include "worker_runtime/ops/testing/ops_testing.h"
#include "worker_runtime/trainer/testing/golden.h"

namespace convene::worker {
namespace {

using testing::AttentionPart;
using testing::Golden;
using testing::Outputs;
using testing::PartHeads;
using testing::Positions;

constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kHeadSize = 8;

AttentionPart PartOf(const Golden& golden) {
  AttentionPart part = {.begins = golden.Values<int32_t>("begins"),
                        .query_positions = golden.Values<int32_t>("query_positions"),
                        .key_positions = golden.Values<int32_t>("key_positions"),
                        .queries = golden.Values<float>("queries"),
                        .keys_values = golden.Values<float>("keys_values")};
  part.shape = {.batch = static_cast<int>(golden.Shape("queries")[0]),
                .sequence_length = static_cast<int>(golden.Shape("queries")[1]),
                .heads = kHeads,
                .kv_heads = kKvHeads,
                .head_size = kHeadSize,
                .packed = true,
                .keys = static_cast<int>(golden.Shape("keys_values")[1])};
  return part;
}

// The same queries to one half of the keys.
AttentionPart HalfOf(const AttentionPart& whole, int half) {
  AttentionPart part = whole;
  const int keys = whole.shape.keys / 2;
  Positions places(keys);
  for (int i = 0; i < keys; ++i) places[i] = half * keys + i;
  part.shape.keys = keys;
  part.keys_values = testing::Take(whole.keys_values, whole.shape.batch, whole.shape.keys, places,
                                   0, size_t{2} * kKvHeads * kHeadSize);
  for (int i = 0; i < keys; ++i) part.key_positions[i] = whole.key_positions[half * keys + i];
  part.key_positions.resize(keys);
  return part;
}

template <typename Real>
void CheckNear(const std::vector<Real>& found, const std::vector<double>& expected,
               double tolerance) {
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    INFO("element " << i << ": " << found[i] << ", PyTorch " << expected[i]);
    if (std::isinf(expected[i])) {
      CHECK(found[i] == expected[i]);
    } else {
      CHECK(std::abs(found[i] - expected[i]) <= tolerance);
    }
  }
}

// The CPU's attention in float.
Outputs<float> Forward(const AttentionPart& part) {
  Stream stream = Stream::Cpu();
  Outputs<float> y = {std::vector<float>(part.queries.size(), NAN),
                      std::vector<float>(part.queries.size() / kHeadSize, NAN)};
  testing::PoisonedWorkspace workspace(
      AttentionWorkspaceBytes<float>(part.shape, DeviceKind::kCpu));
  AttentionForward(part.shape, {.begin = part.begins.data()},
                   {part.query_positions.data(), part.key_positions.data()},
                   PartHeads(part.shape, part.queries.data(), part.keys_values.data()), y[0].data(),
                   y[1].data(), workspace.get(), stream);
  return y;
}

TEST_CASE("the reference's attention of some tokens to some others is PyTorch's, in double") {
  const Golden golden("attention");
  const AttentionPart part = PartOf(golden);
  const Outputs<double> y = testing::ReferenceForward<double>(part);
  CheckNear(y[0], golden.Values<double>("out"), 1e-13);
  CheckNear(y[1], golden.Values<double>("log_sum_exp"), 1e-13);
  const Outputs<double> gradients =
      testing::ReferenceBackward<double>(part, y, golden.Values<float>("dout"));
  CheckNear(gradients[0], golden.Values<double>("dqueries"), 1e-13);
  CheckNear(gradients[1], golden.Values<double>("dkeys_values"), 1e-13);
}

TEST_CASE("the parts of the keys, and both merged, are PyTorch's") {
  constexpr double kRounding = 2e-6;
  const Golden golden("attention");
  const AttentionPart whole = PartOf(golden);
  Outputs<float> merged = {std::vector<float>(whole.queries.size(), NAN),
                           std::vector<float>(whole.queries.size() / kHeadSize, NAN)};
  Stream stream = Stream::Cpu();
  for (const int half : {0, 1}) {
    INFO("half " << half);
    const AttentionPart part = HalfOf(whole, half);
    const Outputs<float> y = Forward(part);
    const std::string name = "part" + std::to_string(half);
    CheckNear(y[0], golden.Values<double>(name + "/out"), kRounding);
    CheckNear(y[1], golden.Values<double>(name + "/log_sum_exp"), kRounding);
    AttentionMerge(part.shape, y[0].data(), y[1].data(), {0, part.shape.sequence_length},
                   /*is_first=*/half == 0, merged[0].data(), merged[1].data(), stream);
  }
  CheckNear(merged[0], golden.Values<double>("out"), kRounding);
  CheckNear(merged[1], golden.Values<double>("log_sum_exp"), kRounding);
}

}  // namespace
}  // namespace convene::worker
