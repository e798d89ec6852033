// Whole conversations, without sockets: bytes in, bytes out, for several connections to one table.
#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/net/send_queue.h"
#include "rendezvous/store/conversation.h"
#include "rendezvous/store/table.h"
#include "rendezvous/store/wire.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

std::string Encoded(const Request& request) {
  std::string wire;
  EncodeRequest(request, &wire);
  return wire;
}

std::string Validate() { return Encoded({Opcode::kValidate, {}, {}, 0, kValidateMagic}); }
std::string Set(const std::string& key) { return Encoded({Opcode::kSet, {key}, {"v"}, 0, 0}); }
std::string Push(const std::string& key, const std::string& item) {
  return Encoded({Opcode::kQueuePush, {key}, {item}, 0, 0});
}
std::string Pop(const std::string& key) { return Encoded({Opcode::kQueuePop, {key}, {}, 0, 0}); }
std::string Wait(const std::vector<std::string>& keys) {
  return Encoded({Opcode::kWait, keys, {}, 0, 0});
}
std::string Cancel() { return Encoded({Opcode::kCancelWait, {}, {}, 0, 0}); }
std::string Barrier(const std::string& key, int64_t world_size) {
  return Encoded({Opcode::kBarrier, {key}, {}, world_size, 0});
}
// The answer to QUEUE_POP.
std::string Popped(char length_before, const std::string& item) {
  return absl::StrCat(std::string(1, length_before), std::string(7, '\0'),
                      std::string(1, static_cast<char>(item.size())), std::string(7, '\0'), item);
}
const std::string kGo(1, '\0');
const std::string kCanceled(1, '\1');

// A server without sockets: its answers to each connection are kept until the test reads them.
class Host {
 public:
  // Feeds bytes of connection `id`, which is validated if it is new. Not OK: it was closed.
  absl::Status Feed(ConnectionId id, absl::string_view bytes) {
    Peer& peer = PeerOf(id);
    while (!bytes.empty()) {
      const auto complete = peer.parser.Next(&bytes);
      if (!complete.ok()) return Leave(id, complete.status());
      if (!*complete) break;
      const absl::Status answered =
          Answer(peer.parser.request(), &peer.conversation, &table, &peer.send_queue, &woken_);
      Wake();
      if (!answered.ok()) return Leave(id, answered);
    }
    return absl::OkStatus();
  }

  // The bytes sent to `id` since the last call.
  std::string Said(ConnectionId id) {
    SendQueue& send_queue = PeerOf(id).send_queue;
    std::string bytes;
    while (!send_queue.empty()) {
      iovec vector;
      REQUIRE(send_queue.Peek(&vector, 1) == 1);
      bytes.append(static_cast<const char*>(vector.iov_base), vector.iov_len);
      send_queue.Consume(vector.iov_len);
    }
    return bytes;
  }

  std::string Ask(ConnectionId id, absl::string_view bytes) {
    REQUIRE_OK(Feed(id, bytes));
    return Said(id);
  }

  absl::Status Leave(ConnectionId id, const absl::Status& why) {
    Depart(peers_.at(id).conversation, &table, &woken_);
    peers_.erase(id);
    Wake();
    return why;
  }

  void ExpectNoTraceOfConnections() const {
    CHECK(table.waiting() == 0);
    CHECK(table.lines() == 0);
    CHECK(table.reserved() == 0);
  }

  Table table;

 private:
  struct Peer {
    Conversation conversation;
    RequestParser parser;
    SendQueue send_queue;
  };

  Peer& PeerOf(ConnectionId id) {
    Peer& peer = peers_[id];
    if (peer.conversation.id == 0) peer.conversation = {id, true};
    return peer;
  }

  void Wake() {
    for (const ConnectionId id : woken_) {
      REQUIRE(peers_.count(id) == 1);
      AnswerWoken(&peers_[id].send_queue);
    }
    woken_.clear();
  }

  std::map<ConnectionId, Peer> peers_;
  Table::Woken woken_;
};

