#include "worker_runtime/schedule/chunk_layers.h"

#include <cstdint>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/base/check.h"
#include "tools/base/text.h"

namespace convene::worker {
namespace {

// One layer after the other goes to the cheapest chunk: as all layers cost the same, no cut has a
// cheaper dearest chunk.
std::vector<int> BalancedCut(int layers, int chunks, double head_cost) {
  std::vector<int> cut(chunks, 0);
  std::vector<double> cost(chunks, 0);
  cost.back() += head_cost;
  // Of equally cheap chunks one between the ends goes first, as it must not stay empty, then a
  // later one, as earlier ranks save more microbatches.
  std::vector<int> preference;
  for (int chunk = chunks - 2; chunk > 0; --chunk) preference.push_back(chunk);
  preference.insert(preference.end(), {chunks - 1, 0});
  for (int layer = 0; layer < layers; ++layer) {
    const int cheapest =
        *absl::c_min_element(preference, [&](int a, int b) { return cost[a] < cost[b]; });
    ++cut[cheapest];
    ++cost[cheapest];
  }
  return cut;
}

}  // namespace

absl::StatusOr<std::vector<int>> CutLayers(absl::string_view layout, int layers, int chunks,
                                           double head_cost) {
  CONVENE_CHECK(layers >= 1 && chunks >= 1);
  if (layers < chunks - 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(chunks, " pipeline chunks for ", layers,
                     " layers: only the first and the last "
                     "chunk can do without a layer, so there are at most ",
                     layers + 2, " chunks (pipeline ranks x virtual stages)"));
  }
  const std::vector<int> balanced = BalancedCut(layers, chunks, head_cost);
  if (layout.empty()) return balanced;
  const auto wrong = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat("--pp-layout ", Utf8(layout, 200), ": ", why...,
                                                   "; ", absl::StrJoin(balanced, ","),
                                                   " would be legal"));
  };
  std::vector<int> cut;
  for (absl::string_view part : absl::StrSplit(layout, ',')) {
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(part, absl::MaxSplits('*', 1));
    int count = 0;
    int times = 1;
    if (!absl::SimpleAtoi(halves.first, &count) || count < 0 || count > layers ||
        (absl::StrContains(part, '*') && !absl::SimpleAtoi(halves.second, &times)) || times < 1 ||
        times > chunks) {
      return wrong("'", Utf8(part, 40), "' is no count of layers between 0 and ", layers,
                   ", nor such a count, '*' and for how many chunks");
    }
    cut.insert(cut.end(), times, count);
  }
  const int named = static_cast<int>(cut.size());
  if (named != chunks) return wrong("it names ", named, " chunks, and the pipeline has ", chunks);
  const int64_t sum = std::accumulate(cut.begin(), cut.end(), int64_t{0});
  if (sum != layers) return wrong("it adds up to ", sum, " layers, and the model has ", layers);
  for (int chunk = 1; chunk + 1 < chunks; ++chunk) {
    if (cut[chunk] == 0) return wrong("chunk ", chunk, " has no layer");
  }
  return cut;
}

}  // namespace convene::worker
