// PURE. The bytes of HTTP/1 requests as values.
#pragma once

#include <http_parser.h>

#include <cstddef>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace convene::rendezvous {

// A request's line and head together, and the body of a form behind them.
inline constexpr size_t kLongestHttpHead = 8192;
inline constexpr size_t kLongestHttpForm = 4096;
// The only path that takes a POST: a form with a password (password.h).
inline constexpr char kLoginPath[] = "/login";

struct HttpRequest {
  bool is_head = false;  // HEAD, else GET or POST
  bool is_post = false;  // POST, to kLoginPath
  bool keeps_alive = true;
  std::string path;                          // decoded, "/" at least
  std::map<std::string, std::string> query;  // decoded; the last of equal names
  std::string accept;                        // the header Accept; "" where there is none
  std::string if_none_match;                 // the header If-None-Match; "" where there is none
  std::string authorization;                 // the header Authorization; "" where there is none
  std::string cookie;                        // the header Cookie; "" where there is none
  std::map<std::string, std::string> form;   // of a POST, as query
};

// Reads one request after the other, in whatever pieces they arrive: GET and HEAD without a body,
// and POST of a form.
class HttpRequestReader {
 public:
  enum class Outcome { kNeedsMore, kWhole, kRefused };

  HttpRequestReader();
  HttpRequestReader(const HttpRequestReader&) = delete;
  HttpRequestReader& operator=(const HttpRequestReader&) = delete;

  // Takes the current request's bytes from the front of `input`. kWhole: request() is it, and the
  // next call begins the next. kRefused: refusal() is the status to answer with, and the connection
  // is of no more use.
  Outcome Read(absl::string_view* input);

  const HttpRequest& request() const { return request_; }
  // 400, 405, 413, 431 or 505.
  int refusal() const { return refusal_; }
  // Some of the next request's bytes are here.
  bool has_begun() const { return head_bytes_ > 0 && !is_whole_; }

 private:
  static int OnUrl(http_parser* parser, const char* text, size_t length);
  static int OnHeaderField(http_parser* parser, const char* text, size_t length);
  static int OnHeaderValue(http_parser* parser, const char* text, size_t length);
  static int OnHeadersComplete(http_parser* parser);
  // Keeps the header that was read last, if it is one of HttpRequest's.
  void KeepHeader();
  static int OnBody(http_parser* parser, const char* text, size_t length);
  static int OnMessageComplete(http_parser* parser);
  // Returns false for a malformed URL.
  bool TakeUrlApart();

  http_parser parser_;
  http_parser_settings settings_;
  std::string url_;
  std::string body_;
  // The header that is being read. Its name and value come in pieces.
  std::string header_name_;
  std::string header_value_;
  bool reads_value_ = false;
  size_t head_bytes_ = 0;
  bool is_whole_ = false;
  int refusal_ = 400;
  HttpRequest request_;
};

}  // namespace convene::rendezvous