// A request of each opcode against the table of Prepare().
std::vector<Request> OneOfEach() {
  return {{Opcode::kValidate, {}, {}, 0, kValidateMagic},
          {Opcode::kSet, {"/new"}, {"value"}, 0, 0},
          {Opcode::kCompareSet, {"/k"}, {"v", "w"}, 0, 0},
          {Opcode::kGet, {"/k"}, {}, 0, 0},
          {Opcode::kAdd, {"/n"}, {}, -3, 0},
          {Opcode::kCheck, {"/k", "/none"}, {}, 0, 0},
          {Opcode::kWait, {"/k", "/n"}, {}, 0, 0},
          {Opcode::kGetNumKeys, {}, {}, 0, 0},
          {Opcode::kDeleteKey, {"/k"}, {}, 0, 0},
          {Opcode::kAppend, {"/k"}, {"tail"}, 0, 0},
          {Opcode::kMultiGet, {"/n", "/k", ""}, {}, 0, 0},
          {Opcode::kMultiSet, {"/a", "/b"}, {"1", ""}, 0, 0},
          {Opcode::kCancelWait, {}, {}, 0, 0},
          {Opcode::kPing, {}, {}, 0, 0x12345678},
          {Opcode::kQueuePush, {"/q"}, {"item"}, 0, 0},
          {Opcode::kQueuePop, {"/q"}, {}, 0, 0},
          {Opcode::kQueueLen, {"/q"}, {}, 0, 0},
          {Opcode::kListKeys, {}, {}, 0, 0},
          {Opcode::kBarrier, {"/bar"}, {}, 1, 0},
          // The requests that must wait.
          {Opcode::kWait, {"/never"}, {}, 0, 0},
          {Opcode::kBarrier, {"/two"}, {}, 2, 0}};
}

// LIST_KEYS has no order.
std::string Sorted(std::string bytes) {
  std::sort(bytes.begin(), bytes.end());
  return bytes;
}

void Prepare(Host* host) {
  REQUIRE_OK(host->Feed(1, Set("/k")));
  REQUIRE_OK(host->Feed(1, Encoded({Opcode::kSet, {"/n"}, {"10"}, 0, 0})));
  REQUIRE_OK(host->Feed(1, Push("/q", "first")));
}

TEST_CASE("every request cut at every byte gets the answer of the whole one") {
  for (const Request& request : OneOfEach()) {
    const std::string wire = Encoded(request);
    Host whole;
    Prepare(&whole);
    const std::string answer = whole.Ask(1, wire);
    const auto state = whole.table.budget().bytes();
    for (size_t cut = 1; cut < wire.size(); ++cut) {
      INFO(OpcodeName(request.opcode) << " cut at " << cut);
      Host host;
      Prepare(&host);
      REQUIRE(host.Ask(1, wire.substr(0, cut)).empty());
      CHECK(host.Ask(1, wire.substr(cut)) == answer);
      CHECK(host.table.budget().bytes() == state);
    }
  }
}

TEST_CASE("all pairs of requests in one piece get the answers of one after the other") {
  for (const Request& first : OneOfEach()) {
    for (const Request& second : OneOfEach()) {
      INFO(OpcodeName(first.opcode) << ", " << OpcodeName(second.opcode));
      Host apart;
      Prepare(&apart);
      std::string answer = apart.Ask(1, Encoded(first));
      const absl::Status status = apart.Feed(1, Encoded(second));
      if (status.ok()) answer += apart.Said(1);
      Host together;
      Prepare(&together);
      CHECK(together.Feed(1, Encoded(first) + Encoded(second)) == status);
      if (status.ok()) CHECK(Sorted(together.Said(1)) == Sorted(answer));
      CHECK(together.table.budget().bytes() == apart.table.budget().bytes());
      CHECK(together.table.waiting() == apart.table.waiting());
    }
  }
}

