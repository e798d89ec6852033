#include "tools/base/status_macros.h"

#include <cerrno>
#include <cstring>

namespace convene {
namespace {

absl::StatusCode CodeOf(int error_number) {
  switch (error_number) {
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case EEXIST:
    case EADDRINUSE:
      return absl::StatusCode::kAlreadyExists;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::StatusCode::kResourceExhausted;
    case ETIMEDOUT:
      return absl::StatusCode::kDeadlineExceeded;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return absl::StatusCode::kUnavailable;
    case EINVAL:
    case EISDIR:
    case ENOTDIR:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kUnknown;
  }
}

}  // namespace

absl::Status ErrnoStatus(int error_number, absl::string_view what) {
  return absl::Status(CodeOf(error_number), absl::StrCat(what, ": ", strerror(error_number)));
}

}  // namespace convene
