#include "worker_runtime/data/chat/jinja/read_json.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/text.h"

namespace convene::worker::jinja {
namespace {

using Json = nlohmann::json;

// Takes the parser's events. It keeps its own stack, so deep input cannot exhaust the thread's.
class Builder : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return Add(Value::OfNone()); }
  bool boolean(bool value) override { return Add(Value::OfBool(value)); }
  bool number_integer(int64_t value) override { return Add(Value::OfInt(value)); }
  bool number_unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return TooLarge();
    return Add(Value::OfInt(static_cast<int64_t>(value)));
  }
  bool number_float(double value, const std::string& text) override {
    // The parser makes a float of an integer that is too large; Python keeps it.
    if (text.find_first_of(".eE") == std::string::npos) return TooLarge();
    return Add(Value::OfFloat(value));
  }
  bool string(std::string& value) override { return Add(Value::OfString(std::move(value))); }
  bool binary(Json::binary_t&) override { return Fail("binary data"); }

  bool start_object(size_t) override { return Open(/*is_dict=*/true); }
  bool start_array(size_t) override { return Open(/*is_dict=*/false); }
  bool key(std::string& key) override {
    open_.back().key = std::make_shared<const std::string>(std::move(key));
    return true;
  }
  bool end_object() override { return Close(NewDict(std::move(open_.back().dict))); }
  bool end_array() override { return Close(NewList(std::move(open_.back().items))); }

  bool parse_error(size_t position, const std::string&, const Json::exception& error) override {
    absl::string_view what = error.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ..."
    const size_t colon = what.find(": ");
    if (colon != absl::string_view::npos) what.remove_prefix(colon + 2);
    return Fail(absl::StrCat("at byte ", position, ": ", Utf8(what, 200)));
  }

  absl::StatusOr<Value> Take() && {
    if (!status_.ok()) return status_;
    return std::move(result_);
  }

 private:
  struct Container {
    bool is_dict;
    std::vector<Value> items;
    Dict dict;
    StringPtr key;
  };

  bool Fail(const std::string& why) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat("not JSON ", why));
    return false;
  }
  bool TooLarge() {
    status_ = absl::InvalidArgumentError("the JSON has an integer beyond 64 bits");
    return false;
  }
  bool Open(bool is_dict) {
    if (open_.size() >= kMaxValueDepth) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("the JSON is more than ", kMaxValueDepth, " levels deep"));
      return false;
    }
    open_.push_back({is_dict, {}, {}, nullptr});
    return true;
  }
  bool Close(absl::StatusOr<Value> value) {
    open_.pop_back();
    if (!value.ok()) {
      status_ = absl::InvalidArgumentError(value.status().message());
      return false;
    }
    return Add(*std::move(value));
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

  std::vector<Container> open_;
  Value result_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Value> ReadJson(absl::string_view text) {
  Builder builder;
  Json::sax_parse(text.begin(), text.end(), &builder);
  return std::move(builder).Take();
}

}  // namespace convene::worker::jinja
