#include "worker_runtime/device/cuda/cards.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace convene::worker::cuda {
namespace {

// The oldest that Convene can be built for: bfloat16 arithmetic begins with it.
constexpr int kOldestArch = 80;

// Jetson Orin: its machine code and that of desktop cards do not run on each other (CUDA C++
// Programming Guide, "Binary Compatibility", on Tegra).
constexpr int kOrin = 87;

std::string Capability(int arch) { return absl::StrFormat("%d.%d", arch / 10, arch % 10); }

}  // namespace

std::vector<int> BuiltArchs() { return {CONVENE_CUDA_ARCHS}; }

absl::Status CheckCard(const std::string& name, int major, int minor,
                       const std::vector<int>& archs) {
  const int card = 10 * major + minor;
  const bool has_machine_code = std::any_of(archs.begin(), archs.end(), [&](int arch) {
    return arch == card || (arch / 10 == major && arch < card && card != kOrin && arch != kOrin);
  });
  if (has_machine_code || archs.back() <= card) return absl::OkStatus();
  if (card < kOldestArch) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s is too old (its compute capability is %d.%d): take a card of %s or later, or train on "
        "the CPU with --device cpu",
        name, major, minor, Capability(kOldestArch)));
  }
  const auto append = [](std::string* text, int arch) { *text += Capability(arch); };
  return absl::FailedPreconditionError(absl::StrFormat(
      "this program was not built for %s (its compute capability is %d.%d, the kernels are for "
      "%s): build it with --config=cuda --define=cuda_archs=%d",
      name, major, minor, absl::StrJoin(archs, ", ", append), card));
}

}  // namespace convene::worker::cuda
