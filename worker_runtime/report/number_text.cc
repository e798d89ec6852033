#include "worker_runtime/report/number_text.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace convene::worker {

std::string HumanCount(double value) {
  if (!std::isfinite(value)) return absl::StrFormat("%f", value);
  if (value < 0) return absl::StrCat("-", HumanCount(-value));
  if (value < 9.95) return absl::StrFormat("%.*f", value == std::floor(value) ? 0 : 1, value);
  const char* const suffixes[] = {"", "k", "M", "B", "T"};
  int suffix = 0;
  // 999.5 would be printed as 1000.
  while (value >= 999.5 && suffix < 4) {
    value /= 1000;
    ++suffix;
  }
  const int decimals = suffix == 0 || value >= 99.95 ? 0 : 1;
  return absl::StrFormat("%.*f%s", decimals, value, suffixes[suffix]);
}

std::string WithThousands(int64_t value) {
  std::string text = absl::StrCat(value);
  const size_t first_digit = value < 0 ? 1 : 0;
  for (size_t i = text.size(); i > first_digit + 3;) {
    i -= 3;
    text.insert(i, 1, ',');
  }
  return text;
}

std::string HumanDuration(absl::Duration duration) {
  if (duration < absl::ZeroDuration() || duration == absl::InfiniteDuration()) return "-:--";
  const int64_t seconds = absl::ToInt64Seconds(duration + absl::Milliseconds(500));
  const int64_t hours = seconds / 3600;
  if (hours >= 48) return absl::StrFormat("%dd %dh", hours / 24, hours % 24);
  if (hours > 0) return absl::StrFormat("%d:%02d:%02d", hours, seconds / 60 % 60, seconds % 60);
  return absl::StrFormat("%d:%02d", seconds / 60, seconds % 60);
}

}  // namespace convene::worker
