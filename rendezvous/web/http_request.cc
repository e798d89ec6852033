#include "rendezvous/web/http_request.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace convene::rendezvous {
namespace {

// Text that is no escape stays unchanged.
std::string PercentDecoded(absl::string_view text, bool plus_is_space) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) &&
        absl::ascii_isxdigit(text[i + 2])) {
      decoded += absl::HexStringToBytes(text.substr(i + 1, 2));
      i += 2;
    } else {
      decoded.push_back(plus_is_space && text[i] == '+' ? ' ' : text[i]);
    }
  }
  return decoded;
}

// "a=1&b=2", decoded; the last of equal names.
std::map<std::string, std::string> PairsOf(absl::string_view text) {
  std::map<std::string, std::string> pairs;
  for (const absl::string_view pair : absl::StrSplit(text, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> name_and_value =
        absl::StrSplit(pair, absl::MaxSplits('=', 1));
    pairs[PercentDecoded(name_and_value.first, true)] = PercentDecoded(name_and_value.second, true);
  }
  return pairs;
}

}  // namespace

HttpRequestReader::HttpRequestReader() {
  http_parser_init(&parser_, HTTP_REQUEST);
  parser_.data = this;
  http_parser_settings_init(&settings_);
  settings_.on_url = &OnUrl;
  settings_.on_header_field = &OnHeaderField;
  settings_.on_header_value = &OnHeaderValue;
  settings_.on_headers_complete = &OnHeadersComplete;
  settings_.on_body = &OnBody;
  settings_.on_message_complete = &OnMessageComplete;
}

HttpRequestReader::Outcome HttpRequestReader::Read(absl::string_view* input) {
  if (std::exchange(is_whole_, false)) {
    http_parser_pause(&parser_, 0);
    url_.clear();
    body_.clear();
    request_ = {};
    head_bytes_ = 0;
  }
  const absl::string_view piece = input->substr(0, kLongestHttpHead - head_bytes_);
  if (piece.empty()) return Outcome::kNeedsMore;
  const size_t taken = http_parser_execute(&parser_, &settings_, piece.data(), piece.size());
  head_bytes_ += taken;
  input->remove_prefix(std::min(taken, piece.size()));
  if (is_whole_) return Outcome::kWhole;
  // The refusal is OnHeadersComplete's, or 400 for bytes that cannot be read at all.
  if (HTTP_PARSER_ERRNO(&parser_) != HPE_OK) return Outcome::kRefused;
  if (head_bytes_ >= kLongestHttpHead) {
    refusal_ = 431;
    return Outcome::kRefused;
  }
  return Outcome::kNeedsMore;
}

int HttpRequestReader::OnUrl(http_parser* parser, const char* text, size_t length) {
  static_cast<HttpRequestReader*>(parser->data)->url_.append(text, length);
  return 0;
}

int HttpRequestReader::OnHeaderField(http_parser* parser, const char* text, size_t length) {
  auto* const self = static_cast<HttpRequestReader*>(parser->data);
  if (self->reads_value_) self->KeepHeader();
  self->header_name_.append(text, length);
  return 0;
}

int HttpRequestReader::OnHeaderValue(http_parser* parser, const char* text, size_t length) {
  auto* const self = static_cast<HttpRequestReader*>(parser->data);
  self->reads_value_ = true;
  self->header_value_.append(text, length);
  return 0;
}

void HttpRequestReader::KeepHeader() {
  if (absl::EqualsIgnoreCase(header_name_, "accept")) {
    request_.accept = header_value_;
  } else if (absl::EqualsIgnoreCase(header_name_, "if-none-match")) {
    request_.if_none_match = header_value_;
  } else if (absl::EqualsIgnoreCase(header_name_, "authorization")) {
    request_.authorization = header_value_;
  } else if (absl::EqualsIgnoreCase(header_name_, "cookie")) {
    request_.cookie = header_value_;
  }
  header_name_.clear();
  header_value_.clear();
  reads_value_ = false;
}

// Returns not 0 when the request is refused.
int HttpRequestReader::OnHeadersComplete(http_parser* parser) {
  auto* const self = static_cast<HttpRequestReader*>(parser->data);
  self->KeepHeader();
  const bool is_post = parser->method == HTTP_POST;
  const uint64_t most = is_post ? kLongestHttpForm : 0;
  const bool is_too_long = (parser->flags & F_CHUNKED) != 0 ||
                           (parser->content_length > most && parser->content_length != ULLONG_MAX);
  if (parser->http_major != 1) {
    self->refusal_ = 505;
  } else if (!is_post && parser->method != HTTP_GET && parser->method != HTTP_HEAD) {
    self->refusal_ = 405;
  } else if (is_too_long) {
    self->refusal_ = 413;
  } else if (!self->TakeUrlApart()) {
    self->refusal_ = 400;
  } else if (is_post && self->request_.path != kLoginPath) {
    self->refusal_ = 405;
  } else {
    self->request_.is_post = is_post;
    self->request_.is_head = parser->method == HTTP_HEAD;
    // An upgrade is ignored: the request is answered, and the connection then ends.
    self->request_.keeps_alive = http_should_keep_alive(parser) != 0 && parser->upgrade == 0;
    return 0;
  }
  return -1;
}

int HttpRequestReader::OnBody(http_parser* parser, const char* text, size_t length) {
  static_cast<HttpRequestReader*>(parser->data)->body_.append(text, length);
  return 0;
}

int HttpRequestReader::OnMessageComplete(http_parser* parser) {
  auto* const self = static_cast<HttpRequestReader*>(parser->data);
  self->request_.form = PairsOf(self->body_);
  self->is_whole_ = true;
  http_parser_pause(parser, 1);
  return 0;
}

bool HttpRequestReader::TakeUrlApart() {
  http_parser_url parts;
  http_parser_url_init(&parts);
  if (http_parser_parse_url(url_.data(), url_.size(), 0, &parts) != 0) return false;
  const auto part = [&](http_parser_url_fields field) {
    if ((parts.field_set & (1u << field)) == 0) return absl::string_view();
    return absl::string_view(url_).substr(parts.field_data[field].off, parts.field_data[field].len);
  };
  request_.path = PercentDecoded(part(UF_PATH), false);
  if (request_.path.empty()) request_.path = "/";
  request_.query = PairsOf(part(UF_QUERY));
  return true;
}

}  // namespace convene::rendezvous
