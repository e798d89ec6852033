// Read before each test, precompiled.
#ifndef CONVENE_TOOLS_BAZEL_PRECOMPILED_TEST_HEADERS_H_
#define CONVENE_TOOLS_BAZEL_PRECOMPILED_TEST_HEADERS_H_

#include <catch2/catch.hpp>

#include "tools/bazel/precompiled/common_headers.h"

#endif  // CONVENE_TOOLS_BAZEL_PRECOMPILED_TEST_HEADERS_H_
