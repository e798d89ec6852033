#include "worker_runtime/schedule/schedule_csv.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/schedule/simulate.h"

namespace convene::worker {
namespace {

// "3F0"; nullopt for anything else.
std::optional<Compute> ReadCompute(absl::string_view text) {
  constexpr absl::string_view kDigits = "0123456789";
  constexpr absl::string_view kLetters = "FBIW";
  Compute compute;
  const size_t letter = text.find_first_not_of(kDigits);
  if (letter == text.npos || text.find_first_not_of(kDigits, letter + 1) != text.npos ||
      kLetters.find(text[letter]) == kLetters.npos ||
      !absl::SimpleAtoi(text.substr(0, letter), &compute.chunk) ||
      !absl::SimpleAtoi(text.substr(letter + 1), &compute.microbatch)) {
    return std::nullopt;
  }
  compute.kind = static_cast<ComputeKind>(kLetters.find(text[letter]));
  return compute;
}

absl::StatusOr<std::vector<Compute>> ReadRow(absl::string_view row, size_t number) {
  std::vector<Compute> list;
  size_t column = 0;
  for (absl::string_view cell : absl::StrSplit(row, ',')) {
    ++column;
    absl::string_view actions = absl::StripAsciiWhitespace(cell);
    if (actions.empty()) continue;
    const bool is_pair =
        absl::StartsWith(actions, "(") && absl::ConsumeSuffix(&actions, ")OVERLAP_F_B");
    if (is_pair) actions.remove_prefix(1);
    for (absl::string_view action : absl::StrSplit(actions, is_pair ? ';' : ',')) {
      const std::optional<Compute> compute = ReadCompute(absl::StripAsciiWhitespace(action));
      if (!compute.has_value()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "row ", number, ", column ", column, ": '", Utf8(action, 40),
            "' is no action: write the chunk, F, B, I or W, and the microbatch, such as 3F0 "
            "(messages are not written: a file of PyTorch's has to be of format compute_only)"));
      }
      list.push_back(*compute);
    }
  }
  if (!list.empty()) return list;
  return absl::InvalidArgumentError(
      absl::StrCat("row ", number, " has no action: each row is a rank, and holds a chunk"));
}

}  // namespace

absl::StatusOr<Schedule> ReadCsv(absl::string_view text) {
  Schedule schedule;
  int64_t chunks = 0;
  int64_t microbatches = 0;
  int64_t forwards = 0;
  for (absl::string_view row : absl::StrSplit(absl::StripTrailingAsciiWhitespace(text), '\n')) {
    CONVENE_ASSIGN_OR_RETURN(std::vector<Compute> list, ReadRow(row, schedule.ranks.size() + 1));
    for (const Compute& compute : list) {
      chunks = std::max(chunks, int64_t{compute.chunk} + 1);
      microbatches = std::max(microbatches, int64_t{compute.microbatch} + 1);
      forwards += compute.kind == ComputeKind::kForward ? 1 : 0;
    }
    schedule.ranks.push_back(std::move(list));
  }
  // A slip of the pen in a number must not take all the memory either.
  if (chunks * microbatches > forwards) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file names chunk ", chunks - 1, " and microbatch ", microbatches - 1,
                     ": ", chunks, " chunks x ", microbatches, " microbatches need ",
                     chunks * microbatches, " forwards (F), and it has ", forwards));
  }
  schedule.microbatches = static_cast<int>(microbatches);
  // The first row with an action of a chunk holds it; Simulate refuses any other.
  schedule.placement.assign(chunks, 0);
  for (size_t rank = schedule.ranks.size(); rank-- > 0;) {
    for (const Compute& compute : schedule.ranks[rank]) {
      schedule.placement[compute.chunk] = static_cast<int>(rank);
    }
  }
  CONVENE_RETURN_IF_ERROR(Simulate(schedule).status());
  return schedule;
}

}  // namespace convene::worker
