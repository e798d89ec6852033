#include "worker_runtime/tokenizer/json/pre_tokenizer.h"

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/json/piece_steps.h"

namespace convene::worker {
namespace {

// Each step is a call within the call of the one before it. Real files have a few.
constexpr size_t kMostSteps = 64;

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Read(const std::optional<JsonNode>& node) {
  PreTokenizer pre_tokenizer;
  if (!node.has_value()) return pre_tokenizer;
  const auto add = [&pre_tokenizer](const std::string& type, const JsonNode& part) -> absl::Status {
    pre_tokenizer.ends_in_spelling_ = type == "ByteLevel";
    CONVENE_RETURN_IF_ERROR(AddPreTokenizerSteps(type, part, &pre_tokenizer.steps_));
    if (pre_tokenizer.steps_.size() <= kMostSteps) return absl::OkStatus();
    return LacksFeature(part.place(),
                        absl::StrCat("\"Sequence\" of more than ", kMostSteps, " steps"));
  };
  CONVENE_RETURN_IF_ERROR(ForEachPart(*node, "pretokenizers", add));
  return pre_tokenizer;
}

void PreTokenizer::LeaveOutSpelling() {
  CONVENE_CHECK(ends_in_spelling_);
  steps_.pop_back();
  ends_in_spelling_ = false;
}

void PreTokenizer::ApplyFrom(size_t step, const TextPiece& piece, Scratch* scratch,
                             TakePiece take) const {
  if (step == steps_.size()) return take(piece);
  steps_[step]->Apply(piece, &(*scratch)[step],
                      [&](const TextPiece& part) { ApplyFrom(step + 1, part, scratch, take); });
}

}  // namespace convene::worker
