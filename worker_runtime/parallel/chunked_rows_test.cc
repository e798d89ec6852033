#include "worker_runtime/parallel/chunked_rows.h"

#include <catch2/catch.hpp>

namespace convene::worker {
namespace {

constexpr size_t kRowBytes = 2 * 4096;
constexpr auto kGpu = DeviceKind::kCuda;

ChunkChoice OnGpu(int rows, size_t row_bytes = kRowBytes) {
  return ChooseChunks(rows, row_bytes, /*is_split=*/true, /*tp=*/8, kGpu, /*asked=*/0);
}

TEST_CASE("a GPU's rows are cut as far as each chunk is worth a product and a collective") {
  CHECK(OnGpu(16384).why == "4: 4096 rows (32.0 MiB) each");
  CHECK(OnGpu(8192).chunks == 4);
  CHECK(OnGpu(8184).chunks == 3);  // 4 would leave 2046 rows
  CHECK(OnGpu(4096).chunks == 2);
  CHECK(OnGpu(4095).why == "1: 4095 rows (32.0 MiB) are too few to cut, or do not come out even");
  CHECK(OnGpu(16384, 1024).chunks == 2);  // 4 would leave 4 MiB
  CHECK(OnGpu(16384, 512).chunks == 1);
}

TEST_CASE("where rows are split, each chunk's come out even") {
  CHECK(ChooseChunks(8200, kRowBytes, /*is_split=*/false, 8, kGpu, 0).chunks == 4);
  CHECK(ChooseChunks(8200, kRowBytes, /*is_split=*/true, 8, kGpu, 0).chunks == 1);
  CHECK(ChooseChunks(12, 4, /*is_split=*/true, 2, kGpu, /*asked=*/4).chunks == 3);
  CHECK(ChooseChunks(12, 4, /*is_split=*/false, 2, kGpu, /*asked=*/4).chunks == 4);
  CHECK(ChooseChunks(7, 4, /*is_split=*/false, 2, kGpu, /*asked=*/4).chunks == 1);
}

TEST_CASE("a CPU cuts no rows unless it is asked to, and one rank never does") {
  CHECK(ChooseChunks(8192, kRowBytes, true, 8, DeviceKind::kCpu, 0).chunks == 1);
  CHECK(ChooseChunks(8192, kRowBytes, true, 8, DeviceKind::kCpu, 2).chunks == 2);
  CHECK(ChooseChunks(8192, kRowBytes, false, 1, kGpu, 2).chunks == 1);
}

}  // namespace
}  // namespace convene::worker