TEST_CASE("a wake-up that crosses a cancel comes first, and each cancel has one answer") {
  Host host;
  CHECK(host.Ask(1, Wait({"/k"})).empty());
  REQUIRE_OK(host.Feed(2, Set("/k")));
  CHECK(host.Ask(1, Cancel()) == kGo + kCanceled);
  CHECK(host.Ask(1, Wait({"/other"}) + Cancel()) == kCanceled);
  REQUIRE_OK(host.Feed(2, Set("/other")));
  CHECK(host.Said(1).empty());
  CHECK(host.Ask(1, Wait({"/third"}) + Cancel() + Wait({"/third"})) == kCanceled);
  REQUIRE_OK(host.Feed(2, Set("/third")));
  CHECK(host.Said(1) == kGo);
  CHECK(host.Ask(1, Cancel() + Cancel()) == kCanceled + kCanceled);
}

TEST_CASE("whoever leaves while it waits leaves no trace") {
  const absl::Status gone = absl::CancelledError();
  Host host;
  for (const std::string& bytes :
       {Wait({"/a"}), Wait({"/a", "/b", "/a"}), Barrier("/bar", 9), Wait({"/a"}).substr(0, 12),
        Push("/q", "i") + Wait({"/q"}), Wait({"/a", "/b"}) + Set("/b")}) {
    REQUIRE_OK(host.Feed(7, bytes));
    CHECK(host.Leave(7, gone) == gone);
    host.ExpectNoTraceOfConnections();
  }
}

TEST_CASE("after any disorder no connection leaves a trace and no byte is lost count of") {
  const std::vector<std::string> keys = {"/a", "/b", "/c", "/q"};
  for (unsigned seed = 1; seed <= 15; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    Host host;
    const auto any_key = [&] { return keys[random() % keys.size()]; };
    for (int i = 0; i < 2000; ++i) {
      const ConnectionId id = 1 + random() % 12;
      // The wait or barrier may be over or not: only a cancel and writes are always in turn.
      switch (random() % 9) {
        case 0:
          (void)host.Feed(id, Wait({any_key()}));
          break;
        case 1:
          (void)host.Feed(id, Wait({any_key(), any_key()}));
          break;
        case 2:
          (void)host.Feed(id, Barrier(any_key(), 1 + random() % 5));
          break;
        case 3:
          (void)host.Feed(id, Push("/q", "item"));
          break;
        case 4:
          (void)host.Feed(id, Pop("/q"));
          break;
        case 5:
          (void)host.Feed(id, Encoded({Opcode::kDeleteKey, {any_key()}, {}, 0, 0}));
          break;
        case 6:
          (void)host.Feed(id, Set(any_key()));
          break;
        case 7:
          (void)host.Feed(id, Cancel());
          break;
        default:
          REQUIRE_OK(host.Feed(id, ""));
          (void)host.Leave(id, absl::OkStatus());
      }
    }
    for (ConnectionId id = 1; id <= 12; ++id) {
      REQUIRE_OK(host.Feed(id, ""));
      (void)host.Leave(id, absl::OkStatus());
    }
    host.ExpectNoTraceOfConnections();
    const std::vector<absl::string_view> keys = host.table.Keys();
    for (const std::string& key : std::vector<std::string>(keys.begin(), keys.end())) {
      host.table.Delete(key);
    }
    while (host.Ask(99, Pop("/q")).size() > 8) continue;
    CHECK(host.table.budget().bytes() == 0);
  }
}

// Faults of PyTorch's own server (shared/reference/c10d_tcpstore.md, 3.7), in that order.

TEST_CASE("upstream 1: a VALIDATE in pieces is one VALIDATE") {
  const std::string wire = Validate();
  for (size_t cut = 1; cut < wire.size(); ++cut) {
    RequestParser parser;
    absl::string_view head = absl::string_view(wire).substr(0, cut);
    absl::string_view tail = absl::string_view(wire).substr(cut);
    CHECK_FALSE(parser.Next(&head).value());
    CHECK(parser.Next(&tail).value());
    CHECK(parser.request().word == kValidateMagic);
  }
}

