// libFuzzer on what stands between a stranger and a run: files with tokens, what a browser shows at
// the page's door, and etcd's answers about who leads. The input's first byte chooses the reader of
// the rest. It is a program of its own, because it builds in a fraction of bytes_fuzz's time.
//
// A comment at each reader says what it checks besides the sanitizers.
#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "launcher/kept_token.h"
#include "proto/journal.pb.h"
#include "rendezvous/etcd/etcd.pb.h"
#include "rendezvous/etcd/leadership.h"
#include "rendezvous/etcd/ledger.h"
#include "rendezvous/etcd/place.h"
#include "rendezvous/lock/token.h"
#include "rendezvous/web/http_request.h"
#include "rendezvous/web/password.h"
#include "tests/fuzz/script.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/testing/temp_dir.h"

namespace convene {
namespace {

constexpr char kToken[] = "a token that stands in no input";

const std::string& Folder() {
  static const auto* const folder = new testing::TempDir();  // Left behind when a crash is found.
  static const int cleanup = std::atexit([] { RemoveTree(folder->path()).IgnoreError(); });
  static_cast<void>(cleanup);
  return folder->path();
}

// A token's file gives its content, less one newline, or nothing; a kept one has the run's name.
void ReadTokenFiles(Script script) {
  const std::string run(script.Piece(script.Byte() % 8));
  const std::string content(script.Rest());
  const std::string path = absl::StrCat(Folder(), "/host:1");
  {
    auto file = OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CONVENE_CHECK(file.ok() && WriteAll(file->get(), content, path).ok());
  }
  const auto token = rendezvous::ReadTokenFile(path);
  const absl::string_view line = absl::StripSuffix(content, "\n");
  CONVENE_CHECK(token.ok() == rendezvous::CheckToken(line, "").ok());
  CONVENE_CHECK(!token.ok() || *token == line);
  for (const char* endpoint : {"", "host:1"}) {
    const auto kept = launcher::FindKeptToken(Folder(), endpoint, run);
    if (!kept.ok() || !kept->has_value()) continue;
    CONVENE_CHECK(rendezvous::CheckToken((*kept)->token, "").ok());
    CONVENE_CHECK((*kept)->endpoint == "host:1" && (*endpoint != 0 || (*kept)->run_id == run));
  }
}

// The right cookie opens whatever stands before it; nothing else does, and no password in the form.
void ReadBrowser(Script script) {
  static const std::string* const cookie = [] {
    rendezvous::PasswordDoor door({.join_token = kToken}, "own");
    rendezvous::HttpRequest login;
    login.is_post = true;
    login.form["password"] = kToken;
    const std::string headers = door.Stop(login, MonotonicTime())->headers;
    const size_t begin = headers.find("__Host-");
    return new std::string(headers.substr(begin, headers.find(';', begin) - begin));
  }();
  rendezvous::PasswordDoor door({.join_token = kToken}, "own");
  MonotonicTime now;
  while (!script.empty()) {
    rendezvous::HttpRequest request;
    const uint8_t kind = script.Byte();
    const std::string text(script.Piece(script.Byte()));
    request.path = "/";
    request.accept = (kind & 1) != 0 ? "text/html" : "*/*";
    request.is_post = (kind & 2) != 0;
    ((kind & 4) != 0 ? request.authorization : request.cookie) = text;
    request.form["password"] = text;
    const auto stopped = door.Stop(request, now);
    CONVENE_CHECK(stopped.has_value() && (stopped->code == 401 || stopped->code == 429));
    CONVENE_CHECK(stopped->code == 401 || request.is_post);
    request.is_post = false;
    request.cookie = absl::StrCat(text, "; ", *cookie);
    CONVENE_CHECK(!door.Stop(request, now).has_value());
    now = now + absl::Milliseconds(kind);
  }
}

// Requests and forms as they come from a socket, in pieces of any size: none opens a locked page.
void ReadRequests(Script script) {
  rendezvous::PasswordDoor door({.join_token = kToken}, "own");
  rendezvous::HttpRequestReader reader;
  const size_t piece = script.Byte() + size_t{1};
  while (!script.empty()) {
    absl::string_view input = script.Piece(piece);
    while (!input.empty()) {
      const auto outcome = reader.Read(&input);
      if (outcome == rendezvous::HttpRequestReader::Outcome::kRefused) return;
      if (outcome == rendezvous::HttpRequestReader::Outcome::kNeedsMore) break;
      const rendezvous::HttpRequest& request = reader.request();
      CONVENE_CHECK(!request.is_post || request.path == rendezvous::kLoginPath);
      CONVENE_CHECK(request.is_post || request.form.empty());
      const auto stopped = door.Stop(request, MonotonicTime());
      CONVENE_CHECK(stopped.has_value() ? stopped->code != 303 : request.path == "/healthz");
    }
  }
}

// An answer to a transaction: a term is only told of our own key, and a change counts as made only
// where etcd says so. After another answer the same request is sent again.
void ReadTransaction(Script script) {
  etcdserverpb::TxnResponse response;
  if (!response.ParseFromString(std::string(script.Rest()))) return;
  const auto term = rendezvous::etcd::TermOf(response, 7);
  CONVENE_CHECK(!term.has_value() || response.succeeded() ||
                response.responses(0).response_range().kvs(0).lease() == 7);
  rendezvous::etcd::Ledger ledger({}, 7, 3);
  CONVENE_CHECK(ledger.Load({}).ok());
  ledger.Want("job", rendezvous::v1::JobRecord());
  const std::string request = ledger.Next().SerializeAsString();
  if (ledger.Answered(response).ok()) {
    CONVENE_CHECK(ledger.is_settled());
    CONVENE_CHECK(response.succeeded() || response.responses_size() == 2);
  } else {
    CONVENE_CHECK(!response.succeeded() && ledger.Next().SerializeAsString() == request);
  }
}

// Answers in any order and with any numbers: a daemon leads only by a campaign that it won, and
// never beyond the time that etcd has granted it.
void ReadLeases(Script script) {
  using rendezvous::etcd::Deed;
  MonotonicTime now = MonotonicTime::FromEpoch(absl::Hours(1));
  rendezvous::etcd::Leadership leadership(now);
  MonotonicTime granted;
  while (!script.empty()) {
    const auto next = leadership.NextDeed(now);
    if (next.deed == Deed::kOver) return;
    CONVENE_CHECK(next.at >= now);
    const MonotonicTime sent = now;
    now = now + absl::Milliseconds(10 * script.Byte());
    const uint8_t kind = script.Byte();
    int64_t number = 0;
    for (const char byte : script.Piece(kind % 9))
      number = number * 256 + static_cast<uint8_t>(byte);
    const absl::Duration ttl = absl::Seconds(number);
    if (kind >= 0xf0) {
      leadership.Failed(now);
    } else if (next.deed == Deed::kLook) {
      leadership.Looked(now, kind >= 0x80);
      granted = MonotonicTime();
    } else if (next.deed == Deed::kGrant) {
      leadership.Granted(sent, number, ttl);
      granted = std::max(granted, sent + ttl);
    } else if (next.deed == Deed::kCampaign) {
      leadership.Campaigned(now, kind >= 0x80 ? std::nullopt : std::optional<int64_t>(1));
      CONVENE_CHECK(leadership.term() == (kind >= 0x80 ? 0 : 1));
    } else {
      leadership.KeptAlive(sent, ttl);
      granted = std::max(granted, sent + ttl);
    }
    CONVENE_CHECK(leadership.term() == 0 || leadership.until() <= granted);
  }
}

using Reader = void (*)(Script);
constexpr Reader kReaders[] = {ReadTokenFiles, ReadBrowser, ReadTransaction, ReadLeases,
                               ReadRequests};

}  // namespace
}  // namespace convene

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  convene::Script script(absl::string_view(reinterpret_cast<const char*>(data), size));
  const uint8_t reader = script.Byte();
  convene::kReaders[reader % std::size(convene::kReaders)](script);
  return 0;
}
