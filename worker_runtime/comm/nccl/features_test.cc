#include "worker_runtime/comm/nccl/features.h"

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

TEST_CASE("each call is used from the version on that brought it") {
  CHECK_FALSE(NcclFeaturesOf(21805).usable);
  CHECK(NcclFeaturesOf(21900).usable);
  CHECK_FALSE(NcclFeaturesOf(22699).shrink);
  CHECK(NcclFeaturesOf(22700).shrink);
  CHECK_FALSE(NcclFeaturesOf(22799).all_to_all);
  CHECK(NcclFeaturesOf(22800).all_to_all);
  CHECK_FALSE(NcclFeaturesOf(22808).revoke);
  CHECK(NcclFeaturesOf(22809).revoke);
  CHECK_FALSE(NcclFeaturesOf(22809).grow);
  CHECK(NcclFeaturesOf(22900).grow);
}

TEST_CASE("versions that restart badly within a process are known") {
  CHECK(NcclFeaturesOf(22802).restart_in_process);
  CHECK_FALSE(NcclFeaturesOf(22803).restart_in_process);
  CHECK_FALSE(NcclFeaturesOf(22808).restart_in_process);
  CHECK(NcclFeaturesOf(22809).restart_in_process);
  CHECK_FALSE(NcclFeaturesOf(21805).restart_in_process);
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
