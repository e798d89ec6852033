#include "worker_runtime/data/chat/jinja/read_json.h"

#include <rapidjson/reader.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/json_reader.h"

namespace convene::worker::jinja {
namespace {

// Takes the reader's events. It keeps its own stack, so deep input cannot exhaust the thread's.
class Builder : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, Builder> {
 public:
  explicit Builder(LargeIntegers large_integers) : large_integers_(large_integers) {}

  bool Null() { return Add(Value::OfNone()); }
  bool Bool(bool value) { return Add(Value::OfBool(value)); }
  bool RawNumber(const char* text, rapidjson::SizeType size, bool) {
    const absl::string_view number(text, size);
    const bool is_integer = number.find_first_of(".eE") == absl::string_view::npos;
    int64_t integer = 0;
    if (is_integer && absl::SimpleAtoi(number, &integer)) return Add(Value::OfInt(integer));
    if (is_integer && !TakesLargeIntegers()) {
      return Fail("the JSON has an integer beyond 64 bits with a sign");
    }
    double value = 0;
    if (!absl::SimpleAtod(number, &value) || !std::isfinite(value)) {
      return Fail("the JSON has a number beyond a double's");
    }
    return Add(Value::OfFloat(value));
  }
  bool String(const char* text, rapidjson::SizeType size, bool) {
    return Add(Value::OfString(std::string(text, size)));
  }
  bool Key(const char* text, rapidjson::SizeType size, bool) {
    open_.back().key = std::make_shared<const std::string>(text, size);
    return true;
  }
  bool StartObject() { return Open(/*is_dict=*/true); }
  bool StartArray() { return Open(/*is_dict=*/false); }
  bool EndObject(rapidjson::SizeType) { return Close(NewDict(std::move(open_.back().dict))); }
  bool EndArray(rapidjson::SizeType) { return Close(NewList(std::move(open_.back().items))); }

  // Why the reader was stopped, if it was.
  const absl::Status& status() const { return status_; }
  Value Take() && { return std::move(result_); }

 private:
  struct Container {
    bool is_dict;
    std::vector<Value> items;
    Dict dict;
    StringPtr key;
  };

  bool TakesLargeIntegers() const {
    if (large_integers_ == LargeIntegers::kAsFloats) return true;
    return large_integers_ == LargeIntegers::kAsFloatsOnTop && open_.size() == 1 &&
           open_.back().is_dict;
  }
  bool Fail(absl::string_view why) {
    status_ = absl::InvalidArgumentError(why);
    return false;
  }
  bool Open(bool is_dict) {
    if (open_.size() >= kMaxValueDepth) {
      return Fail(absl::StrCat("the JSON is more than ", kMaxValueDepth, " levels deep"));
    }
    open_.push_back({is_dict, {}, {}, nullptr});
    return true;
  }
  bool Close(absl::StatusOr<Value> value) {
    open_.pop_back();
    return value.ok() ? Add(*std::move(value)) : Fail(value.status().message());
  }
  bool Add(Value value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (open_.back().is_dict) {
      open_.back().dict.Set(std::move(open_.back().key), std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  const LargeIntegers large_integers_;
  std::vector<Container> open_;
  Value result_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Value> ReadJson(absl::string_view text, LargeIntegers large_integers) {
  Builder builder(large_integers);
  std::string buffer;
  const absl::Status read =
      worker::ReadJson<rapidjson::kParseNumbersAsStringsFlag>(text, &buffer, &builder);
  CONVENE_RETURN_IF_ERROR(builder.status());
  CONVENE_RETURN_IF_ERROR(read);
  return std::move(builder).Take();
}

}  // namespace convene::worker::jinja
