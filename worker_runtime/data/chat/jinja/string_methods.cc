// Part of methods.h: the methods of Python's str.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/access.h"
#include "worker_runtime/data/chat/jinja/characters.h"
#include "worker_runtime/data/chat/jinja/methods.h"

namespace convene::worker::jinja {
namespace {

using Text = absl::string_view;
using Result = absl::StatusOr<Value>;

Value Of(Text text) { return Value::OfString(std::string(text)); }

absl::StatusOr<Text> TextOf(const Value& value) {
  if (value.is_string()) return Text(value.as_string());
  return absl::InvalidArgumentError(
      absl::StrCat("a method of a string needs a string, not ", value.KindName()));
}

absl::StatusOr<int64_t> CountOf(const Value* value, int64_t missing) {
  if (value == nullptr) return missing;
  if (value->is_integral()) return value->as_int();
  return absl::InvalidArgumentError(
      absl::StrCat("a method of a string needs an integer, not ", value->KindName()));
}

Result StripMethod(Text text, Text name, const Arguments& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"chars"}));
  std::optional<Text> characters;
  if (bound[0] != nullptr && !bound[0]->is_none()) {
    CONVENE_ASSIGN_OR_RETURN(characters, TextOf(*bound[0]));
    CONVENE_RETURN_IF_ERROR(budget->ChargeWalks(text.size(), characters->size()));
  }
  if (name == "lstrip") return Of(StripLeft(text, characters));
  if (name == "rstrip") return Of(StripRight(text, characters));
  return Of(Strip(text, characters));
}

// The bytes of the word at the begin or end of `text`.
size_t WordBytes(Text text, bool from_end) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const size_t next = from_end ? PreviousCharacter(text, text.size() - bytes) : bytes;
    if (IsSpace(CharacterAt(text, next).code)) break;
    bytes = from_end ? text.size() - next : next + CharacterLength(text[next]);
  }
  return bytes;
}

// text.split() without a separator: white space of any length parts, at most `limit` times.
absl::StatusOr<std::vector<Text>> SplitAtSpace(Text text, bool from_end, int64_t limit,
                                               Budget* budget) {
  const auto strip = [&] { text = from_end ? StripRight(text) : StripLeft(text); };
  std::vector<Text> parts;
  for (strip(); !text.empty(); strip()) {
    CONVENE_RETURN_IF_ERROR(budget->Charge(kPartSteps));
    const bool is_last = limit >= 0 && static_cast<int64_t>(parts.size()) == limit;
    const size_t bytes = is_last ? text.size() : WordBytes(text, from_end);
    const size_t rest = text.size() - bytes;
    parts.push_back(from_end ? text.substr(rest) : text.substr(0, bytes));
    text = from_end ? text.substr(0, rest) : text.substr(bytes);
  }
  if (from_end) std::reverse(parts.begin(), parts.end());
  return parts;
}

absl::StatusOr<std::vector<Text>> SplitAt(Text text, Text separator, bool from_end, int64_t limit,
                                          Budget* budget) {
  std::vector<Text> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t found = from_end ? text.rfind(separator) : text.find(separator);
    if (found == Text::npos) break;
    CONVENE_RETURN_IF_ERROR(budget->Charge(kPartSteps));
    const Text before = text.substr(0, found);
    const Text behind = text.substr(found + separator.size());
    parts.push_back(from_end ? behind : before);
    text = from_end ? before : behind;
  }
  parts.push_back(text);
  if (from_end) std::reverse(parts.begin(), parts.end());
  return parts;
}

Result ListOf(const std::vector<Text>& parts, ListKind kind = ListKind::kList) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const Text part : parts) items.push_back(Of(part));
  return NewList(std::move(items), kind);
}

Result SplitMethod(Text text, bool from_end, const Arguments& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"sep", "maxsplit"}));
  CONVENE_ASSIGN_OR_RETURN(const int64_t limit, CountOf(bound[1], -1));
  if (bound[0] == nullptr || bound[0]->is_none()) {
    CONVENE_ASSIGN_OR_RETURN(const std::vector<Text> parts,
                             SplitAtSpace(text, from_end, limit, budget));
    return ListOf(parts);
  }
  CONVENE_ASSIGN_OR_RETURN(const Text separator, TextOf(*bound[0]));
  if (separator.empty()) return absl::InvalidArgumentError("split by an empty string");
  CONVENE_RETURN_IF_ERROR(budget->ChargeSearch(text.size(), separator.size()));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<Text> parts,
                           SplitAt(text, separator, from_end, limit, budget));
  return ListOf(parts);
}

