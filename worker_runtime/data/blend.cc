#include "worker_runtime/data/blend.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/text.h"

namespace convene::worker {
namespace {

constexpr double kShareUnits = 1LL << 40;

// round(position * part / whole), halves up.
int64_t ShareOf(int64_t position, int64_t part, int64_t whole) {
  const auto twice = 2 * static_cast<unsigned __int128>(position) * part;
  return static_cast<int64_t>((twice + whole) / (2 * static_cast<unsigned __int128>(whole)));
}

}  // namespace

Blend::Blend(absl::Span<const int64_t> weights) {
  CONVENE_CHECK(!weights.empty() && weights.size() <= kBlendSourcesMax);
  using Entry = std::tuple<int64_t, int, int>;  // weight; order of making, for ties; child
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> lightest;
  int made = 0;
  for (const int64_t weight : weights) {
    CONVENE_CHECK(weight > 0);
    lightest.emplace(weight, made, ~made);
    ++made;
  }
  while (lightest.size() > 1) {
    const auto [right_weight, right_made, right] = lightest.top();
    lightest.pop();
    const auto [left_weight, left_made, left] = lightest.top();
    lightest.pop();
    nodes_.push_back({left, right, left_weight, left_weight + right_weight});
    lightest.emplace(left_weight + right_weight, made++, static_cast<int>(nodes_.size()) - 1);
  }
  root_ = std::get<2>(lightest.top());
}

Blend::Place Blend::At(int64_t position) const {
  CONVENE_CHECK(position >= 0);
  int child = root_;
  while (child >= 0) {
    const Node& node = nodes_[child];
    const int64_t before = ShareOf(position, node.left_weight, node.weight);
    if (ShareOf(position + 1, node.left_weight, node.weight) > before) {
      child = node.left;
      position = before;
    } else {
      child = node.right;
      position -= before;
    }
  }
  return {~child, position};
}

std::vector<int64_t> WeightsOfShares(absl::Span<const double> shares) {
  // The largest first brings the sum into range, whatever the unit.
  const double largest = *std::max_element(shares.begin(), shares.end());
  double sum = 0.0;
  for (const double share : shares) sum += share / largest;
  std::vector<int64_t> weights;
  for (const double share : shares) {
    const double units = std::round(share / largest / sum * kShareUnits);
    weights.push_back(std::max<int64_t>(1, static_cast<int64_t>(units)));
  }
  return weights;
}

absl::StatusOr<std::vector<WeightedPath>> ParseBlend(absl::string_view text) {
  std::vector<WeightedPath> paths;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == '{') ++depth;
    if (c == '}' && depth > 0) --depth;
    if (c != ',' || (depth > 0 && i < text.size())) continue;
    const absl::string_view item = text.substr(begin, i - begin);
    begin = i + 1;
    WeightedPath path = {std::string(item), std::nullopt};
    const size_t colon = item.rfind(':');
    double weight = 0.0;
    if (colon != absl::string_view::npos && absl::SimpleAtod(item.substr(colon + 1), &weight)) {
      if (!(weight > 0.0) || !std::isfinite(weight)) {
        return absl::InvalidArgumentError(
            absl::StrCat("data: the share in '", Utf8(item, 200), "' must be a number above 0"));
      }
      path = {std::string(item.substr(0, colon)), weight};
    }
    if (path.path.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("data: a path is missing in '", Utf8(text, 200), "'"));
    }
    paths.push_back(std::move(path));
    if (paths.size() > kBlendSourcesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("data: more than ", kBlendSourcesMax, " sources"));
    }
  }
  return paths;
}

}  // namespace convene::worker
