#include "rendezvous/web/http_request.h"

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

namespace convene::rendezvous {
namespace {

using Outcome = HttpRequestReader::Outcome;

Outcome ReadAll(HttpRequestReader* reader, const std::string& text) {
  absl::string_view input = text;
  return reader->Read(&input);
}

TEST_CASE("a request is the same in one piece and byte by byte") {
  const std::string text = "GET /status?run=a%20b+c&x HTTP/1.1\r\nHost: h\r\n\r\n";
  for (const size_t piece : {text.size(), size_t{1}, size_t{7}}) {
    HttpRequestReader reader;
    Outcome outcome = Outcome::kNeedsMore;
    for (size_t i = 0; i < text.size(); i += piece) {
      REQUIRE(outcome == Outcome::kNeedsMore);
      outcome = ReadAll(&reader, text.substr(i, piece));
    }
    REQUIRE(outcome == Outcome::kWhole);
    CHECK(reader.request().path == "/status");
    CHECK(reader.request().query.at("run") == "a b c");
    CHECK(reader.request().query.at("x").empty());
    CHECK(reader.request().keeps_alive);
    CHECK_FALSE(reader.request().is_head);
    CHECK_FALSE(reader.has_begun());
  }
}

TEST_CASE("requests in one packet are read one after the other") {
  HttpRequestReader reader;
  const std::string text = "HEAD /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\nGET /c";
  absl::string_view input = text;
  REQUIRE(reader.Read(&input) == Outcome::kWhole);
  CHECK(reader.request().path == "/a");
  CHECK(reader.request().is_head);
  REQUIRE(reader.Read(&input) == Outcome::kWhole);
  CHECK(reader.request().path == "/b");
  CHECK_FALSE(reader.request().is_head);
  CHECK(input == "GET /c");
  CHECK(reader.Read(&input) == Outcome::kNeedsMore);
  CHECK(reader.has_begun());
}

TEST_CASE("the headers that answers depend on are kept for their own request, in any pieces") {
  const std::string text =
      "GET / HTTP/1.1\r\nAccept: text/html,*/*\r\nIF-NONE-MATCH: \"7\"\r\nX: y\r\n\r\n";
  for (const size_t piece : {text.size(), size_t{1}}) {
    HttpRequestReader reader;
    for (size_t i = 0; i < text.size(); i += piece) ReadAll(&reader, text.substr(i, piece));
    CHECK(reader.request().accept == "text/html,*/*");
    CHECK(reader.request().if_none_match == "\"7\"");
    REQUIRE(ReadAll(&reader, "GET / HTTP/1.1\r\n\r\n") == Outcome::kWhole);
    CHECK(reader.request().accept.empty());
    CHECK(reader.request().if_none_match.empty());
  }
}

TEST_CASE("a form is read in any pieces, and no later request has anything of it") {
  const std::string text =
      "POST /login HTTP/1.1\r\nCookie: a=b; c=d\r\nContent-Length: 32\r\n\r\n"
      "password=x%26y%3Dz+%&password2&=";
  for (const size_t piece : {text.size(), size_t{1}, size_t{7}}) {
    HttpRequestReader reader;
    for (size_t i = 0; i < text.size(); i += piece) {
      const Outcome outcome = ReadAll(&reader, text.substr(i, piece));
      REQUIRE(outcome == (i + piece < text.size() ? Outcome::kNeedsMore : Outcome::kWhole));
    }
    CHECK(reader.request().is_post);
    CHECK(reader.request().cookie == "a=b; c=d");
    using Form = std::map<std::string, std::string>;
    CHECK(reader.request().form == Form{{"password", "x&y=z %"}, {"password2", ""}, {"", ""}});
    CHECK(reader.request().query.empty());
    REQUIRE(ReadAll(&reader, "GET /login?password=q HTTP/1.1\r\n\r\n") == Outcome::kWhole);
    CHECK_FALSE(reader.request().is_post);
    CHECK(reader.request().form.empty());
    CHECK(reader.request().cookie.empty());
  }
}

TEST_CASE("HTTP/1.0 and Connection: close end with the answer") {
  for (const char* text :
       {"GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nConnection: close\r\n\r\n"}) {
    HttpRequestReader reader;
    REQUIRE(ReadAll(&reader, text) == Outcome::kWhole);
    CHECK_FALSE(reader.request().keeps_alive);
  }
}

TEST_CASE("an absolute URL counts by its path") {
  HttpRequestReader reader;
  REQUIRE(ReadAll(&reader, "GET http://host:1/metrics?a=b HTTP/1.1\r\n\r\n") == Outcome::kWhole);
  CHECK(reader.request().path == "/metrics");
}

TEST_CASE("a request that is not for us is refused with the status that says why") {
  struct Case {
    std::string text;
    int refusal;
  };
  for (const Case& c : std::vector<Case>{
           {"hello\r\n\r\n", 400},
           {"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400},
           {"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405},
           {"POST /login/ HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405},
           {"PUT /login HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405},
           {"POST /login HTTP/1.1\r\nContent-Length: 4097\r\n\r\n", 413},
           {"POST /login HTTP/1.1\r\nContent-Length: 18446744073709551614\r\n\r\n", 400},
           {"POST /login HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400},
           {"POST /login HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413},
           {"POST /login HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\na=b", 400},
           {"POST /login HTTP/1.1\r\nA: " + std::string(6000, 'a') +
                "\r\nContent-Length: 4096\r\n\r\n" + std::string(4096, 'b'),
            431},
           {"CONNECT h:1 HTTP/1.1\r\n\r\n", 405},
           {"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 413},
           {"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413},
           {"GET / HTTP/1.1\r\nA: " + std::string(kLongestHttpHead, 'a'), 431},
           {"GET /" + std::string(kLongestHttpHead, 'a'), 431},
           {"GET / HTTP/2.0\r\n\r\n", 505},
       }) {
    INFO(c.text.substr(0, 40));
    HttpRequestReader reader;
    REQUIRE(ReadAll(&reader, c.text) == Outcome::kRefused);
    CHECK(reader.refusal() == c.refusal);
  }
}

TEST_CASE("the bound is on each head, not on the connection") {
  HttpRequestReader reader;
  const std::string request = "GET / HTTP/1.1\r\nA: " + std::string(5000, 'a') + "\r\n\r\n";
  const std::string text = request + request + request;
  absl::string_view input = text;
  for (int i = 0; i < 3; ++i) CHECK(reader.Read(&input) == Outcome::kWhole);
}

}  // namespace
}  // namespace convene::rendezvous
