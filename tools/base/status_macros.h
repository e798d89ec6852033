// Early return on a bad absl::Status.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#define CONVENE_RETURN_IF_ERROR(expression)          \
  do {                                               \
    ::absl::Status convene_status = (expression);    \
    if (!convene_status.ok()) return convene_status; \
  } while (false)

#define CONVENE_CONCAT_INNER(a, b) a##b
#define CONVENE_CONCAT(a, b) CONVENE_CONCAT_INNER(a, b)

// CONVENE_ASSIGN_OR_RETURN(auto value, Compute());
#define CONVENE_ASSIGN_OR_RETURN(declaration, expression)                                  \
  CONVENE_ASSIGN_OR_RETURN_IMPL(CONVENE_CONCAT(convene_status_or_, __LINE__), declaration, \
                                expression)

#define CONVENE_ASSIGN_OR_RETURN_IMPL(result, declaration, expression) \
  auto result = (expression);                                          \
  if (!result.ok()) return std::move(result).status();                 \
  declaration = *std::move(result)

namespace convene {

// The same code, with "context: " before the message. OK stays OK.
inline absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(context, ": ", status.message()));
}

// The status for the errno value `error_number`, with "`what`: strerror".
// ENOENT: NotFound; EACCES, EPERM: PermissionDenied; EEXIST: AlreadyExists; ENOSPC, EDQUOT:
// ResourceExhausted; EADDRINUSE: AlreadyExists; ETIMEDOUT: DeadlineExceeded; connection errors:
// Unavailable; EINVAL: InvalidArgument; else Unknown.
absl::Status ErrnoStatus(int error_number, absl::string_view what);

}  // namespace convene
