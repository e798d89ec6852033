#include "agent/output/error_record.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "agent/output/last_lines.h"
#include "tools/base/text.h"

namespace convene::agent {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;

constexpr size_t kMostLines = 3;

bool Parse(const std::string& json, Struct* root) {
  return google::protobuf::util::JsonStringToMessage(json, root).ok();
}

const Value* Find(const Struct& object, const char* key) {
  const auto found = object.fields().find(key);
  return found == object.fields().end() ? nullptr : &found->second;
}

std::string TextOf(const Value* value) {
  return value != nullptr && value->has_string_value() ? value->string_value() : "";
}

absl::Time TimeOf(const Value* value) {
  double seconds = 0;
  if (value == nullptr) return absl::InfiniteFuture();
  if (value->has_number_value()) {
    seconds = value->number_value();
  } else if (!absl::SimpleAtod(TextOf(value), &seconds)) {
    return absl::InfiniteFuture();
  }
  // PyTorch writes 0 for "not known".
  return seconds > 0 ? absl::UnixEpoch() + absl::Seconds(seconds) : absl::InfiniteFuture();
}

std::vector<std::string> NonEmptyLines(const std::string& text) {
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripTrailingAsciiWhitespace(line);
    if (!line.empty()) lines.push_back(Utf8(line, LastLines::kLongestLine));
  }
  return lines;
}

}  // namespace

std::optional<ErrorRecord> ParseErrorRecord(const std::string& json) {
  Struct root;
  if (!Parse(json, &root)) return std::nullopt;
  const Value* message = Find(root, "message");
  if (message == nullptr) return std::nullopt;
  ErrorRecord record;
  std::vector<std::string> lines;
  if (message->has_string_value()) {
    lines = NonEmptyLines(message->string_value());
    record.time = TimeOf(Find(root, "timestamp"));
  } else if (message->has_struct_value()) {
    const Struct& body = message->struct_value();
    lines = NonEmptyLines(TextOf(Find(body, "message")));
    const Value* extra = Find(body, "extraInfo");
    if (extra != nullptr && extra->has_struct_value()) {
      record.time = TimeOf(Find(extra->struct_value(), "timestamp"));
      if (lines.empty()) {  // Then the exception is the last line of its traceback.
        lines = NonEmptyLines(TextOf(Find(extra->struct_value(), "py_callstack")));
        if (lines.size() > 1) lines.erase(lines.begin(), lines.end() - 1);
      }
    }
  }
  if (lines.empty()) return std::nullopt;
  if (lines.size() > kMostLines) lines.resize(kMostLines);
  record.lines = std::move(lines);
  return record;
}

std::string WithErrorCode(const std::string& json, int error_code) {
  Struct root;
  if (!Parse(json, &root)) return json;
  const auto message = root.mutable_fields()->find("message");
  if (message == root.mutable_fields()->end() || !message->second.has_struct_value()) return json;
  Value code;
  code.set_number_value(error_code);
  (*message->second.mutable_struct_value()->mutable_fields())["errorCode"] = code;
  std::string text;
  return google::protobuf::util::MessageToJsonString(root, &text).ok() ? text : json;
}

}  // namespace convene::agent
