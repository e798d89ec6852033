// Read before each file of ours, precompiled. Here stands what a quarter of the files or
// more include.
#ifndef CONVENE_TOOLS_BAZEL_PRECOMPILED_COMMON_HEADERS_H_
#define CONVENE_TOOLS_BAZEL_PRECOMPILED_COMMON_HEADERS_H_

#include <algorithm>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#endif  // CONVENE_TOOLS_BAZEL_PRECOMPILED_COMMON_HEADERS_H_
