#include "worker_runtime/device/cuda/first_error.h"

#include <catch2/catch.hpp>

#include "tools/base/testing/status_testing.h"

namespace convene::worker::cuda {
namespace {

TEST_CASE("a device without errors is OK") {
  FirstError first_error;
  CHECK_OK(first_error.status());
  first_error.Report(absl::OkStatus());
  CHECK_OK(first_error.status());
}

TEST_CASE("the first error stays, whatever comes after it") {
  FirstError first_error;
  first_error.Report(absl::InternalError("rms_norm_forward: illegal address"));
  first_error.Report(absl::InternalError("matmul: illegal address"));
  first_error.Report(absl::OkStatus());
  CHECK_STATUS(first_error.status(), absl::StatusCode::kInternal, "rms_norm_forward");
}

}  // namespace
}  // namespace convene::worker::cuda
