// Part of builtins.h: the methods of Python's str.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/builtins.h"
#include "worker_runtime/data/chat/jinja/characters.h"
#include "worker_runtime/data/chat/jinja/operations.h"

namespace convene::worker::jinja {
namespace {

using Text = absl::string_view;
using Result = absl::StatusOr<Value>;

Value Of(Text text) { return Value::OfString(std::string(text)); }

template <bool left, bool right>
Result StripMethod(const Value& self, const Bound& arguments, Budget* budget) {
  Text text = self.as_string();
  std::optional<Text> characters;
  if (arguments.Has(0)) {
    CONVENE_ASSIGN_OR_RETURN(characters, arguments.Text(0));
    CONVENE_RETURN_IF_ERROR(budget->ChargeWalks(text.size(), characters->size()));
  }
  if (left) text = StripLeft(text, characters);
  if (right) text = StripRight(text, characters);
  return Of(text);
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

template <bool from_end>
Result SplitMethod(const Value& self, const Bound& arguments, Budget* budget) {
  const Text text = self.as_string();
  CONVENE_ASSIGN_OR_RETURN(const int64_t limit, arguments.Integer(1, -1));
  if (!arguments.Has(0)) {
    CONVENE_ASSIGN_OR_RETURN(const std::vector<Text> parts,
                             SplitAtSpace(text, from_end, limit, budget));
    return ListOf(parts);
  }
  CONVENE_ASSIGN_OR_RETURN(const Text separator, arguments.Text(0));
  if (separator.empty()) return absl::InvalidArgumentError("split by an empty string");
  CONVENE_RETURN_IF_ERROR(budget->ChargeSearch(text.size(), separator.size()));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<Text> parts,
                           SplitAt(text, separator, from_end, limit, budget));
  return ListOf(parts);
}

template <bool from_end>
Result PartitionMethod(const Value& self, const Bound& arguments, Budget* budget) {
  const Text text = self.as_string();
  CONVENE_ASSIGN_OR_RETURN(const Text separator, arguments.Text(0));
  if (separator.empty()) return absl::InvalidArgumentError("partition by an empty string");
  CONVENE_RETURN_IF_ERROR(budget->ChargeSearch(text.size(), separator.size()));
  const size_t found = from_end ? text.rfind(separator) : text.find(separator);
  if (found == Text::npos) {
    return from_end ? ListOf({"", "", text}, ListKind::kTuple)
                    : ListOf({text, "", ""}, ListKind::kTuple);
  }
  return ListOf({text.substr(0, found), separator, text.substr(found + separator.size())},
                ListKind::kTuple);
}

Result SplitLinesMethod(const Value& self, const Bound& arguments, Budget* budget) {
  const std::vector<Text> lines = SplitLines(self.as_string(), arguments.IsTrue(0));
  CONVENE_RETURN_IF_ERROR(budget->Charge(kPartSteps * static_cast<int64_t>(lines.size())));
  return ListOf(lines);
}

// Of the methods that look for something between two places of the string.
absl::Status CheckNoBounds(const Bound& arguments) {
  if (arguments[1] == nullptr && arguments[2] == nullptr) return absl::OkStatus();
  return absl::UnimplementedError("startswith, endswith, find, index and count with bounds");
}

template <bool at_end>
Result HasAffix(const Value& self, const Bound& arguments, Budget*) {
  CONVENE_RETURN_IF_ERROR(CheckNoBounds(arguments));
  const Value& wanted = *arguments[0];
  const bool is_tuple = wanted.is_list() && wanted.as_list().kind == ListKind::kTuple;
  for (const Value& candidate : is_tuple ? wanted.as_list().items : std::vector<Value>{wanted}) {
    CONVENE_ASSIGN_OR_RETURN(const Text affix, TextOf(candidate));
    if (at_end ? absl::EndsWith(self.as_string(), affix)
               : absl::StartsWith(self.as_string(), affix)) {
      return Value::OfBool(true);
    }
  }
  return Value::OfBool(false);
}

template <bool at_end>
Result RemoveAffix(const Value& self, const Bound& arguments, Budget*) {
  Text text = self.as_string();
  CONVENE_ASSIGN_OR_RETURN(const Text affix, arguments.Text(0));
  at_end ? absl::ConsumeSuffix(&text, affix) : absl::ConsumePrefix(&text, affix);
  return Of(text);
}

Result CountMethod(const Value& self, const Bound& arguments, Budget* budget) {
  const Text text = self.as_string();
  CONVENE_RETURN_IF_ERROR(CheckNoBounds(arguments));
  CONVENE_ASSIGN_OR_RETURN(const Text wanted, arguments.Text(0));
  CONVENE_RETURN_IF_ERROR(budget->ChargeSearch(text.size(), wanted.size()));
  if (wanted.empty()) return Value::OfInt(CountCharacters(text) + 1);
  int64_t count = 0;
  for (size_t at = text.find(wanted); at != Text::npos; at = text.find(wanted, at)) {
    at += wanted.size();
    ++count;
  }
  return Value::OfInt(count);
}

template <bool from_end, bool must_be_there>
Result FindMethod(const Value& self, const Bound& arguments, Budget* budget) {
  const Text text = self.as_string();
  CONVENE_RETURN_IF_ERROR(CheckNoBounds(arguments));
  CONVENE_ASSIGN_OR_RETURN(const Text wanted, arguments.Text(0));
  CONVENE_RETURN_IF_ERROR(budget->ChargeSearch(text.size(), wanted.size()));
  const size_t found = from_end ? text.rfind(wanted) : text.find(wanted);
  if (found != Text::npos) return Value::OfInt(CountCharacters(text.substr(0, found)));
  if (!must_be_there) return Value::OfInt(-1);
  return absl::InvalidArgumentError("the string does not have the one looked for");
}

Result JoinMethod(const Value& self, const Bound& arguments, Budget* budget) {
  const Text text = self.as_string();
  CONVENE_ASSIGN_OR_RETURN(const ListPtr items, ItemsOf(*arguments[0], budget));
  std::string joined;
  for (size_t i = 0; i < items->items.size(); ++i) {
    CONVENE_ASSIGN_OR_RETURN(const Text item, TextOf(items->items[i]));
    CONVENE_RETURN_IF_ERROR(budget->CheckBytes(joined.size() + text.size() + item.size()));
    CONVENE_RETURN_IF_ERROR(budget->ChargeBytes(text.size() + item.size()));
    absl::StrAppend(&joined, i == 0 ? "" : text, item);
  }
  return Value::OfString(std::move(joined));
}

Result ReplaceMethod(const Value& self, const Bound& arguments, Budget* budget) {
  CONVENE_ASSIGN_OR_RETURN(const Text from, arguments.Text(0));
  CONVENE_ASSIGN_OR_RETURN(const Text to, arguments.Text(1));
  CONVENE_ASSIGN_OR_RETURN(const int64_t count, arguments.Integer(2, -1));
  CONVENE_ASSIGN_OR_RETURN(std::string replaced,
                           Replace(self.as_string(), from, to, count, budget));
  return Value::OfString(std::move(replaced));
}

Result IsSpaceMethod(const Value& self, const Bound&, Budget*) {
  return Value::OfBool(!self.as_string().empty() && StripLeft(self.as_string()).empty());
}

using IsOfClass = bool (*)(unsigned char);

absl::Status CheckAscii(const Value& self) {
  if (IsAscii(self.as_string())) return absl::OkStatus();
  return absl::UnimplementedError("the class or case of characters outside ASCII");
}

// isalpha, isdigit, isalnum.
template <IsOfClass is>
Result AllAre(const Value& self, const Bound&, Budget*) {
  const Text text = self.as_string();
  CONVENE_RETURN_IF_ERROR(CheckAscii(self));
  return Value::OfBool(!text.empty() && std::all_of(text.begin(), text.end(), is));
}

// isupper, islower: no letter is of the other case.
template <IsOfClass is_of_other_case>
Result AllAreOfCase(const Value& self, const Bound&, Budget*) {
  const Text text = self.as_string();
  CONVENE_RETURN_IF_ERROR(CheckAscii(self));
  return Value::OfBool(std::any_of(text.begin(), text.end(), absl::ascii_isalpha) &&
                       std::none_of(text.begin(), text.end(), is_of_other_case));
}

template <absl::StatusOr<std::string> (*change)(Text)>
Result CaseMethod(const Value& self, const Bound&, Budget*) {
  CONVENE_ASSIGN_OR_RETURN(std::string changed, change(self.as_string()));
  return Value::OfString(std::move(changed));
}

constexpr Builtin kMethods[] = {{"capitalize", CaseMethod<Capitalize>},
                                {"count", CountMethod, {"sub", "start", "end"}, 1},
                                {"endswith", HasAffix<true>, {"suffix", "start", "end"}, 1},
                                {"find", FindMethod<false, false>, {"sub", "start", "end"}, 1},
                                {"index", FindMethod<false, true>, {"sub", "start", "end"}, 1},
                                {"isalnum", AllAre<absl::ascii_isalnum>},
                                {"isalpha", AllAre<absl::ascii_isalpha>},
                                {"isdigit", AllAre<absl::ascii_isdigit>},
                                {"islower", AllAreOfCase<absl::ascii_isupper>},
                                {"isspace", IsSpaceMethod},
                                {"isupper", AllAreOfCase<absl::ascii_islower>},
                                {"join", JoinMethod, {"iterable"}, 1},
                                {"lower", CaseMethod<Lower>},
                                {"lstrip", StripMethod<true, false>, {"chars"}},
                                {"partition", PartitionMethod<false>, {"sep"}, 1},
                                {"removeprefix", RemoveAffix<false>, {"prefix"}, 1},
                                {"removesuffix", RemoveAffix<true>, {"suffix"}, 1},
                                {"replace", ReplaceMethod, {"old", "new", "count"}, 2},
                                {"rfind", FindMethod<true, false>, {"sub", "start", "end"}, 1},
                                {"rindex", FindMethod<true, true>, {"sub", "start", "end"}, 1},
                                {"rpartition", PartitionMethod<true>, {"sep"}, 1},
                                {"rsplit", SplitMethod<true>, {"sep", "maxsplit"}},
                                {"rstrip", StripMethod<false, true>, {"chars"}},
                                {"split", SplitMethod<false>, {"sep", "maxsplit"}},
                                {"splitlines", SplitLinesMethod, {"keepends"}},
                                {"startswith", HasAffix<false>, {"prefix", "start", "end"}, 1},
                                {"strip", StripMethod<true, true>, {"chars"}},
                                {"title", CaseMethod<Title>},
                                {"upper", CaseMethod<Upper>}};

}  // namespace

absl::Span<const Builtin> StringMethods() { return kMethods; }

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

}  // namespace convene::worker::jinja
