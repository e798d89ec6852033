#include "worker_runtime/comm/nccl/limits.h"

#include <bit>
#include <catch2/catch.hpp>

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

}  // namespace
}  // namespace convene::worker
