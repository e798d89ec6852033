#include "worker_runtime/trainer/openmp_settings.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/contract/names.h"

namespace convene::worker {
namespace {

constexpr char kSpinCount[] = "GOMP_SPINCOUNT";
constexpr char kWaitPolicy[] = "OMP_WAIT_POLICY";
constexpr char kLooks[] = "1000";

}  // namespace

std::vector<std::pair<std::string, std::string>> OpenMpSettings(
    const EnvironmentLookup& environment, int bound_cpus, int usable_cpus) {
  std::vector<std::pair<std::string, std::string>> settings;
  int threads = bound_cpus;
  if (const auto told = environment(contract::kOmpNumThreads)) {
    // A list has a number for each level of loops within loops. The library ignores what is no
    // number.
    const std::vector<absl::string_view> levels = absl::StrSplit(*told, ',');
    int outermost = 0;
    if (absl::SimpleAtoi(levels.front(), &outermost) && outermost > 0) threads = outermost;
  }
  if (threads > usable_cpus) {
    threads = usable_cpus;
    settings.emplace_back(contract::kOmpNumThreads, absl::StrCat(threads));
  }
  if (threads > 1 && !environment(kSpinCount) && !environment(kWaitPolicy)) {
    settings.emplace_back(kSpinCount, kLooks);
  }
  return settings;
}

}  // namespace convene::worker