Result PartitionMethod(Text text, bool from_end, const Arguments& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"sep"}, 1));
  CONVENE_ASSIGN_OR_RETURN(const Text separator, TextOf(*bound[0]));
  if (separator.empty()) return absl::InvalidArgumentError("partition by an empty string");
  CONVENE_RETURN_IF_ERROR(budget->ChargeSearch(text.size(), separator.size()));
  const size_t found = from_end ? text.rfind(separator) : text.find(separator);
  if (found == Text::npos) {
    const std::vector<Text> whole =
        from_end ? std::vector<Text>{"", "", text} : std::vector<Text>{text, "", ""};
    return ListOf(whole, ListKind::kTuple);
  }
  return ListOf({text.substr(0, found), separator, text.substr(found + separator.size())},
                ListKind::kTuple);
}

Result AffixMethod(Text text, bool at_end, const Arguments& arguments) {
  if (arguments.positional_count() > 1) {
    return absl::UnimplementedError("startswith and endswith with bounds");
  }
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"prefix"}, 1));
  std::vector<Value> candidates = {*bound[0]};
  if (bound[0]->is_list() && bound[0]->as_list().kind == ListKind::kTuple) {
    candidates = bound[0]->as_list().items;
  }
  for (const Value& candidate : candidates) {
    CONVENE_ASSIGN_OR_RETURN(const Text affix, TextOf(candidate));
    if (at_end ? absl::EndsWith(text, affix) : absl::StartsWith(text, affix)) {
      return Value::OfBool(true);
    }
  }
  return Value::OfBool(false);
}

Result RemoveAffix(Text text, bool at_end, const Arguments& arguments) {
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"affix"}, 1));
  CONVENE_ASSIGN_OR_RETURN(const Text affix, TextOf(*bound[0]));
  if (at_end) {
    absl::ConsumeSuffix(&text, affix);
  } else {
    absl::ConsumePrefix(&text, affix);
  }
  return Of(text);
}

Result FindMethod(Text text, Text name, const Arguments& arguments, Budget* budget) {
  if (arguments.positional_count() > 1) {
    return absl::UnimplementedError(absl::StrCat(name, " with bounds"));
  }
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"sub"}, 1));
  CONVENE_ASSIGN_OR_RETURN(const Text wanted, TextOf(*bound[0]));
  CONVENE_RETURN_IF_ERROR(budget->ChargeSearch(text.size(), wanted.size()));
  if (name == "count") {
    if (wanted.empty()) return Value::OfInt(CountCharacters(text) + 1);
    int64_t count = 0;
    for (size_t at = text.find(wanted); at != Text::npos; at = text.find(wanted, at)) {
      at += wanted.size();
      ++count;
    }
    return Value::OfInt(count);
  }
  const size_t found = name[0] == 'r' ? text.rfind(wanted) : text.find(wanted);
  if (found != Text::npos) return Value::OfInt(CountCharacters(text.substr(0, found)));
  if (absl::EndsWith(name, "find")) return Value::OfInt(-1);
  return absl::InvalidArgumentError("the string does not have the one looked for");
}

Result JoinMethod(Text text, const Arguments& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"iterable"}, 1));
  CONVENE_ASSIGN_OR_RETURN(const ListPtr items, ItemsOf(*bound[0], budget));
  std::string joined;
  for (size_t i = 0; i < items->items.size(); ++i) {
    CONVENE_ASSIGN_OR_RETURN(const Text item, TextOf(items->items[i]));
    CONVENE_RETURN_IF_ERROR(budget->CheckBytes(joined.size() + text.size() + item.size()));
    CONVENE_RETURN_IF_ERROR(budget->ChargeBytes(text.size() + item.size()));
    absl::StrAppend(&joined, i == 0 ? "" : text, item);
  }
  return Value::OfString(std::move(joined));
}

Result ReplaceMethod(Text text, const Arguments& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"old", "new", "count"}, 2));
  CONVENE_ASSIGN_OR_RETURN(const Text from, TextOf(*bound[0]));
  CONVENE_ASSIGN_OR_RETURN(const Text to, TextOf(*bound[1]));
  CONVENE_ASSIGN_OR_RETURN(const int64_t count, CountOf(bound[2], -1));
  CONVENE_ASSIGN_OR_RETURN(std::string replaced, Replace(text, from, to, count, budget));
  return Value::OfString(std::move(replaced));
}

