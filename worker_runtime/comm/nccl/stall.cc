#include "worker_runtime/comm/nccl/stall.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "worker_runtime/comm/collective.h"

namespace convene::worker {
namespace {

constexpr size_t kNamesMax = 8;
// Each rank gives it another number of rows.
constexpr absl::string_view kOfAnySize = CollectiveName(CollectiveKind::kAllToAllV);

bool IsSame(const NcclProgress& one, const NcclProgress& other) {
  return one.operation == other.operation && one.dtype == other.dtype &&
         (one.size_bytes == other.size_bytes || one.operation == kOfAnySize);
}

// The reason why `rank` has not done the stuck operation; empty when it has.
std::string Blame(int rank, const NcclProgress& stuck,
                  const std::map<int, std::vector<NcclProgress>>& ranks) {
  const auto told = ranks.find(rank);
  if (told == ranks.end()) {
    return absl::StrCat("rank ", rank, " left no word (ended, or busy outside of communication)");
  }
  const auto same = std::find_if(told->second.begin(), told->second.end(),
                                 [&](const auto& order) { return order.order == stuck.order; });
  if (same == told->second.end() || same->started == 0) {
    return absl::StrCat("rank ", rank, " never started it, nor anything else there");
  }
  if (same->started < stuck.started) {
    return absl::StrCat("rank ", rank, " never started it (its last there: ", same->operation, " #",
                        same->started, ")");
  }
  // A rank that is ahead no longer knows its operation of this number.
  if (same->started > stuck.started) return "";
  if (IsSame(*same, stuck)) return "";
  return absl::StrCat("rank ", rank, " started ", same->operation, " (", same->size_bytes, " B ",
                      same->dtype, ") instead");
}

}  // namespace

std::string SerializeProgress(const std::vector<NcclProgress>& orders) {
  std::string text;
  for (const NcclProgress& order : orders) {
    absl::StrAppend(&text, order.order, "\t", order.started, "\t", order.completed, "\t",
                    order.operation, "\t", order.size_bytes, "\t", order.dtype, "\n");
  }
  return text;
}

absl::StatusOr<std::vector<NcclProgress>> ParseProgress(absl::string_view text) {
  std::vector<NcclProgress> orders;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    NcclProgress order;
    if (fields.size() != 6 || !absl::SimpleAtoi(fields[1], &order.started) ||
        !absl::SimpleAtoi(fields[2], &order.completed) ||
        !absl::SimpleAtoi(fields[4], &order.size_bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("not a line of progress: \"", line.substr(0, 80), "\""));
    }
    order.order = fields[0];
    order.operation = fields[3];
    order.dtype = fields[5];
    orders.push_back(std::move(order));
  }
  return orders;
}

std::string ExplainStall(const NcclProgress& stuck, const std::vector<int>& members,
                         const std::map<int, std::vector<NcclProgress>>& ranks) {
  std::vector<std::string> blamed;
  for (const int rank : members) {
    std::string blame = Blame(rank, stuck, ranks);
    if (!blame.empty()) blamed.push_back(std::move(blame));
  }
  if (blamed.empty()) return absl::StrCat("all ", members.size(), " ranks started it");
  const size_t more = blamed.size() - std::min(blamed.size(), kNamesMax);
  blamed.resize(blamed.size() - more);
  const std::string rest = more > 0 ? absl::StrCat("; and ", more, " more") : "";
  return absl::StrCat(absl::StrJoin(blamed, "; "), rest);
}

}  // namespace convene::worker
