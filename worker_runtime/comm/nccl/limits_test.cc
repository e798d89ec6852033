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
    CHECK(NcclBlocksMax(multiprocessors) >= 1);
    const auto blocks = static_cast<unsigned>(NcclBlocksMax(multiprocessors));
    CHECK(kNcclKernelsAtOnce * std::bit_ceil(blocks) <= static_cast<unsigned>(multiprocessors));
  }
  CHECK(NcclBlocksMax(132) == 32);
  CHECK(NcclBlocksMax(16) == 4);  // a seventh of an H100
}

}  // namespace
}  // namespace convene::worker
