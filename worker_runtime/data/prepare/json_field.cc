#include "worker_runtime/data/prepare/json_field.h"

#include <rapidjson/reader.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/json_reader.h"

namespace convene::worker {
namespace {

constexpr size_t kShownKeyBytes = 40;
constexpr size_t kNamedKeys = 10;

// Follows the keys from the root through objects.
class FieldHandler : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, FieldHandler> {
 public:
  explicit FieldHandler(const std::vector<std::string>& keys) : keys_(keys) {}

  // Any number, true, false or null.
  bool Default() {
    TakeOther();
    return true;
  }
  bool String(const char* text, rapidjson::SizeType size, bool) {
    if (is_wanted_ && IsLastKey()) {
      found_ = true;
      is_text_ = true;
      text_ = absl::string_view(text, size);
    }
    is_wanted_ = false;
    return true;
  }
  bool Key(const char* text, rapidjson::SizeType size, bool) {
    is_wanted_ = depth_ == matched_ + 1 && absl::string_view(text, size) == keys_[matched_];
    return true;
  }
  bool StartObject() {
    if (depth_ == 0) is_object_ = true;
    if (is_wanted_ && !IsLastKey()) {
      ++matched_;
      is_wanted_ = false;
    } else {
      TakeOther();
    }
    return ++depth_ <= kMostJsonDepth;
  }
  bool EndObject(rapidjson::SizeType) {
    --depth_;
    if (depth_ == matched_ && matched_ > 0) --matched_;
    return true;
  }
  bool StartArray() {
    TakeOther();
    return ++depth_ <= kMostJsonDepth;
  }
  bool EndArray(rapidjson::SizeType) {
    --depth_;
    return true;
  }

  bool is_object() const { return is_object_; }
  bool found() const { return found_; }
  bool is_text() const { return is_text_; }
  absl::string_view text() const { return text_; }

 private:
  bool IsLastKey() const { return matched_ + 1 == static_cast<int>(keys_.size()); }
  // A value that is no text.
  void TakeOther() {
    if (is_wanted_ && IsLastKey()) {
      found_ = true;
      is_text_ = false;
    }
    is_wanted_ = false;
  }

  const std::vector<std::string>& keys_;
  int depth_ = 0;           // objects and arrays around
  int matched_ = 0;         // of these, the outermost that keys_ leads into, the root not counted
  bool is_wanted_ = false;  // the next value stands at keys_[matched_]
  bool is_object_ = false;
  bool found_ = false;
  bool is_text_ = false;
  absl::string_view text_;
};

class KeysHandler : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, KeysHandler> {
 public:
  bool Key(const char* text, rapidjson::SizeType size, bool) {
    if (depth_ == 1) keys_.push_back(Printable(Utf8({text, size}, kShownKeyBytes)));
    return true;
  }
  bool StartObject() {
    if (depth_ == 0) is_object_ = true;
    return ++depth_ <= kMostJsonDepth;
  }
  bool EndObject(rapidjson::SizeType) {
    --depth_;
    return true;
  }
  bool StartArray() { return ++depth_ <= kMostJsonDepth; }
  bool EndArray(rapidjson::SizeType) {
    --depth_;
    return true;
  }

  bool is_object() const { return is_object_; }
  std::vector<std::string> Take() && { return std::move(keys_); }

 private:
  int depth_ = 0;
  bool is_object_ = false;
  std::vector<std::string> keys_;
};

template <typename Handler>
absl::Status ReadLine(absl::string_view line, std::string* buffer, Handler* handler) {
  CONVENE_RETURN_IF_ERROR(ReadJson<rapidjson::kParseNanAndInfFlag>(
      line, buffer, handler, absl::StrCat("nested deeper than ", kMostJsonDepth)));
  return handler->is_object() ? absl::OkStatus() : absl::InvalidArgumentError("not a JSON object");
}

// The remedy for a line that has its text at another key; "" where it has no key at all.
std::string OtherKeys(absl::string_view line) {
  const absl::StatusOr<std::vector<std::string>> keys = KeysOfJsonObject(line);
  if (!keys.ok() || keys->empty()) return "";
  return absl::StrCat(" (its keys: ", JoinCapped(*keys, kNamedKeys),
                      "): name the one with the text (--text-field of the trainer, --field of "
                      "convene data prepare)");
}

}  // namespace

absl::StatusOr<std::vector<std::string>> KeysOfJsonObject(absl::string_view line) {
  KeysHandler handler;
  std::string buffer;
  CONVENE_RETURN_IF_ERROR(ReadLine(line, &buffer, &handler));
  return std::move(handler).Take();
}

JsonField::JsonField(const std::string& path) : path_(path), keys_(absl::StrSplit(path, '.')) {
  for (const std::string& key : keys_) CONVENE_CHECK(!key.empty());
}

absl::StatusOr<absl::string_view> JsonField::Find(absl::string_view line) {
  FieldHandler handler(keys_);
  CONVENE_RETURN_IF_ERROR(ReadLine(line, &buffer_, &handler));
  if (!handler.found()) {
    const bool is_conversation =
        absl::StrContains(line, "\"messages\"") || absl::StrContains(line, "\"conversations\"");
    return absl::InvalidArgumentError(
        absl::StrCat("no field '", path_, "'",
                     is_conversation ? ", but a conversation: give its template with "
                                       "--chat-template PATH (a model's folder has one)"
                                     : OtherKeys(line)));
  }
  if (!handler.is_text()) {
    return absl::InvalidArgumentError(absl::StrCat("the field '", path_, "' is not a text"));
  }
  return handler.text();
}

}  // namespace convene::worker
