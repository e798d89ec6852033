#include "rendezvous/lock/tls_pump.h"

#include <fcntl.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/lock/credentials.h"
#include "rendezvous/lock/testing/by_hand.h"
#include "rendezvous/lock/testing/pumps.h"
#include "rendezvous/lock/testing/test_ca.h"
#include "rendezvous/lock/tls_context.h"
#include "rendezvous/lock/tls_pipe.h"
#include "rendezvous/net/connect.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/mutex.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/logged_text.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

constexpr char kOther[] = "Xz3Vq0k7sT1mN8bYw5Jr2aPg";
// Both sides of a connection between members, open.
struct Members {
  std::unique_ptr<TlsPump> server;
  std::unique_ptr<TlsPump> client = Pump(Token(kToken), TlsContext::Side::kClient);
  UniqueFd at_server, at_client;

  explicit Members(const TlsPump::Options& options = {})
      : server(Pump(Token(kToken), TlsContext::Side::kServer, options)) {
    Ends ends = SocketPair();
    Waiter of_server, of_client;
    server->Open(std::move(ends.server), "", of_server.Callback());
    client->Open(std::move(ends.client), "", of_client.Callback());
    auto opened = of_server.Take();
    REQUIRE_OK(opened);
    CHECK(opened->peer == TlsPeer::kMember);
    at_server = std::move(opened->plain);
    auto dialled = of_client.Take();
    REQUIRE_OK(dialled);
    at_client = std::move(dialled->plain);
  }
};

// Called on any thread. Whether all of it was said.
bool TrySay(int fd, const std::string& text) {
  size_t said = 0;
  while (said < text.size()) {
    if (!AwaitReady(fd, POLLOUT, Soon()).ok()) return false;
    const ssize_t count = send(fd, text.data() + said, text.size() - said, MSG_NOSIGNAL);
    if (count < 0 && errno != EAGAIN) return false;
    if (count > 0) said += static_cast<size_t>(count);
  }
  return true;
}

void Say(int fd, const std::string& text) { REQUIRE(TrySay(fd, text)); }

// So many bytes, or all until the end. Called on any thread.
std::string Hear(int fd, size_t most) {
  std::string heard;
  char bytes[65536];
  while (heard.size() < most) {
    if (!AwaitReady(fd, POLLIN, Soon()).ok()) return "no byte in time";
    const ssize_t count = recv(fd, bytes, std::min(sizeof(bytes), most - heard.size()), 0);
    if (count == 0) break;
    if (count < 0 && errno != EAGAIN) return "broken";
    if (count > 0) heard.append(bytes, static_cast<size_t>(count));
  }
  return heard;
}

TEST_CASE("members of one token hear each other, and an end goes on to the other side") {
  Members members;
  Say(members.at_client.get(), "from the client");
  CHECK(Hear(members.at_server.get(), 15) == "from the client");
  Say(members.at_server.get(), "from the server");
  CHECK(Hear(members.at_client.get(), 15) == "from the server");
  // Half an end: the other direction goes on.
  REQUIRE(shutdown(members.at_client.get(), SHUT_WR) == 0);
  CHECK(Hear(members.at_server.get(), 1).empty());
  Say(members.at_server.get(), "last words");
  members.at_server.Reset();
  CHECK(Hear(members.at_client.get(), 100) == "last words");
}

TEST_CASE("many bytes arrive whole, both ways at once, and a slow reader holds up its own alone") {
  Members members;
  std::string there(20 << 20, '\0'), back(20 << 20, '\0');
  for (size_t i = 0; i < there.size(); ++i) there[i] = static_cast<char>(i * 7 + i / 1000);
  for (size_t i = 0; i < back.size(); ++i) back[i] = static_cast<char>(i * 5 + i / 999);
  std::string heard_back;
  bool has_sent = false;
  bool has_answered = false;
  Thread sender("sender", [&] { has_sent = TrySay(members.at_client.get(), there); });
  Thread answerer("answerer", [&] { has_answered = TrySay(members.at_server.get(), back); });
  Thread hearer("hearer", [&] { heard_back = Hear(members.at_client.get(), back.size()); });
  // Nobody reads at the server yet, and the other direction arrives all the same.
  answerer.Join();
  hearer.Join();
  const std::string heard_there = Hear(members.at_server.get(), there.size());
  sender.Join();
  CHECK(has_sent);
  CHECK(has_answered);
  CHECK(heard_back == back);
  CHECK(heard_there == there);
}