TEST_CASE("upstream 2: a bad magic ends the connection at once") {
  CHECK_STATUS(Host().Feed(1, Encoded({Opcode::kValidate, {}, {}, 0, 1})),
               absl::StatusCode::kInvalidArgument, "magic");
}

TEST_CASE("upstream 3: a compare-set wakes when it creates the key and only then") {
  Host host;
  CHECK(host.Ask(1, Wait({"/k"})).empty());
  REQUIRE_OK(host.Feed(2, Encoded({Opcode::kCompareSet, {"/k"}, {"token", "v"}, 0, 0})));
  CHECK(host.Said(1).empty());
  REQUIRE_OK(host.Feed(2, Encoded({Opcode::kCompareSet, {"/k"}, {"", "v"}, 0, 0})));
  CHECK(host.Said(1) == kGo);
}

TEST_CASE("upstream 4: a woken consumer is out of the line, and the next item goes to the next") {
  Host host;
  CHECK(host.Ask(1, Wait({"/q"})).empty());
  CHECK(host.Ask(2, Wait({"/q"})).empty());
  REQUIRE_OK(host.Feed(3, Push("/q", "a")));
  CHECK(host.Said(1) == kGo);
  CHECK(host.Ask(1, Pop("/q")) == Popped(1, "a"));
  REQUIRE_OK(host.Feed(3, Push("/q", "b")));
  CHECK(host.Said(1).empty());
  CHECK(host.Said(2) == kGo);
  CHECK(host.Ask(2, Pop("/q")) == Popped(1, "b"));
  CHECK(host.table.lines() == 0);
}

TEST_CASE("upstream 5: of two blocking pops and one item, one gets it and the other waits") {
  Host host;
  REQUIRE_OK(host.Feed(3, Push("/q", "a")));
  CHECK(host.Ask(1, Wait({"/q"})) == kGo);
  CHECK(host.Ask(2, Wait({"/q"})).empty());
  CHECK(host.Ask(1, Pop("/q")) == Popped(1, "a"));
  CHECK(host.Said(2).empty());
  REQUIRE_OK(host.Feed(3, Push("/q", "b")));
  CHECK(host.Said(2) == kGo);
  CHECK(host.Ask(2, Pop("/q")) == Popped(1, "b"));
}

// 6, that a disconnect costs a scan of all waiting keys, is in table_test.cc ("leaving costs ...").

TEST_CASE("upstream 7: a queue counts as its key in a wait for several, at its start and later") {
  Host host;
  REQUIRE_OK(host.Feed(9, Push("/q", "a")));
  CHECK(host.Ask(1, Wait({"/q", "/k"})).empty());
  CHECK(host.Ask(2, Wait({"/late", "/k"})).empty());
  REQUIRE_OK(host.Feed(9, Set("/k")));
  CHECK(host.Said(1) == kGo);
  CHECK(host.Said(2).empty());
  REQUIRE_OK(host.Feed(9, Push("/late", "a")));
  CHECK(host.Said(2) == kGo);
}

TEST_CASE("upstream 8: a large MULTI_GET costs pointers and not bytes") {
  Host host;
  Table::Woken woken;
  REQUIRE_OK(host.table.Set("/large", std::string(1 << 20, 'x'), &woken));
  const Value value = host.table.Get("/large");
  REQUIRE_OK(host.Feed(
      1, Encoded({Opcode::kMultiGet, std::vector<std::string>(1000, "/large"), {}, 0, 0})));
  CHECK(value.use_count() == 1000 + 2);  // the table's and ours
}

TEST_CASE("a request of as many keys as are allowed is taken") {
  Host host;
  const std::vector<std::string> keys(kKeysPerRequestMax, "/k");
  CHECK(host.Ask(1, Wait(keys)).empty());
  REQUIRE_OK(host.Feed(2, Set("/k")));
  CHECK(host.Said(1) == kGo);
  host.ExpectNoTraceOfConnections();
}

}  // namespace
}  // namespace convene::rendezvous
