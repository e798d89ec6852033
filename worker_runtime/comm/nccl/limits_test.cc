#include "worker_runtime/comm/nccl/limits.h"

#include <bit>
#include <catch2/catch.hpp>

#include "absl/time/time.h"

namespace convene::worker {
namespace {

TEST_CASE("a version is written as its release is called") {
  CHECK(NcclVersionText(22809) == "2.28.9");
  CHECK(NcclVersionText(21903) == "2.19.3");
  CHECK(NcclVersionText(23000) == "2.30.0");
  CHECK(NcclVersionText(2708) == "2.7.8");
}

TEST_CASE("all kernels that can wait for peers at once find multiprocessors beside each other") {
  for (int multiprocessors = kNcclKernelsAtOnce; multiprocessors <= 200; ++multiprocessors) {
    INFO(multiprocessors);
    const NcclBlocks blocks = NcclBlocksMax(multiprocessors);
    CHECK(blocks.collective >= blocks.message);
    CHECK(blocks.message >= 1);
    const unsigned all = 2 * std::bit_ceil(static_cast<unsigned>(blocks.collective)) +
                         2 * kNcclLinksMax * std::bit_ceil(static_cast<unsigned>(blocks.message));
    CHECK(all <= static_cast<unsigned>(multiprocessors));
  }
  CHECK(NcclBlocksMax(132).collective == 32);
  CHECK(NcclBlocksMax(132).message == 16);
  CHECK(NcclBlocksMax(16).collective == 4);  // a seventh of an H100
  CHECK(NcclBlocksMax(16).message == 2);
}

TEST_CASE("many communicators have more time to connect than one, but not more than operations") {
  const auto seconds = [](int communicator, int of_operations) {
    return absl::ToInt64Seconds(
        NcclConnectTimeout(communicator, absl::Seconds(60), absl::Seconds(of_operations)));
  };
  CHECK(seconds(0, 300) == 60);
  CHECK(seconds(1, 300) == 80);
  CHECK(seconds(9, 300) == 240);
  CHECK(seconds(14, 300) == 300);
  CHECK(seconds(14, 30) == 60);
}

}  // namespace
}  // namespace convene::worker