TEST_CASE("the bytes of an open connection do not wait for the handshakes of strangers") {
  TlsPump::Options options;
  options.handshake_slice = absl::ZeroDuration();
  Members members(options);
  Mutex mutex;
  CondVar changed;
  bool is_opened = false;
  bool is_held = false;
  bool is_said = false;
  bool is_heard = false;
  const auto wait_for = [&](const bool& what) {
    MutexLock lock(&mutex);
    for (const MonotonicTime deadline = Soon(); !what && Clock::Real().Now() < deadline;) {
      changed.WaitFor(&mutex, absl::Seconds(1));
    }
    return what;
  };
  const auto tell = [&](bool* what) {
    MutexLock lock(&mutex);
    *what = true;
    changed.SignalAll();
  };
  // A stranger that has gone already: its handshake ends with its first step.
  const auto open = [&](TlsPump::OnOpened on_opened) {
    members.server->Open(SocketPair().server, "", std::move(on_opened));
  };
  // The first stranger holds the thread up until all stand behind it, the second one until a member
  // speaks, and a later one until the member is heard.
  open([&](const auto&) { wait_for(is_opened); });
  open([&](const auto&) {
    tell(&is_held);
    wait_for(is_said);
  });
  for (int i = 0; i < 10; ++i) open([](const auto&) {});
  bool is_heard_before = false;
  Waiter last;
  open([&](const auto&) { is_heard_before = wait_for(is_heard); });
  open(last.Callback());
  tell(&is_opened);
  REQUIRE(wait_for(is_held));
  Say(members.at_server.get(), "a word");
  tell(&is_said);
  CHECK(Hear(members.at_client.get(), 6) == "a word");
  tell(&is_heard);
  CHECK_FALSE(last.Take().ok());
  CHECK(is_heard_before);
}

TEST_CASE("the token's key is its own proof, and a member from before that rule gives another") {
  const auto server = Pump(Token(kToken), TlsContext::Side::kServer);
  const auto context = TlsContext::Make(Token(kToken), TlsContext::Side::kClient);
  REQUIRE_OK(context);
  for (const bool is_old : {false, true}) {
    Ends ends = SocketPair();
    Waiter waiter;
    server->Open(std::move(ends.server), "", waiter.Callback());
    MemberByHand member(*context, std::move(ends.client),
                        is_old ? "\x09"
                                 "convene/1"
                               : "\x09"
                                 "convene/2"
                                 "\x09"
                                 "convene/1");
    if (is_old) {
      member.Say(context->ProofOf(member.tls(), TlsContext::Side::kClient));
      CHECK(member.Hear() == context->ProofOf(member.tls(), TlsContext::Side::kServer));
    }
    auto opened = waiter.Take();
    REQUIRE_OK(opened);
    CHECK(opened->peer == TlsPeer::kMember);
    member.Say("a word");
    CHECK(Hear(opened->plain.get(), 6) == "a word");
  }
}

TEST_CASE("another token opens nothing, and the client hears why") {
  const auto server = Pump(Token(kToken), TlsContext::Side::kServer);
  const auto client = Pump(Token(kOther), TlsContext::Side::kClient);
  Ends ends = SocketPair();
  Waiter of_server, of_client;
  server->Open(std::move(ends.server), "", of_server.Callback());
  client->Open(std::move(ends.client), "", of_client.Callback());
  CHECK_STATUS(of_client.Take().status(), absl::StatusCode::kPermissionDenied, "TLS handshake");
  CHECK_STATUS(of_server.Take().status(), absl::StatusCode::kPermissionDenied, "");
}

// A client that takes any server. `shown`: the certificate that it has; nullptr: none.
SSL* StrangerTls(const Credentials* shown) {
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  if (shown != nullptr) {
    const auto other = TlsContext::Make(*shown, TlsContext::Side::kClient);
    REQUIRE_OK(other);
    SSL_CTX_use_certificate(context, SSL_CTX_get0_certificate(other->get()));
    SSL_CTX_use_PrivateKey(context, SSL_CTX_get0_privatekey(other->get()));
  }
  SSL* const tls = SSL_new(context);
  SSL_CTX_free(context);  // the connection has a share of it
  return tls;
}
struct Stranger : ByHand {
  Stranger(const Credentials* shown, UniqueFd socket)
      : ByHand(StrangerTls(shown), std::move(socket)) {}
};

