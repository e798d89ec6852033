#include "launcher/print.h"

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace convene::launcher {

absl::Status Print(absl::string_view text) {
  errno = 0;
  const bool is_written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
                          std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (is_written) return absl::OkStatus();
  if (errno == EPIPE) return absl::CancelledError("the reader of stdout is gone");
  return absl::DataLossError(
      errno == 0 ? "write error"
                 : absl::StrCat("write error: ", std::generic_category().message(errno)));
}

}  // namespace convene::launcher
