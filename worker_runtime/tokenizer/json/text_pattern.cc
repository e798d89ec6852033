#include "worker_runtime/tokenizer/json/text_pattern.h"

#include <utility>

#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

class LiteralPattern : public SplitPattern {
 public:
  explicit LiteralPattern(std::string text) : text_(std::move(text)) {}

  size_t FindSome(absl::string_view text, size_t begin, size_t limit,
                  std::vector<TextRange>* matches) const override {
    for (; limit > 0; --limit) {
      const size_t at = text.find(text_, begin);
      if (at == absl::string_view::npos) return text.size();
      begin = at + text_.size();
      matches->push_back({at, begin});
    }
    return begin;
  }

 private:
  const std::string text_;
};

}  // namespace

std::unique_ptr<SplitPattern> MakeLiteralPattern(std::string text) {
  return std::make_unique<LiteralPattern>(std::move(text));
}

absl::StatusOr<std::unique_ptr<SplitPattern>> ReadPattern(const JsonNode& pattern) {
  if (const auto regex = pattern.Find("Regex"); regex.has_value()) {
    CONVENE_ASSIGN_OR_RETURN(const std::string expression, regex->String());
    absl::StatusOr<std::unique_ptr<SplitPattern>> made =
        MakeSplitPattern(expression, PatternDialect::kOniguruma);
    if (!made.ok()) return Annotate(made.status(), regex->place());
    return made;
  }
  // An old file has the bare text here.
  const auto literal = pattern.Find("String");
  CONVENE_ASSIGN_OR_RETURN(std::string text, literal.value_or(pattern).String());
  if (text.empty()) return LacksFeature(pattern.place(), "\"pattern\" with an empty text");
  return MakeLiteralPattern(std::move(text));
}

}  // namespace convene::worker