TEST_CASE("a client with another certificate is turned away, one without any is a guest") {
  const auto server = Pump(Token(kToken), TlsContext::Side::kServer);
  {
    Ends ends = SocketPair();
    Waiter waiter;
    server->Open(std::move(ends.server), "", waiter.Callback());
    const Credentials other = Token(kOther);
    Stranger stranger(&other, std::move(ends.client));
    stranger.Shake();  // a client of TLS 1.3 believes that it is done
    CHECK(stranger.Hear().empty());
    CHECK_STATUS(waiter.Take().status(), absl::StatusCode::kPermissionDenied, "");
  }
  Ends ends = SocketPair();
  Waiter waiter;
  server->Open(std::move(ends.server), "", waiter.Callback());
  Stranger guest(nullptr, std::move(ends.client));
  CHECK(guest.Shake());
  auto opened = waiter.Take();
  REQUIRE_OK(opened);
  CHECK(opened->peer == TlsPeer::kGuest);
  guest.Say("a page, please");
  CHECK(Hear(opened->plain.get(), 14) == "a page, please");
  Say(opened->plain.get(), "here");
  CHECK(guest.Hear() == "here");
}

// How a handshake between these two ended, at the server and at the client.
struct Ended {
  absl::StatusOr<TlsPump::Opened> server, client;
};
Ended Meet(TlsPump& server, TlsPump& client, const std::string& server_name = "127.0.0.1") {
  Ends ends = SocketPair();
  Waiter of_server, of_client;
  server.Open(std::move(ends.server), "", of_server.Callback());
  client.Open(std::move(ends.client), server_name, of_client.Callback());
  auto at_client = of_client.Take();
  return {of_server.Take(), std::move(at_client)};
}

TEST_CASE("members have certificates of one CA, the right name, and the same token where one is") {
  const testing::TempDir of_server, of_client, of_other;
  const TestCa ca;
  Credentials own = ca.Issue(of_client.path());
  const Credentials daemon =
      ca.Issue(of_server.path(), {.names = "DNS:node0.cluster,IP:127.0.0.1"});
  const auto server = Pump(daemon, TlsContext::Side::kServer);
  const auto client = Pump(own, TlsContext::Side::kClient);
  for (const char* const name : {"127.0.0.1", "node0.cluster"}) {
    Ended ended = Meet(*server, *client, name);
    REQUIRE_OK(ended.server);
    REQUIRE_OK(ended.client);
    CHECK(ended.server->peer == TlsPeer::kMember);
    Say(ended.client->plain.get(), "hello");
    CHECK(Hear(ended.server->plain.get(), 5) == "hello");
  }
  for (const char* const name : {"127.0.0.2", "node1.cluster"}) {
    const Ended ended = Meet(*server, *client, name);
    CHECK_STATUS(ended.client.status(), absl::StatusCode::kPermissionDenied,
                 "is not for this address");
    CHECK_STATUS(ended.server.status(), absl::StatusCode::kPermissionDenied, "");
  }
  // A stranger that has a CA of its own, and takes any.
  Credentials stranger = TestCa().Issue(of_other.path());
  const Ended ended = Meet(*server, *Pump(stranger, TlsContext::Side::kClient));
  CHECK_STATUS(ended.client.status(), absl::StatusCode::kPermissionDenied,
               "is not of a CA in --tls-ca");
  own.join_token = kToken;
  const auto strict = Pump(
      [&] {
        Credentials both = daemon;
        both.join_token = kToken;
        return both;
      }(),
      TlsContext::Side::kServer);
  CHECK_OK(Meet(*strict, *Pump(own, TlsContext::Side::kClient)).server);
  own.join_token = kOther;
  const auto other = Pump(own, TlsContext::Side::kClient);
  for (TlsPump* const without : {client.get(), other.get()}) {
    const Ended refused = Meet(*strict, *without);
    CHECK_STATUS(refused.server.status(), absl::StatusCode::kPermissionDenied, "join token");
    CHECK_STATUS(refused.client.status(), absl::StatusCode::kPermissionDenied, "join token");
  }
  // A daemon without the token is none for an agent with it.
  CHECK(!Meet(*server, *other).client.ok());
  CHECK(!Meet(*strict, *Pump(Token(kToken), TlsContext::Side::kClient)).server.ok());
}

