#include "worker_runtime/tokenizer/json/piece_steps.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/json/byte_level.h"

namespace convene::worker {
namespace {

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

class SpacePrefix : public PreTokenizerStep {
 public:
  void Apply(const TextPiece& piece, Scratch* scratch, TakePiece take) const override {
    if (piece.text[0] == ' ') return take(piece);
    scratch->text = absl::StrCat(" ", piece.text);
    take({scratch->text, StartOfRewritten(piece)});
  }
};

class SpellingStep : public PreTokenizerStep {
 public:
  void Apply(const TextPiece& piece, Scratch* scratch, TakePiece take) const override {
    scratch->text.clear();
    AppendSpelled(piece.text, &scratch->text);
    take({scratch->text, StartOfRewritten(piece)});
  }
};

}  // namespace

std::unique_ptr<PreTokenizerStep> MakeSplit(std::unique_ptr<SplitPattern> pattern,
                                            SplitBehavior behavior, bool invert) {
  return std::make_unique<Split>(std::move(pattern), behavior, invert);
}

std::unique_ptr<PreTokenizerStep> MakeMetaspace(std::string replacement, PrependScheme prepend,
                                                bool split) {
  return std::make_unique<Metaspace>(std::move(replacement), prepend, split);
}

std::unique_ptr<PreTokenizerStep> MakeSpacePrefix() { return std::make_unique<SpacePrefix>(); }

std::unique_ptr<PreTokenizerStep> MakeSpelling() { return std::make_unique<SpellingStep>(); }

}  // namespace convene::worker
