#include "worker_runtime/comm/nccl/stall.h"

#include <catch2/catch.hpp>

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

NcclProgress AllReduce(uint64_t started) {
  return {.order = "dp",
          .started = started,
          .completed = started - 1,
          .operation = "all_reduce",
          .size_bytes = 4096,
          .dtype = "bf16"};
}

TEST_CASE("the rank that never came is named, with what it did last") {
  CHECK(ExplainStall(AllReduce(17), {0, 1, 2},
                     {{0, {AllReduce(17)}}, {1, {AllReduce(17)}}, {2, {AllReduce(16)}}}) ==
        "rank 2 never started it (its last there: all_reduce #16)");
}

TEST_CASE("a rank that tells nothing is named") {
  CHECK(ExplainStall(AllReduce(17), {0, 5}, {{0, {AllReduce(17)}}}) ==
        "rank 5 left no word (ended, or busy outside of communication)");
}

TEST_CASE("a rank that does something else is named: operation, size or type") {
  NcclProgress other = AllReduce(17);
  other.operation = "broadcast";
  CHECK(ExplainStall(AllReduce(17), {0, 1}, {{0, {AllReduce(17)}}, {1, {other}}}) ==
        "rank 1 started broadcast (4096 B bf16) instead");
  other = AllReduce(17);
  other.size_bytes = 64;
  CHECK(ExplainStall(AllReduce(17), {1}, {{1, {other}}}) ==
        "rank 1 started all_reduce (64 B bf16) instead");
  other = AllReduce(17);
  other.dtype = "fp32";
  CHECK(ExplainStall(AllReduce(17), {1}, {{1, {other}}}) ==
        "rank 1 started all_reduce (4096 B fp32) instead");
}

// Each rank dispatches as many tokens as its routing says.
TEST_CASE("ranks whose sizes differ are not blamed where sizes may differ") {
  NcclProgress dispatch = AllReduce(17);
  dispatch.operation = "all_to_all_v";
  NcclProgress other = dispatch;
  other.size_bytes = 3584;
  CHECK(ExplainStall(dispatch, {0, 1}, {{0, {dispatch}}, {1, {other}}}) ==
        "all 2 ranks started it");
  other.dtype = "fp32";
  CHECK(ExplainStall(dispatch, {1}, {{1, {other}}}) ==
        "rank 1 started all_to_all_v (3584 B fp32) instead");
}

TEST_CASE("orders are told apart") {
  NcclProgress elsewhere = AllReduce(17);
  elsewhere.order = "tp";
  CHECK(ExplainStall(AllReduce(17), {1}, {{1, {elsewhere}}}) ==
        "rank 1 never started it, nor anything else there");
}

TEST_CASE("nobody is blamed when all have come, or are past it") {
  CHECK(ExplainStall(AllReduce(17), {0, 1}, {{0, {AllReduce(17)}}, {1, {AllReduce(18)}}}) ==
        "all 2 ranks started it");
}

TEST_CASE("a long list of missing ranks is cut") {
  std::vector<int> members;
  for (int rank = 0; rank < 100; ++rank) members.push_back(rank);
  const std::string text = ExplainStall(AllReduce(1), members, {});
  CHECK_THAT(text, Catch::Contains("rank 7 left") && Catch::EndsWith("; and 92 more"));
  CHECK_THAT(text, !Catch::Contains("rank 8 "));
}

TEST_CASE("progress survives its way through the store") {
  NcclProgress message = {.order = "pp 0>1", .started = 3, .operation = "message"};
  std::vector<NcclProgress> orders = {AllReduce(17), message};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64, DType::kE4M3,
                            DType::kE5M2, DType::kInt32, DType::kUInt8}) {
    orders.push_back(AllReduce(18));
    orders.back().dtype = DTypeName(dtype);
  }
  const auto parsed = ParseProgress(SerializeProgress(orders));
  REQUIRE_OK(parsed);
  CHECK(*parsed == orders);
  REQUIRE_OK(ParseProgress(""));
  CHECK_STATUS(ParseProgress("dp\tx\t1\tall_reduce\t4\tfp32\n"), absl::StatusCode::kInvalidArgument,
               "not a line of progress");
  CHECK_STATUS(ParseProgress("dp\t1\t1\tall_reduce\t4\n"), absl::StatusCode::kInvalidArgument,
               "not a line of progress");
}

}  // namespace
}  // namespace convene::worker