TEST_CASE("a server's certificate counts by its CA alone, and a browser's opens the page") {
  const testing::TempDir of_server, of_client;
  const TestCa ca;
  const Credentials daemon = ca.Issue(of_server.path());
  const auto server = Pump(daemon, TlsContext::Side::kServer);
  for (const bool is_of_ca : {true, false}) {
    const Credentials shown =
        is_of_ca ? ca.Issue(of_client.path()) : TestCa().Issue(of_client.path());
    Ends ends = SocketPair();
    Waiter waiter;
    server->Open(std::move(ends.server), "", waiter.Callback());
    Stranger browser(&shown, std::move(ends.client));
    browser.Shake();
    auto opened = waiter.Take();
    if (is_of_ca) {
      REQUIRE_OK(opened);
      CHECK(opened->peer == TlsPeer::kViewer);
      Say(opened->plain.get(), "the page");
      CHECK(browser.Hear() == "the page");
    } else {
      CHECK_STATUS(opened, absl::StatusCode::kPermissionDenied, "is not of a CA in --tls-ca");
    }
  }
}

TEST_CASE("certificates that change are read again, and open connections go on") {
  const testing::TempDir of_server, of_client, of_next;
  const TestCa first, second;
  const auto server = Pump(first.Issue(of_server.path()), TlsContext::Side::kServer);
  const auto client = Pump(first.Issue(of_client.path()), TlsContext::Side::kClient);
  const auto next = Pump(second.Issue(of_next.path()), TlsContext::Side::kClient);
  const Ended open = Meet(*server, *client);
  REQUIRE_OK(open.server);
  CHECK(!Meet(*server, *next).server.ok());
  // Half a change is not right, and what was right goes on.
  const std::string key = absl::StrCat(of_server.path(), "/key.pem");
  REQUIRE_OK(WriteFileAtomic(key, "half a key"));
  CHECK_OK(Meet(*server, *client).server);
  second.Issue(of_server.path());
  CHECK_OK(Meet(*server, *next).server);
  CHECK(!Meet(*server, *client).server.ok());
  second.Issue(of_client.path());
  CHECK_OK(Meet(*server, *client).server);
  Say(open.client->plain.get(), "still here");
  CHECK(Hear(open.server->plain.get(), 10) == "still here");
}

TEST_CASE("certificates that end soon are told of at the start and when they are read again") {
  const testing::LoggedText log;
  const testing::TempDir of_server;
  const TestCa ca;
  const auto server = Pump(ca.Issue(of_server.path()), TlsContext::Side::kServer);
  CHECK(log.CountOf("ends on") == 1);
  const absl::Time before = server->good_until();
  ca.Issue(of_server.path(), {.end = absl::Hours(5)});
  CHECK(!Meet(*server, *Pump(Token(kToken), TlsContext::Side::kClient)).server.ok());
  CHECK(log.CountOf("ends on") == 2);
  CHECK(server->good_until() > before + absl::Hours(3));
  CHECK(Pump(Token(kToken), TlsContext::Side::kServer)->good_until() == absl::InfiniteFuture());
}

