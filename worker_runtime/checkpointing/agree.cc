#include "worker_runtime/checkpointing/agree.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

constexpr size_t kWordsMax = 1000;

}  // namespace

bool IsDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsPermissionDenied(status) || absl::IsUnknown(status);
}

absl::StatusOr<Agreement> ReachAgreement(const absl::Status& mine, const char* deed,
                                         Collective& world, Stream& stream) {
  const int size = world.size();
  double blame = mine.ok() ? 0 : size - world.rank() + (IsDamage(mine) ? 0 : size);
  CONVENE_RETURN_IF_ERROR(world.AllReduce(absl::MakeSpan(&blame, 1), ReduceOp::kMax, stream));
  if (blame == 0) return Agreement{};
  const int speaker = size - 1 - (static_cast<int>(blame) - 1) % size;
  // The code, then the words, a byte a number: all other ranks add zeros, so the sum is the
  // speaker's text.
  std::array<double, 1 + kWordsMax> told = {};
  if (world.rank() == speaker) {
    const std::string words(mine.message());
    told[0] = static_cast<double>(mine.code());
    for (size_t i = 0; i < std::min(words.size(), kWordsMax); ++i) {
      told[i + 1] = static_cast<unsigned char>(words[i]);
    }
  }
  CONVENE_RETURN_IF_ERROR(world.AllReduce(absl::MakeSpan(told), ReduceOp::kSum, stream));
  const auto code = static_cast<absl::StatusCode>(static_cast<int>(told[0]));
  if (mine.code() == code) return Agreement{mine};
  std::string words;
  for (size_t i = 1; i < told.size() && told[i] != 0; ++i) {
    words.push_back(static_cast<char>(static_cast<unsigned char>(told[i])));
  }
  return Agreement{
      absl::Status(code, absl::StrCat("rank ", speaker, " could not ", deed, ": ", words))};
}

absl::Status Agree(const absl::Status& mine, const char* deed, Collective& world, Stream& stream) {
  CONVENE_ASSIGN_OR_RETURN(const Agreement agreement, ReachAgreement(mine, deed, world, stream));
  return agreement.verdict;
}

}  // namespace convene::worker
