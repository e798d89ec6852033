#include "tools/base/lost_output.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "tools/base/text.h"

namespace convene {

void LostOutput::Add(absl::string_view lost, int because) {
  lines += std::count(lost.begin(), lost.end(), '\n');
  bytes += static_cast<int64_t>(lost.size());
  error = because;
}

std::string LostOutput::Amount() const {
  return absl::StrCat(lines, lines == 1 ? " line (" : " lines (",
                      HumanBytes(static_cast<double>(bytes)), ")");
}

std::string LostOutput::Reason() const {
  if (error == EAGAIN) return "its reader takes nothing";
  return error == 0 ? "" : std::generic_category().message(error);
}

}  // namespace convene
