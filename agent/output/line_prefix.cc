#include "agent/output/line_prefix.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace convene::agent {
namespace {

// The name at the beginning of `text` (the text after a '$'), and the number of its bytes; 0
// without a name.
struct Name {
  absl::string_view name;
  size_t length = 0;
};

Name ReadName(absl::string_view text) {
  const bool braced = !text.empty() && text[0] == '{';
  const size_t begin = braced ? 1 : 0;
  size_t end = begin;
  const auto is_part = [&](char c) {
    return c == '_' || absl::ascii_isalpha(c) || (end > begin && absl::ascii_isdigit(c));
  };
  while (end < text.size() && is_part(text[end])) ++end;
  if (end == begin || (braced && (end == text.size() || text[end] != '}'))) return {};
  return {text.substr(begin, end - begin), braced ? end + 1 : end};
}

// `on_text` takes the text between the names; `on_name` returns false for a name that it does not
// know, which then counts as text.
template <typename OnText, typename OnName>
void ReadTemplate(absl::string_view pattern, const OnText& on_text, const OnName& on_name) {
  while (true) {
    const size_t dollar = pattern.find('$');
    on_text(pattern.substr(0, dollar));
    if (dollar == absl::string_view::npos) return;
    pattern.remove_prefix(dollar + 1);
    if (!pattern.empty() && pattern[0] == '$') {
      on_text("$");
      pattern.remove_prefix(1);
      continue;
    }
    const Name name = ReadName(pattern);
    if (!on_name(name.name)) {
      on_text("$");
      on_text(pattern.substr(0, name.length));
    }
    pattern.remove_prefix(name.length);
  }
}

}  // namespace

LinePrefix::LinePrefix(absl::string_view pattern, const LineSource& source) {
  const auto on_text = [this](absl::string_view text) { absl::StrAppend(&pieces_.back(), text); };
  ReadTemplate(pattern, on_text, [&](absl::string_view name) {
    if (name == "time") {
      pieces_.emplace_back();
    } else if (name == "role_name") {
      pieces_.back() += source.role_name;
    } else if (name == "local_rank") {
      absl::StrAppend(&pieces_.back(), source.local_rank);
    } else if (name == "rank") {
      absl::StrAppend(&pieces_.back(), source.rank);
    } else if (name == "hostname") {
      pieces_.back() += source.hostname;
    } else {
      return false;
    }
    return true;
  });
}

std::string WithLocalRank(absl::string_view pattern, int local_rank) {
  std::string text;
  ReadTemplate(
      pattern, [&](absl::string_view part) { absl::StrAppend(&text, part); },
      [&](absl::string_view name) {
        if (name != "local_rank") return false;
        absl::StrAppend(&text, local_rank);
        return true;
      });
  return text;
}

const std::string& LinePrefix::At(absl::Time now) {
  if (pieces_.size() == 1) return pieces_[0];
  const int64_t now_ms = absl::ToUnixMillis(now);
  if (now_ms != text_of_ms_) {
    text_of_ms_ = now_ms;
    text_ =
        absl::StrJoin(pieces_, absl::FormatTime("%Y-%m-%d %H:%M:%E3S", now, absl::LocalTimeZone()));
  }
  return text_;
}

}  // namespace convene::agent
