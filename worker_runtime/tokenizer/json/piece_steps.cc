#include "worker_runtime/tokenizer/json/piece_steps.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/json/byte_level.h"
#include "worker_runtime/tokenizer/json/text_pattern.h"
#include "worker_runtime/tokenizer/scanners.h"

namespace convene::worker {
namespace {

using Step = std::unique_ptr<PreTokenizerStep>;

// The patterns of the pre-tokenizers with these names, in the words of Rust's regex.
constexpr char kWords[] = R"([\w\x{200C}\x{200D}]+|[^\w\s\x{200C}\x{200D}]+)";
constexpr char kNumber[] = R"(\p{N})";
constexpr char kSpace[] = R"(\s)";
constexpr char kPunctuation[] = R"([!-/:-@\[-`{-~\p{P}])";

// The fate of the matches; "the-final--countdown" by "-":
enum class SplitBehavior {
  kRemoved,             // the, final, countdown
  kIsolated,            // the, -, final, -, -, countdown
  kMergedWithPrevious,  // the-, final-, -, countdown
  kMergedWithNext,      // the, -final, -, -countdown
  kContiguous,          // the, -, final, --, countdown
};

// `invert`: what lies between the matches counts as match, and the other way round.
class Split : public PreTokenizerStep {
 public:
  Split(std::unique_ptr<SplitPattern> pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void Apply(const TextPiece& piece, Scratch* scratch, TakePiece take) const override {
    Cutter cutter(behavior_, piece, take);
    size_t at = 0;
    pattern_->ForEach(piece.text, &scratch->matches, [&](const TextRange& match) {
      if (at < match.begin) cutter.Add({at, match.begin}, invert_);
      cutter.Add(match, !invert_);
      at = match.end;
    });
    if (at < piece.text.size()) cutter.Add({at, piece.text.size()}, invert_);
    cutter.Finish();
  }

 private:
  // Takes the matches and what lies between them in order; gives pieces.
  class Cutter {
   public:
    Cutter(SplitBehavior behavior, const TextPiece& whole, TakePiece take)
        : behavior_(behavior), whole_(whole), take_(take) {}

    void Add(const TextRange& range, bool is_match) {
      if (waiting_.end > waiting_.begin && Joins(is_match)) {
        waiting_.end = range.end;
      } else {
        Finish();
        if (behavior_ != SplitBehavior::kRemoved || !is_match) waiting_ = range;
      }
      previous_is_match_ = is_match;
    }

    void Finish() {
      if (waiting_.end == waiting_.begin) return;
      take_({whole_.text.substr(waiting_.begin, waiting_.end - waiting_.begin),
             whole_.at_start - std::min(whole_.at_start, waiting_.begin)});
      waiting_ = {};
    }

   private:
    // Whether what comes next is one piece with what waits.
    bool Joins(bool is_match) const {
      switch (behavior_) {
        case SplitBehavior::kContiguous:
          return is_match == previous_is_match_;
        case SplitBehavior::kMergedWithPrevious:
          return is_match && !previous_is_match_;
        case SplitBehavior::kMergedWithNext:
          return !is_match && previous_is_match_;
        default:
          return false;
      }
    }

    const SplitBehavior behavior_;
    const TextPiece& whole_;
    const TakePiece take_;
    bool previous_is_match_ = false;
    TextRange waiting_;  // empty: nothing
  };

  const std::unique_ptr<SplitPattern> pattern_;
  const SplitBehavior behavior_;
  const bool invert_;
};

// The first byte of a piece that was rewritten still tells whether it is at the document's start.
size_t StartOfRewritten(const TextPiece& piece) { return std::min(piece.at_start, size_t{1}); }

enum class PrependScheme { kAlways, kFirst, kNever };

// Spaces become `replacement`; a piece that does not begin with it gets one before it (kFirst: only
// at the document's start); then with `split` a piece begins at each.
class Metaspace : public PreTokenizerStep {
 public:
  Metaspace(std::string replacement, PrependScheme prepend, bool split)
      : replacement_(std::move(replacement)), prepend_(prepend), split_(split) {}