TEST_CASE("files that were not right are read again, though they look unchanged") {
  const testing::TempDir of_server, of_client;
  const TestCa first, second;
  const auto server = Pump(first.Issue(of_server.path()), TlsContext::Side::kServer,
                           {.retry_after = absl::ZeroDuration()});
  const auto client = Pump(second.Issue(of_client.path()), TlsContext::Side::kClient);
  second.Issue(of_server.path());
  const std::string key = absl::StrCat(of_server.path(), "/key.pem");
  const auto right = ReadFile(key);
  REQUIRE_OK(right);
  // In place and with one date, so that only the bytes differ.
  const auto write = [&](const std::string& text) {
    const UniqueFd file(open(key.c_str(), O_WRONLY));
    REQUIRE(pwrite(file.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
    const timespec date[2] = {{1'700'000'000, 0}, {1'700'000'000, 0}};
    REQUIRE(futimens(file.get(), date) == 0);
  };
  write(std::string(right->size(), 'x'));
  CHECK(!Meet(*server, *client).server.ok());
  write(*right);
  CHECK_OK(Meet(*server, *client).server);
}

TEST_CASE("bytes that are no TLS, and an end in the handshake, are told") {
  const auto server = Pump(Token(kToken), TlsContext::Side::kServer);
  {
    Ends ends = SocketPair();
    Waiter waiter;
    server->Open(std::move(ends.server), "", waiter.Callback());
    Say(ends.client.get(), std::string("\x16\x03\x01\x00\x05hello there, this is no hello", 34));
    CHECK_STATUS(waiter.Take().status(), absl::StatusCode::kPermissionDenied, "");
  }
  Ends ends = SocketPair();
  Waiter waiter;
  server->Open(std::move(ends.server), "", waiter.Callback());
  ends.client.Reset();
  CHECK_STATUS(waiter.Take().status(), absl::StatusCode::kUnavailable, "ended");
}

absl::Status MoveArrived(TlsPipe& pipe) {
  CONVENE_RETURN_IF_ERROR(AwaitReady(pipe.socket(), POLLIN, Soon()));
  pipe.MarkReady(pipe.socket());
  return pipe.Move();
}

void LetIn(ByHand& guest, TlsPipe& pipe) {
  Thread shake("guest", [&] { guest.Shake(); });
  while (!pipe.is_open()) REQUIRE_OK(MoveArrived(pipe));
  shake.Join();
}

TEST_CASE("a guest may renew its keys, but not again and again: each time costs the daemon") {
  const auto context = TlsContext::Make(Token(kToken), TlsContext::Side::kServer);
  REQUIRE_OK(context);
  Ends ends = SocketPair();
  TlsPipe pipe(*context, TlsContext::Side::kServer, std::move(ends.server), "");
  Stranger guest(nullptr, std::move(ends.client));
  LetIn(guest, pipe);
  const UniqueFd plain = pipe.TakePlain();
  const int kind = GENERATE(SSL_KEY_UPDATE_NOT_REQUESTED, SSL_KEY_UPDATE_REQUESTED);
  const auto renew = [&](int times) {
    for (int i = 0; i < times; ++i) {
      REQUIRE(SSL_key_update(guest.tls(), kind) == 1);
      REQUIRE(SSL_do_handshake(guest.tls()) == 1);  // sends it
    }
  };
  renew(20);
  guest.Say("words");
  CHECK_OK(MoveArrived(pipe));
  CHECK(Hear(plain.get(), 5) == "words");
  renew(100);
  CHECK_STATUS(MoveArrived(pipe), absl::StatusCode::kResourceExhausted, "renewed its keys");
}

TEST_CASE("bytes behind a farewell are not read, and not waited for") {
  const auto context = TlsContext::Make(Token(kToken), TlsContext::Side::kServer);
  REQUIRE_OK(context);
  Ends ends = SocketPair();
  const int raw = ends.client.get();
  TlsPipe pipe(*context, TlsContext::Side::kServer, std::move(ends.server), "");
  Stranger guest(nullptr, std::move(ends.client));
  LetIn(guest, pipe);
  REQUIRE(SSL_shutdown(guest.tls()) == 0);  // the farewell is sent
  const UniqueFd plain = pipe.TakePlain();
  // More than the pipe keeps, and more than the socket holds.
  const std::string behind(TlsPipe::kMostKept, 'x');
  int moves = 0;
  for (; moves < 100; ++moves) {
    while (send(raw, behind.data(), behind.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
    }
    pollfd ready = {.fd = pipe.socket(), .events = POLLIN, .revents = 0};
    const bool is_told = (pipe.WantedOfSocket() & EPOLLIN) != 0 && poll(&ready, 1, 0) == 1;
    if (!is_told) break;
    pipe.MarkReady(pipe.socket());
    REQUIRE_OK(pipe.Move());
  }
  CHECK(moves < 100);
  CHECK(Hear(plain.get(), 1).empty());  // the farewell has gone on
  // The other direction goes on, too.
  Say(plain.get(), "last words");
  pipe.MarkReady(pipe.plain());
  REQUIRE_OK(pipe.Move());
  CHECK(guest.Hear() == "last words");
}

// More than the connection holds, while the other side reads nothing: the rest waits before the
// pump.
std::string SayMuch(int fd) {
  std::string said;
  const std::string piece(4096, 'w');
  while (said.size() < (8 << 20)) {
    const ssize_t count = send(fd, piece.data(), piece.size(), MSG_NOSIGNAL);
    if (count > 0) said.append(piece, 0, static_cast<size_t>(count));
    if (count < 0 && !AwaitReady(fd, POLLOUT, Clock::Real().Now() + absl::Milliseconds(200)).ok())
      break;
  }
  return said;
}

// A guest that keeps its end of the connection open.
struct StayingGuest {
  int raw = -1;  // of the guest
  UniqueFd plain;
  std::unique_ptr<Stranger> guest;

  explicit StayingGuest(TlsPump& server) {
    Ends ends = SocketPair();
    raw = ends.client.get();
    Waiter waiter;
    server.Open(std::move(ends.server), "", waiter.Callback());
    guest = std::make_unique<Stranger>(nullptr, std::move(ends.client));
    REQUIRE(guest->Shake());
    auto opened = waiter.Take();
    REQUIRE_OK(opened);
    plain = std::move(opened->plain);
  }
  // The other side has closed its end, and does not only say no more.
  bool IsEnded() const { return AwaitReady(raw, 0, Soon()).ok(); }
};

TEST_CASE("a guest that keeps its end open is ended after the farewell, whatever it takes") {
  const auto server =
      Pump(Token(kToken), TlsContext::Side::kServer, {.farewell = absl::Seconds(0)});
  {
    StayingGuest hears(*server);
    // As HTTP after its last answer: first it says no more, then it goes.
    REQUIRE(shutdown(hears.plain.get(), SHUT_WR) == 0);
    CHECK(hears.guest->Hear().empty());
    hears.plain.Reset();
    CHECK(hears.IsEnded());
  }
  StayingGuest takes_nothing(*server);
  SayMuch(takes_nothing.plain.get());
  takes_nothing.plain.Reset();
  CHECK(takes_nothing.IsEnded());
}

TEST_CASE("of too many guests that keep their end open the oldest is ended, and no member is") {
  const auto server = Pump(Token(kToken), TlsContext::Side::kServer,
                           {.farewell = absl::Hours(1), .most_farewells = 2});
  const auto context = TlsContext::Make(Token(kToken), TlsContext::Side::kClient);
  REQUIRE_OK(context);
  Ends ends = SocketPair();
  const int of_member = ends.client.get();
  Waiter waiter;
  server->Open(std::move(ends.server), "", waiter.Callback());
  MemberByHand member(*context, std::move(ends.client),
                      "\x09"
                      "convene/2");
  REQUIRE_OK(waiter.Take());  // and closed
  CHECK(member.Hear().empty());
  StayingGuest first(*server), second(*server), third(*server);
  for (StayingGuest* const each : {&first, &second, &third}) {
    each->plain.Reset();
    CHECK(each->guest->Hear().empty());
  }
  CHECK(first.IsEnded());
  for (const int each : {of_member, second.raw, third.raw}) {
    pollfd hung_up = {.fd = each, .events = 0, .revents = 0};
    CHECK(poll(&hung_up, 1, 0) == 0);
  }
}

TEST_CASE("the pump's end sends last words, and ends the other side") {
  auto server = Pump(Token(kToken), TlsContext::Side::kServer);
  Ends ends = SocketPair();
  Waiter waiter;
  server->Open(std::move(ends.server), "", waiter.Callback());
  Stranger guest(nullptr, std::move(ends.client));
  CHECK(guest.Shake());
  auto opened = waiter.Take();
  REQUIRE_OK(opened);
  const std::string words = SayMuch(opened->plain.get());
  opened->plain.Reset();
  Ends silent = SocketPair();
  Waiter of_stranger;
  server->Open(std::move(silent.server), "", of_stranger.Callback());
  Waiter behind;  // which has gone already
  server->Open(SocketPair().server, "", behind.Callback());
  CHECK_FALSE(behind.Take().ok());
  Thread end("end", [&] { server.reset(); });
  // Nothing waits for a stranger's handshake, and it waits for nobody's last words.
  CHECK_STATUS(of_stranger.Take(), absl::StatusCode::kUnavailable, "this process stops");
  std::string heard;
  for (std::string more = guest.Hear(); !more.empty(); more = guest.Hear()) heard += more;
  end.Join();
  CHECK(heard.size() == words.size());
}

}  // namespace
}  // namespace convene::rendezvous
