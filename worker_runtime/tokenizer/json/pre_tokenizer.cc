#include "worker_runtime/tokenizer/json/pre_tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/json/piece_steps.h"
#include "worker_runtime/tokenizer/json/text_pattern.h"
#include "worker_runtime/tokenizer/scanners.h"

namespace convene::worker {
namespace {

// The patterns of the pre-tokenizers with these names, in the words of Rust's regex.
constexpr char kWords[] = R"([\w\x{200C}\x{200D}]+|[^\w\s\x{200C}\x{200D}]+)";
constexpr char kNumber[] = R"(\p{N})";
constexpr char kSpace[] = R"(\s)";
constexpr char kPunctuation[] = R"([!-/:-@\[-`{-~\p{P}])";

// Each step is a call within the call of the one before it. Real files have a few.
constexpr size_t kMostSteps = 64;

using Step = std::unique_ptr<PreTokenizerStep>;

absl::StatusOr<SplitBehavior> ReadBehavior(const JsonNode& node, SplitBehavior otherwise) {
  const auto behavior = node.Find("behavior");
  if (!behavior.has_value()) return otherwise;
  CONVENE_ASSIGN_OR_RETURN(const std::string name, behavior->String());
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return LacksFeature(behavior->place(), absl::StrCat("\"", name, "\""));
}

absl::StatusOr<Step> ReadSplit(const JsonNode& node) {
  CONVENE_ASSIGN_OR_RETURN(const JsonNode pattern_node, node.Get("pattern"));
  CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<SplitPattern> pattern, ReadPattern(pattern_node));
  CONVENE_ASSIGN_OR_RETURN(const SplitBehavior behavior,
                           ReadBehavior(node, SplitBehavior::kIsolated));
  CONVENE_ASSIGN_OR_RETURN(const bool invert, node.GetBool("invert", false));
  return MakeSplit(std::move(pattern), behavior, invert);
}

absl::StatusOr<PrependScheme> ReadPrependScheme(const JsonNode& node) {
  // Older files have add_prefix_space instead of prepend_scheme, or both.
  CONVENE_ASSIGN_OR_RETURN(const bool adds_prefix, node.GetBool("add_prefix_space", true));
  const auto scheme = node.Find("prepend_scheme");
  if (!scheme.has_value()) return adds_prefix ? PrependScheme::kAlways : PrependScheme::kNever;
  CONVENE_ASSIGN_OR_RETURN(const std::string name, scheme->String());
  if (name == "never") return PrependScheme::kNever;
  if (!adds_prefix) return scheme->Error("contradicts \"add_prefix_space\": false");
  if (name == "always") return PrependScheme::kAlways;
  if (name == "first") return PrependScheme::kFirst;
  return LacksFeature(scheme->place(), absl::StrCat("\"", name, "\""));
}

absl::StatusOr<Step> ReadMetaspace(const JsonNode& node) {
  CONVENE_ASSIGN_OR_RETURN(std::string replacement, node.GetCharacter("replacement"));
  CONVENE_ASSIGN_OR_RETURN(const PrependScheme prepend, ReadPrependScheme(node));
  CONVENE_ASSIGN_OR_RETURN(const bool split, node.GetBool("split", true));
  return MakeMetaspace(std::move(replacement), prepend, split);
}

absl::StatusOr<Step> SplitBy(const std::string& regex, SplitBehavior behavior,
                             bool invert = false) {
  CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<SplitPattern> pattern, MakeSplitPattern(regex));
  return MakeSplit(std::move(pattern), behavior, invert);
}

absl::Status AddByteLevel(const JsonNode& node, std::vector<Step>* steps) {
  CONVENE_ASSIGN_OR_RETURN(const bool adds_prefix, node.GetBool("add_prefix_space", true));
  if (adds_prefix) steps->push_back(MakeSpacePrefix());
  CONVENE_ASSIGN_OR_RETURN(const bool uses_regex, node.GetBool("use_regex", true));
  if (uses_regex) {
    CONVENE_ASSIGN_OR_RETURN(Step split,
                             SplitBy(std::string(kGpt2Pattern), SplitBehavior::kIsolated));
    steps->push_back(std::move(split));
  }
  steps->push_back(MakeSpelling());
  return absl::OkStatus();
}

// Adds the steps of the part `type`, which is no Sequence.
absl::Status AddPart(const std::string& type, const JsonNode& node, std::vector<Step>* steps) {
  const auto add = [steps](absl::StatusOr<Step> made) -> absl::Status {
    CONVENE_ASSIGN_OR_RETURN(Step step, std::move(made));
    steps->push_back(std::move(step));
    return absl::OkStatus();
  };
  if (type == "ByteLevel") return AddByteLevel(node, steps);
  if (type == "Split") return add(ReadSplit(node));
  if (type == "Metaspace") return add(ReadMetaspace(node));
  if (type == "Whitespace") return add(SplitBy(kWords, SplitBehavior::kRemoved, /*invert=*/true));
  if (type == "WhitespaceSplit") return add(SplitBy(kSpace, SplitBehavior::kRemoved));
  if (type == "Digits") {
    CONVENE_ASSIGN_OR_RETURN(const bool individual, node.GetBool("individual_digits", false));
    return add(
        SplitBy(kNumber, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous));
  }
  if (type == "Punctuation") {
    CONVENE_ASSIGN_OR_RETURN(const SplitBehavior behavior,
                             ReadBehavior(node, SplitBehavior::kIsolated));
    return add(SplitBy(kPunctuation, behavior));
  }
  if (type == "BertPreTokenizer") {
    CONVENE_RETURN_IF_ERROR(add(SplitBy(kSpace, SplitBehavior::kRemoved)));
    return add(SplitBy(kPunctuation, SplitBehavior::kIsolated));
  }
  if (type == "CharDelimiterSplit") {
    CONVENE_ASSIGN_OR_RETURN(std::string delimiter, node.GetCharacter("delimiter"));
    return add(MakeSplit(MakeLiteralPattern(std::move(delimiter)), SplitBehavior::kRemoved, false));
  }
  return LacksFeature(node.place(), absl::StrCat("\"", type, "\""));
}

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Read(const std::optional<JsonNode>& node) {
  PreTokenizer pre_tokenizer;
  if (!node.has_value()) return pre_tokenizer;
  const auto add = [&pre_tokenizer](const std::string& type, const JsonNode& part) -> absl::Status {
    pre_tokenizer.ends_in_spelling_ = type == "ByteLevel";
    CONVENE_RETURN_IF_ERROR(AddPart(type, part, &pre_tokenizer.steps_));
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
