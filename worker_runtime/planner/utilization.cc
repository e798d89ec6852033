#include "worker_runtime/planner/utilization.h"

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace convene::worker {

std::optional<Gpu> GpuOfDevice(absl::string_view description) {
  // Words between blanks: "gb200" is no "b200".
  const std::string words = absl::StrCat(
      " ", absl::StrReplaceAll(absl::AsciiStrToLower(description), {{"-", " "}, {",", " "}}), " ");
  const bool is_slower_h100 =
      absl::StrContains(words, " h100 ") &&
      (absl::StrContains(words, " pcie ") || absl::StrContains(words, " nvl "));
  if (is_slower_h100 || absl::StrContains(words, " laptop ")) return std::nullopt;
  for (const std::string& name : GpuNames()) {
    if (!absl::StrContains(words,
                           absl::StrCat(" ", absl::StrReplaceAll(name, {{"-", " "}}), " "))) {
      continue;
    }
    absl::StatusOr<Gpu> gpu = FindGpu(name);
    // "Intel Xeon CPU" is no kind of the table.
    if (gpu.ok() && !gpu->is_cpu) return *std::move(gpu);
  }
  return std::nullopt;
}

double PeakOf(const Gpu& gpu, DType dtype, bool float8) {
  if (float8) return gpu.fp8;
  return dtype == DType::kFloat32 ? gpu.fp32 : gpu.bf16;
}

Utilization UtilizationOf(const TokenFlops& flops, double tokens_per_second_a_gpu, double peak) {
  const double a_flop = tokens_per_second_a_gpu / peak;
  return {.full_attention = a_flop * (flops.products + flops.full_attention),
          .causal_attention = a_flop * (flops.products + flops.causal_attention)};
}

}  // namespace convene::worker
