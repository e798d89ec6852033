#include "worker_runtime/tokenizer/json/piece_steps.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "worker_runtime/tokenizer/json/byte_level.h"

namespace convene::worker {
namespace {

class Split : public PreTokenizerStep {
 public:
  Split(std::unique_ptr<SplitPattern> pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void Apply(Pieces* pieces, PieceScratch* scratch) const override {
    scratch->ranges.clear();
    for (const TextRange& piece : pieces->ranges) {
      scratch->matches.clear();
      pattern_->FindAll(pieces->Text(piece), &scratch->matches);
      Cutter cutter(behavior_, piece.begin, &scratch->ranges);
      size_t at = 0;
      for (const TextRange& match : scratch->matches) {
        if (at < match.begin) cutter.Add({at, match.begin}, invert_);
        cutter.Add(match, !invert_);
        at = match.end;
      }
      const size_t end = piece.end - piece.begin;
      if (at < end) cutter.Add({at, end}, invert_);
      cutter.Finish();
    }
    std::swap(pieces->ranges, scratch->ranges);
  }

 private:
  // Takes the matches and what lies between them in order; appends pieces.
  class Cutter {
   public:
    Cutter(SplitBehavior behavior, size_t base, std::vector<TextRange>* pieces)
        : behavior_(behavior), base_(base), pieces_(pieces), first_(pieces->size()) {}

    void Add(const TextRange& range, bool is_match) {
      const TextRange piece = {base_ + range.begin, base_ + range.end};
      switch (behavior_) {
        case SplitBehavior::kIsolated:
          pieces_->push_back(piece);
          break;
        case SplitBehavior::kRemoved:
          if (!is_match) pieces_->push_back(piece);
          break;
        case SplitBehavior::kContiguous:
          AddOrExtend(piece, is_match == previous_is_match_);
          break;
        case SplitBehavior::kMergedWithPrevious:
          AddOrExtend(piece, is_match && !previous_is_match_);
          break;
        case SplitBehavior::kMergedWithNext:
          // Of several matches in a row only the last one merges.
          if (has_waiting_) pieces_->push_back(waiting_);
          has_waiting_ = false;
          if (is_match) {
            waiting_ = piece;
            has_waiting_ = true;
          } else if (previous_is_match_) {
            pieces_->back().end = piece.end;
          } else {
            pieces_->push_back(piece);
          }
          break;
      }
      previous_is_match_ = is_match;
    }

    void Finish() {
      if (has_waiting_) pieces_->push_back(waiting_);
    }

   private:
    void AddOrExtend(const TextRange& piece, bool extend) {
      if (extend && pieces_->size() > first_) {
        pieces_->back().end = piece.end;
      } else {
        pieces_->push_back(piece);
      }
    }

    const SplitBehavior behavior_;
    const size_t base_;
    std::vector<TextRange>* const pieces_;
    const size_t first_;
    bool previous_is_match_ = false;
    bool has_waiting_ = false;
    TextRange waiting_;
  };

  const std::unique_ptr<SplitPattern> pattern_;
  const SplitBehavior behavior_;
  const bool invert_;
};

// Calls rewrite(text of the piece, whether it comes from the document's first character, result)
// for each piece; each becomes one piece of the new text.
template <typename Rewrite>
void RewritePieces(Pieces* pieces, PieceScratch* scratch, const Rewrite& rewrite) {
  std::string* const result = &scratch->texts[scratch->free_text];
  scratch->free_text = 1 - scratch->free_text;
  result->clear();
  size_t at_start = 0;
  for (TextRange& piece : pieces->ranges) {
    const bool is_at_start = piece.begin < pieces->at_start;
    const size_t begin = result->size();
    rewrite(pieces->Text(piece), is_at_start, result);
    if (is_at_start) at_start = begin + 1;
    piece = {begin, result->size()};
  }
  pieces->text = *result;
  pieces->at_start = at_start;
}

class Metaspace : public PreTokenizerStep {
 public:
  Metaspace(std::string replacement, PrependScheme prepend, bool split)
      : replacement_(std::move(replacement)), prepend_(prepend), split_(split) {}

  void Apply(Pieces* pieces, PieceScratch* scratch) const override {
    RewritePieces(pieces, scratch,
                  [this](absl::string_view text, bool is_at_start, std::string* result) {
                    Rewrite(text, is_at_start, result);
                  });
    if (split_) Cut(pieces, scratch);
  }

 private:
  void Rewrite(absl::string_view text, bool is_at_start, std::string* result) const {
    const bool may_prepend =
        prepend_ == PrependScheme::kAlways || (prepend_ == PrependScheme::kFirst && is_at_start);
    if (may_prepend && text[0] != ' ' && !absl::StartsWith(text, replacement_)) {
      result->append(replacement_);
    }
    size_t copied = 0;
    for (size_t at = text.find(' '); at != absl::string_view::npos; at = text.find(' ', copied)) {
      result->append(text.data() + copied, at - copied);
      result->append(replacement_);
      copied = at + 1;
    }
    result->append(text.data() + copied, text.size() - copied);
  }

  void Cut(Pieces* pieces, PieceScratch* scratch) const {
    scratch->ranges.clear();
    for (const TextRange& piece : pieces->ranges) {
      const absl::string_view text = pieces->Text(piece);
      for (size_t begin = 0; begin < text.size();) {
        const size_t end = std::min(text.find(replacement_, begin + 1), text.size());
        scratch->ranges.push_back({piece.begin + begin, piece.begin + end});
        begin = end;
      }
    }
    std::swap(pieces->ranges, scratch->ranges);
  }

  const std::string replacement_;
  const PrependScheme prepend_;
  const bool split_;
};

class SpacePrefix : public PreTokenizerStep {
 public:
  void Apply(Pieces* pieces, PieceScratch* scratch) const override {
    const bool is_needed =
        std::any_of(pieces->ranges.begin(), pieces->ranges.end(),
                    [pieces](const TextRange& piece) { return pieces->text[piece.begin] != ' '; });
    if (!is_needed) return;
    RewritePieces(pieces, scratch, [](absl::string_view text, bool, std::string* result) {
      if (text[0] != ' ') result->push_back(' ');
      result->append(text.data(), text.size());
    });
  }
};

class SpellingStep : public PreTokenizerStep {
 public:
  void Apply(Pieces* pieces, PieceScratch* scratch) const override {
    RewritePieces(pieces, scratch, [](absl::string_view text, bool, std::string* result) {
      AppendSpelled(text, result);
    });
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
