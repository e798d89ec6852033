// Read before each test, precompiled, after common_headers.h.
#ifndef CONVENE_TOOLS_BAZEL_PRECOMPILED_TEST_HEADERS_H_
#define CONVENE_TOOLS_BAZEL_PRECOMPILED_TEST_HEADERS_H_

#include <catch2/catch.hpp>

#endif  // CONVENE_TOOLS_BAZEL_PRECOMPILED_TEST_HEADERS_H_
