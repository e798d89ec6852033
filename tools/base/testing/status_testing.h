// CHECK_OK(expr), REQUIRE_OK(expr) and CHECK_STATUS(expr, code, "part of the text"), for Status and
// StatusOr alike.
#pragma once

#include <catch2/catch.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace convene::testing {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

}  // namespace convene::testing

#define CHECK_OK(expression)                                                          \
  do {                                                                                \
    const ::absl::Status convene_status = ::convene::testing::StatusOf((expression)); \
    INFO(convene_status.ToString());                                                  \
    CHECK(convene_status.ok());                                                       \
  } while (false)

#define REQUIRE_OK(expression)                                                        \
  do {                                                                                \
    const ::absl::Status convene_status = ::convene::testing::StatusOf((expression)); \
    INFO(convene_status.ToString());                                                  \
    REQUIRE(convene_status.ok());                                                     \
  } while (false)

#define CHECK_STATUS(expression, expected_code, expected_text)                         \
  do {                                                                                 \
    const ::absl::Status convene_status = ::convene::testing::StatusOf((expression));  \
    INFO(convene_status.ToString());                                                   \
    CHECK(convene_status.code() == (expected_code));                                   \
    CHECK_THAT(std::string(convene_status.message()), Catch::Contains(expected_text)); \
  } while (false)
