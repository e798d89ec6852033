#include "worker_runtime/tokenizer/json/pre_tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/json/characters.h"
#include "worker_runtime/tokenizer/json/piece_steps.h"
#include "worker_runtime/tokenizer/json/text_pattern.h"

namespace convene::worker {
namespace {

// Sequences within sequences; real files have one.
constexpr int kLargestDepth = 16;

// GPT-2's pattern, which the pre-tokenizer ByteLevel has built in.
constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

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
  CONVENE_ASSIGN_OR_RETURN(const JsonNode replacement_node, node.Get("replacement"));
  CONVENE_ASSIGN_OR_RETURN(std::string replacement, replacement_node.Character());
  CONVENE_ASSIGN_OR_RETURN(const PrependScheme prepend, ReadPrependScheme(node));
  CONVENE_ASSIGN_OR_RETURN(const bool split, node.GetBool("split", true));
  return MakeMetaspace(std::move(replacement), prepend, split);
}

Step MakeCharacterSplit(bool (*is_match)(char32_t), SplitBehavior behavior) {
  return MakeSplit(MakeCharacterPattern(is_match), behavior, false);
}

absl::Status AddByteLevel(const JsonNode& node, std::vector<Step>* steps) {
  CONVENE_ASSIGN_OR_RETURN(const bool adds_prefix, node.GetBool("add_prefix_space", true));
  if (adds_prefix) steps->push_back(MakeSpacePrefix());
  CONVENE_ASSIGN_OR_RETURN(const bool uses_regex, node.GetBool("use_regex", true));
  if (uses_regex) {
    CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<SplitPattern> pattern, MakeSplitPattern(kGpt2Pattern));
    steps->push_back(MakeSplit(std::move(pattern), SplitBehavior::kIsolated, false));
  }
  steps->push_back(MakeSpelling());
  return absl::OkStatus();
}

// Adds the steps of the part `type`, which is no Sequence.
absl::Status AddPart(const std::string& type, const JsonNode& node, std::vector<Step>* steps) {
  if (type == "ByteLevel") return AddByteLevel(node, steps);
  if (type == "Split") {
    CONVENE_ASSIGN_OR_RETURN(Step step, ReadSplit(node));
    steps->push_back(std::move(step));
  } else if (type == "Metaspace") {
    CONVENE_ASSIGN_OR_RETURN(Step step, ReadMetaspace(node));
    steps->push_back(std::move(step));
  } else if (type == "Digits") {
    CONVENE_ASSIGN_OR_RETURN(const bool individual, node.GetBool("individual_digits", false));
    steps->push_back(MakeCharacterSplit(
        IsNumeric, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous));
  } else if (type == "Punctuation") {
    CONVENE_ASSIGN_OR_RETURN(const SplitBehavior behavior,
                             ReadBehavior(node, SplitBehavior::kIsolated));
    steps->push_back(MakeCharacterSplit(IsPunctuation, behavior));
  } else if (type == "Whitespace") {
    steps->push_back(MakeSplit(MakeWordPattern(), SplitBehavior::kRemoved, true));
  } else if (type == "WhitespaceSplit") {
    steps->push_back(MakeCharacterSplit(IsWhiteSpace, SplitBehavior::kRemoved));
  } else if (type == "BertPreTokenizer") {
    steps->push_back(MakeCharacterSplit(IsWhiteSpace, SplitBehavior::kRemoved));
    steps->push_back(MakeCharacterSplit(IsPunctuation, SplitBehavior::kIsolated));
  } else if (type == "CharDelimiterSplit") {
    CONVENE_ASSIGN_OR_RETURN(const JsonNode delimiter_node, node.Get("delimiter"));
    CONVENE_ASSIGN_OR_RETURN(std::string delimiter, delimiter_node.Character());
    steps->push_back(
        MakeSplit(MakeLiteralPattern(std::move(delimiter)), SplitBehavior::kRemoved, false));
  } else {
    return LacksFeature(node.place(), absl::StrCat("\"", type, "\""));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Read(const std::optional<JsonNode>& node) {
  PreTokenizer pre_tokenizer;
  if (node.has_value()) CONVENE_RETURN_IF_ERROR(pre_tokenizer.AddSteps(*node, 0));
  return pre_tokenizer;
}

absl::Status PreTokenizer::AddSteps(const JsonNode& node, int depth) {
  CONVENE_ASSIGN_OR_RETURN(const std::string type, node.GetString("type"));
  if (type != "Sequence") {
    CONVENE_RETURN_IF_ERROR(AddPart(type, node, &steps_));
    ends_in_spelling_ = type == "ByteLevel";
    return absl::OkStatus();
  }
  if (depth == kLargestDepth) return node.Error("is nested too deep");
  CONVENE_ASSIGN_OR_RETURN(const JsonNode list, node.Get("pretokenizers"));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, list.Elements());
  for (const JsonNode& element : elements) {
    CONVENE_RETURN_IF_ERROR(AddSteps(element, depth + 1));
  }
  return absl::OkStatus();
}

void PreTokenizer::LeaveOutSpelling() {
  CONVENE_CHECK(ends_in_spelling_);
  steps_.pop_back();
  ends_in_spelling_ = false;
}

void PreTokenizer::Apply(absl::string_view text, size_t at_start, Pieces* pieces,
                         PieceScratch* scratch) const {
  pieces->text = text;
  pieces->at_start = at_start;
  pieces->ranges.clear();
  if (text.empty()) return;
  pieces->ranges.push_back({0, text.size()});
  for (const Step& step : steps_) step->Apply(pieces, scratch);
}

}  // namespace convene::worker