// isalpha, isdigit, isalnum, isspace, isupper, islower.
Result ClassMethod(Text text, Text name) {
  if (name == "isspace") {
    return Value::OfBool(!text.empty() && StripLeft(text).empty());
  }
  if (!IsAscii(text)) {
    return absl::UnimplementedError(absl::StrCat(name, " of characters outside ASCII"));
  }
  if (name == "isupper" || name == "islower") {
    const auto other = name == "isupper" ? absl::ascii_islower : absl::ascii_isupper;
    return Value::OfBool(std::any_of(text.begin(), text.end(), absl::ascii_isalpha) &&
                         std::none_of(text.begin(), text.end(), other));
  }
  const auto is = name == "isalpha"   ? absl::ascii_isalpha
                  : name == "isalnum" ? absl::ascii_isalnum
                                      : absl::ascii_isdigit;
  return Value::OfBool(!text.empty() && std::all_of(text.begin(), text.end(), is));
}

Result CaseMethod(Text text, Text name, const Arguments& arguments) {
  CONVENE_RETURN_IF_ERROR(arguments.Bind({}).status());
  if (absl::StartsWith(name, "is")) return ClassMethod(text, name);
  CONVENE_ASSIGN_OR_RETURN(std::string changed, name == "upper"   ? Upper(text)
                                                : name == "lower" ? Lower(text)
                                                : name == "title" ? Title(text)
                                                                  : Capitalize(text));
  return Value::OfString(std::move(changed));
}

}  // namespace

absl::StatusOr<std::string> Replace(absl::string_view text, absl::string_view from,
                                    absl::string_view to, int64_t count, Budget* budget) {
  std::string replaced;
  CONVENE_RETURN_IF_ERROR(budget->ChargeBytes(text.size()));
  CONVENE_RETURN_IF_ERROR(budget->ChargeSearch(text.size(), from.size()));
  while (count != 0) {
    const size_t found = from.empty() ? 0 : text.find(from);
    if (found == Text::npos) break;
    CONVENE_RETURN_IF_ERROR(budget->CheckBytes(replaced.size() + text.size() + to.size()));
    CONVENE_RETURN_IF_ERROR(budget->ChargeBytes(to.size()));
    absl::StrAppend(&replaced, text.substr(0, found), to);
    text.remove_prefix(found + from.size());
    --count;
    if (!from.empty()) continue;
    // An empty string is found before each character and at the end.
    if (text.empty()) break;
    const size_t bytes = CharacterLength(text[0]);
    replaced.append(text.data(), bytes);
    text.remove_prefix(bytes);
  }
  absl::StrAppend(&replaced, text);
  return replaced;
}

absl::StatusOr<Value> CallStringMethod(const std::string& text, absl::string_view name,
                                       const Arguments& arguments, Budget* budget) {
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    return StripMethod(text, name, arguments, budget);
  }
  if (name == "split" || name == "rsplit") {
    return SplitMethod(text, name == "rsplit", arguments, budget);
  }
  if (name == "partition" || name == "rpartition") {
    return PartitionMethod(text, name == "rpartition", arguments, budget);
  }
  if (name == "startswith" || name == "endswith") {
    return AffixMethod(text, name == "endswith", arguments);
  }
  if (name == "removeprefix" || name == "removesuffix") {
    return RemoveAffix(text, name == "removesuffix", arguments);
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count") {
    return FindMethod(text, name, arguments, budget);
  }
  if (name == "splitlines") {
    CONVENE_ASSIGN_OR_RETURN(const auto bound, arguments.Bind({"keepends"}));
    const std::vector<Text> lines = SplitLines(text, bound[0] != nullptr && bound[0]->Truth());
    CONVENE_RETURN_IF_ERROR(budget->Charge(kPartSteps * static_cast<int64_t>(lines.size())));
    return ListOf(lines);
  }
  if (name == "join") return JoinMethod(text, arguments, budget);
  if (name == "replace") return ReplaceMethod(text, arguments, budget);
  for (const char* const known : {"upper", "lower", "title", "capitalize", "isalpha", "isdigit",
                                  "isalnum", "isspace", "isupper", "islower"}) {
    if (name == known) return CaseMethod(text, name, arguments);
  }
  return absl::UnimplementedError(absl::StrCat(
      "the method '", name, "' of a string is not in the subset of Jinja2 that we know"));
}

}  // namespace convene::worker::jinja