  void Apply(const TextPiece& piece, Scratch* scratch, TakePiece take) const override {
    const bool may_prepend = prepend_ == PrependScheme::kAlways ||
                             (prepend_ == PrependScheme::kFirst && piece.at_start > 0);
    const bool prepends =
        may_prepend && piece.text[0] != ' ' && !absl::StartsWith(piece.text, replacement_);
    scratch->text = prepends ? replacement_ : "";
    for (const char c : piece.text) {
      if (c == ' ') {
        scratch->text += replacement_;
      } else {
        scratch->text.push_back(c);
      }
    }
    const absl::string_view text = scratch->text;
    size_t at_start = StartOfRewritten(piece);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end =
          split_ ? std::min(text.find(replacement_, begin + 1), text.size()) : text.size();
      take({text.substr(begin, end - begin), at_start});
      begin = end;
      at_start = 0;
    }
  }

 private:
  const std::string replacement_;
  const PrependScheme prepend_;
  const bool split_;
};

// A space before each piece that does not begin with one.
class SpacePrefix : public PreTokenizerStep {
 public:
  void Apply(const TextPiece& piece, Scratch* scratch, TakePiece take) const override {
    if (piece.text[0] == ' ') return take(piece);
    scratch->text = absl::StrCat(" ", piece.text);
    take({scratch->text, StartOfRewritten(piece)});
  }
};

// GPT-2's spelling of bytes.
class SpellingStep : public PreTokenizerStep {
 public:
  void Apply(const TextPiece& piece, Scratch* scratch, TakePiece take) const override {
    scratch->text.clear();
    AppendSpelled(piece.text, &scratch->text);
    take({scratch->text, StartOfRewritten(piece)});
  }
};

absl::StatusOr<SplitBehavior> ReadBehavior(const JsonNode& node) {
  const auto behavior = node.Find("behavior");
  if (!behavior.has_value()) return SplitBehavior::kIsolated;
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
  CONVENE_ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(node));
  CONVENE_ASSIGN_OR_RETURN(const bool invert, node.GetBool("invert", false));
  return std::make_unique<Split>(std::move(pattern), behavior, invert);
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
  return std::make_unique<Metaspace>(std::move(replacement), prepend, split);
}

absl::StatusOr<Step> SplitBy(const std::string& regex, SplitBehavior behavior,
                             bool invert = false) {
  CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<SplitPattern> pattern,
                           MakeSplitPattern(regex, PatternDialect::kOniguruma));
  return std::make_unique<Split>(std::move(pattern), behavior, invert);
}

absl::Status AddByteLevel(const JsonNode& node, std::vector<Step>* steps) {
  CONVENE_ASSIGN_OR_RETURN(const bool adds_prefix, node.GetBool("add_prefix_space", true));
  if (adds_prefix) steps->push_back(std::make_unique<SpacePrefix>());
  CONVENE_ASSIGN_OR_RETURN(const bool uses_regex, node.GetBool("use_regex", true));
  if (uses_regex) {
    CONVENE_ASSIGN_OR_RETURN(Step split,
                             SplitBy(std::string(kGpt2Pattern), SplitBehavior::kIsolated));
    steps->push_back(std::move(split));
  }
  steps->push_back(std::make_unique<SpellingStep>());
  return absl::OkStatus();
}

}  // namespace

absl::Status AddPreTokenizerSteps(const std::string& type, const JsonNode& node,
                                  std::vector<Step>* steps) {
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
    CONVENE_ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(node));
    return add(SplitBy(kPunctuation, behavior));
  }
  if (type == "BertPreTokenizer") {
    CONVENE_RETURN_IF_ERROR(add(SplitBy(kSpace, SplitBehavior::kRemoved)));
    return add(SplitBy(kPunctuation, SplitBehavior::kIsolated));
  }
  if (type == "CharDelimiterSplit") {
    CONVENE_ASSIGN_OR_RETURN(std::string delimiter, node.GetCharacter("delimiter"));
    return add(std::make_unique<Split>(MakeLiteralPattern(std::move(delimiter)),
                                       SplitBehavior::kRemoved, false));
  }
  return LacksFeature(node.place(), absl::StrCat("\"", type, "\""));
}

}  // namespace convene::worker
