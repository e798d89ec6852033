// The server and the client over loopback, and the server against raw bytes.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/store/store_client.h"
#include "rendezvous/store/store_server.h"
#include "rendezvous/store/testing/raw_client.h"
#include "rendezvous/store/wire.h"
#include "tools/base/clock.h"
#include "tools/base/testing/poll.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);

class StoreFixture {
 public:
  StoreFixture() {
    StoreServer::Options options;
    options.threads = 3;  // so that most wake-ups go from one thread to another
    auto server = StoreServer::Start(options);
    REQUIRE_OK(server);
    server_ = *std::move(server);
  }

  std::unique_ptr<StoreClient> Client() const {
    auto client = StoreClient::Connect("127.0.0.1", server_->port(), kLong);
    REQUIRE_OK(client);
    return *std::move(client);
  }

  // A bare connection, for bytes that no good client sends.
  UniqueFd RawConnection() const {
    UniqueFd fd = RawSocket();
    ConnectTo(server_->port(), fd);
    return fd;
  }

  std::unique_ptr<StoreServer> server_;
};

TEST_CASE_METHOD(StoreFixture, "what one client sets another gets") {
  REQUIRE_OK(Client()->Set("key", "value"));
  CHECK(Client()->Get("key", kLong).value() == "value");
}

// glibc asks the name service in a thread of its own, where TSan's malloc crashes: tests with names
// are left out there.
#ifndef __SANITIZE_THREAD__
TEST_CASE_METHOD(StoreFixture, "localhost and both address families reach the store") {
  for (const char* host : {"localhost", "127.0.0.1", "::1"}) {
    const auto client = StoreClient::Connect(host, server_->port(), kLong);
    INFO(host);
    if (std::string(host) != "::1") REQUIRE_OK(client);  // a sandbox may have no IPv6
    if (client.ok()) CHECK((*client)->Add("n", 1).ok());
  }
}
#endif

TEST_CASE_METHOD(StoreFixture, "a value of 8 MiB travels whole and a larger one is refused") {
  const std::string value(8 << 20, 'v');
  const auto client = Client();
  REQUIRE_OK(client->Set("large", value));
  CHECK(client->Get("large", kLong).value() == value);
  CHECK_STATUS(client->Set("larger", value + "v"), absl::StatusCode::kInvalidArgument, "larger");
  CHECK_STATUS(client->Set(std::string(8192, 'k'), ""), absl::StatusCode::kInvalidArgument,
               "a key of 8192 bytes");
  CHECK(client->Add("still good", 1).value() == 1);
}

TEST_CASE_METHOD(StoreFixture, "a get waits for the key") {
  std::string got;
  const auto late_reader = Client();
  Thread reader("reader", [&] { got = late_reader->Get("late", kLong).value_or("none"); });
  const auto writer = Client();
  REQUIRE_OK(writer->Set("late", "came"));
  reader.Join();
  CHECK(got == "came");
}

TEST_CASE_METHOD(StoreFixture, "a wait that times out names the key and leaves the client usable") {
  const auto client = Client();
  for (int i = 0; i < 3; ++i) {
    CHECK_STATUS(client->Wait({"present?", "absent"}, absl::Milliseconds(5)),
                 absl::StatusCode::kDeadlineExceeded, "not set within 5ms: present?, absent");
  }
  REQUIRE_OK(client->Set("absent", ""));
  CHECK_STATUS(client->Get("present?", absl::ZeroDuration()), absl::StatusCode::kDeadlineExceeded,
               "present?");
  REQUIRE_OK(client->Set("present?", "yes"));
  CHECK(client->Get("present?", kLong).value() == "yes");
}

TEST_CASE_METHOD(StoreFixture,
                 "waits that end while they are being cancelled never mix up answers") {
  const auto waiter = Client();
  const auto writer = Client();
  int canceled = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string key = "race" + std::to_string(i);
    absl::Status set;
    Thread racer("racer", [&] { set = writer->Set(key, key); });
    const absl::Status waited = waiter->Wait({key}, absl::Microseconds(i % 60));
    racer.Join();
    REQUIRE_OK(set);
    if (!waited.ok()) {
      REQUIRE(absl::IsDeadlineExceeded(waited));
      ++canceled;
    }
    REQUIRE(waiter->Get(key, kLong).value() == key);
  }
  INFO(canceled << " of 300 were cancelled");
}

TEST_CASE_METHOD(StoreFixture, "64 clients count, meet and read each other's keys") {
  constexpr int kClients = 64;
  std::atomic<int> good = 0;
  std::vector<Thread> threads;
  for (int rank = 0; rank < kClients; ++rank) {
    threads.emplace_back("client", [&, rank] {
      // Not Client(): Catch2's assertions are for one thread at a time.
      const auto connected = StoreClient::Connect("127.0.0.1", server_->port(), kLong);
      if (!connected.ok()) return;
      StoreClient* const client = connected->get();
      if (!client->Set("rank/" + std::to_string(rank), std::to_string(rank)).ok()) return;
      for (int i = 0; i < 50; ++i) {
        if (!client->Add("counter", 1).ok()) return;
      }
      for (int peer = 0; peer < kClients; ++peer) {
        const auto value = client->Get("rank/" + std::to_string(peer), kLong);
        if (!value.ok() || *value != std::to_string(peer)) return;
      }
      ++good;
    });
  }
  for (Thread& thread : threads) thread.Join();
  CHECK(good == kClients);
  CHECK(Client()->Add("counter", 0).value() == kClients * 50);
}

TEST_CASE_METHOD(StoreFixture, "a barrier lets the clients of all threads go, round after round") {
  constexpr int kClients = 24;
  std::vector<UniqueFd> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(RawConnection());
    SendBytes(clients.back().get(), Handshake());
  }
  for (int round = 0; round < 50; ++round) {
    const std::string enter =
        Encoded({Opcode::kBarrier, {"/" + std::to_string(round)}, {}, kClients, 0});
    for (const UniqueFd& fd : clients) SendBytes(fd.get(), enter);
    for (const UniqueFd& fd : clients) REQUIRE(ReadBytes(fd.get(), 1) == std::string(1, '\0'));
  }
}

TEST_CASE_METHOD(StoreFixture, "a cancel that meets its wake-up on another thread is never first") {
  const UniqueFd waiter = RawConnection();
  const UniqueFd writer = RawConnection();
  SendBytes(waiter.get(), Handshake());
  SendBytes(writer.get(), Handshake());
  for (int i = 0; i < 2000; ++i) {
    const std::string key = "/" + std::to_string(i);
    SendBytes(waiter.get(), Encoded({Opcode::kWait, {key}, {}, 0, 0}));
    SendBytes(writer.get(), Encoded({Opcode::kSet, {key}, {""}, 0, 0}));
    // The PING tells where the answers to this round end.
    SendBytes(waiter.get(), Encoded({Opcode::kCancelWait, {}, {}, 0, 0}) +
                                Encoded({Opcode::kPing, {}, {}, 0, 0x07070707}));
    std::string answers;
    while (answers.find(std::string(4, '\7')) == std::string::npos) {
      const std::string byte = ReadBytes(waiter.get(), 1);
      REQUIRE(byte.size() == 1);
      answers += byte;
    }
    const std::string before = answers.substr(0, answers.size() - 4);
    REQUIRE((before == std::string("\1", 1) || before == std::string("\0\1", 2)));
  }
}

TEST_CASE_METHOD(StoreFixture, "a handshake cut at every byte is answered") {
  const std::string wire = Handshake() + Encoded({Opcode::kPing, {}, {}, 0, 0x1234});
  for (size_t cut = 1; cut < wire.size(); ++cut) {
    const UniqueFd fd = RawConnection();
    SendBytes(fd.get(), wire.substr(0, cut));
    // An answer on another connection proves that the server has gone round.
    CHECK(Client()->Add("turn", 1).ok());
    SendBytes(fd.get(), wire.substr(cut));
    CHECK(ReadBytes(fd.get(), 4) == std::string("\x34\x12\0\0", 4));
  }
}

TEST_CASE_METHOD(StoreFixture, "whoever breaks the protocol is closed and others are not") {
  const auto good = Client();
  for (const std::string& bad :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\0\1\2\3\4", 5),
        Encoded({Opcode::kPing, {}, {}, 0, 1}), Handshake() + std::string("\x7f"),
        Handshake() + Encoded({Opcode::kSet, {"t"}, {"text"}, 0, 0}) +
            Encoded({Opcode::kAdd, {"t"}, {}, 1, 0}),
        Handshake() + Encoded({Opcode::kWait, {"never"}, {}, 0, 0}) +
            Encoded({Opcode::kGet, {"never"}, {}, 0, 0})}) {
    const UniqueFd fd = RawConnection();
    SendBytes(fd.get(), bad);
    CHECK(ReadBytes(fd.get(), 1).empty());
  }
  CHECK(good->Add("alive", 1).value() == 1);
}

TEST_CASE_METHOD(StoreFixture, "clients that die while they wait leave nothing behind") {
  {
    std::vector<UniqueFd> dying;
    for (int i = 0; i < 30; ++i) {
      dying.push_back(RawConnection());
      SendBytes(dying.back().get(), Handshake() + Encoded({Opcode::kWait, {"/k"}, {}, 0, 0}));
    }
    CHECK(testing::PollUntil([&] { return server_->counts().waiting == 30; }, kLong));
  }
  CHECK(testing::PollUntil([&] { return server_->counts().connections == 0; }, kLong));
  CHECK(server_->counts().waiting == 0);
  const auto client = Client();
  REQUIRE_OK(client->Set("k", "v"));
  CHECK(client->Get("k", kLong).value() == "v");
}

TEST_CASE_METHOD(StoreFixture,
                 "a client that asks much and reads late is not read from, then gets all") {
  const auto writer = Client();
  const std::string value(1 << 20, 'x');
  REQUIRE_OK(writer->Set("big", value));
  REQUIRE_OK(
      writer->Wait({"big"}, kLong));  // a set has no answer: only now is it known to be there
  const UniqueFd fd = RawConnection();
  constexpr int kGets = 100;
  std::string wire = Handshake();
  for (int i = 0; i < kGets; ++i) wire += Encoded({Opcode::kGet, {"/big"}, {}, 0, 0});
  wire += Encoded({Opcode::kAdd, {"/after"}, {}, 1, 0});
  SendBytes(fd.get(), wire);
  CHECK(writer->Add("other clients go on", 1).value() == 1);
  for (int i = 0; i < kGets; ++i) {
    const std::string reply = ReadBytes(fd.get(), 8 + value.size());
    REQUIRE(reply.size() == 8 + value.size());
    REQUIRE(reply.compare(8, std::string::npos, value) == 0);
  }
  CHECK(ReadBytes(fd.get(), 8) == std::string("\1\0\0\0\0\0\0\0", 8));
}

// Both ends of a connection, as a front that peeked at it would hand one over.
struct SocketPair {
  SocketPair() {
    int fds[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    client.Reset(fds[0]);
    server.Reset(fds[1]);
    const timeval limit = {20, 0};
    setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  UniqueFd client;
  UniqueFd server;
};

TEST_CASE_METHOD(StoreFixture, "an adopted connection is served, with the bytes that came before") {
  SocketPair sockets;
  SendBytes(sockets.client.get(), Handshake() + Encoded({Opcode::kPing, {}, {}, 0, 0x1234}));
  server_->Adopt(std::move(sockets.server));
  CHECK(ReadBytes(sockets.client.get(), 4) == std::string("\x34\x12\0\0", 4));
  SendBytes(sockets.client.get(), Encoded({Opcode::kSet, {"/k"}, {"v"}, 0, 0}));
  CHECK(Client()->Get("k", kLong).value() == "v");
}

TEST_CASE("a store that does not listen lives by what it adopts, and closes that when it ends") {
  StoreServer::Options options;
  options.listen = false;
  auto server = StoreServer::Start(options);
  REQUIRE_OK(server);
  CHECK((*server)->port() == 0);
  SocketPair served;
  (*server)->Adopt(std::move(served.server));
  SendBytes(served.client.get(), Handshake() + Encoded({Opcode::kAdd, {"n"}, {}, 3, 0}));
  CHECK(ReadBytes(served.client.get(), 8) == std::string("\3\0\0\0\0\0\0\0", 8));
  SocketPair late;
  (*server)->Adopt(std::move(late.server));
  server->reset();
  CHECK(ReadBytes(served.client.get(), 1).empty());
  CHECK(ReadBytes(late.client.get(), 1).empty());
}

// A store of 32 MiB, of which large values may take 24: half of them one run's.
std::unique_ptr<StoreServer> SmallStore() {
  StoreServer::Options options;
  options.bytes_max = size_t{32} << 20;
  auto server = StoreServer::Start(options);
  REQUIRE_OK(server);
  return *std::move(server);
}

std::unique_ptr<StoreClient> ClientOf(const StoreServer& server) {
  auto client = StoreClient::Connect("127.0.0.1", server.port(), kLong);
  REQUIRE_OK(client);
  return *std::move(client);
}

TEST_CASE("clients of one run that set without end are closed, and other runs go on") {
  const auto server = SmallStore();
  const auto modest = ClientOf(*server);
  CHECK(modest->Add("modest/n", 1).value() == 1);
  for (int client = 0; client < 20; ++client) {
    const auto greedy = ClientOf(*server);
    bool is_closed = false;
    for (int i = 0; i < 200 && !is_closed; ++i) {
      // SET has no answer: the client hears of the refusal with its next request.
      is_closed =
          !greedy->Set(absl::StrCat("greedy/", client, "/", i), std::string(1 << 20, 'v')).ok() ||
          !greedy->Add(absl::StrCat("greedy/count", client), 1).ok();
    }
    CHECK(is_closed);
    CHECK(server->counts().budget.bytes <= size_t{13} << 20);
  }
  CHECK(server->counts().budget.refusals == 20);
  CHECK(server->counts().budget.largest[0].run == "/greedy");
  CHECK(ClientOf(*server)->Add("greedy/n", 1).value() == 1);  // its small keys go on, too
  CHECK(modest->Add("modest/n", 1).value() == 2);
  REQUIRE_OK(modest->Set("modest/large", std::string(4 << 20, 'v')));
  CHECK(modest->Add("modest/n", 1).value() == 3);
}

TEST_CASE("values that nobody reads keep counting after they were replaced") {
  const auto server = SmallStore();
  std::vector<UniqueFd> lazy;
  const auto writer = ClientOf(*server);
  const std::string value(5 << 20, 'v');
  const std::vector<std::string> keys(10, "/run/k");  // an answer that fits no socket
  for (int i = 0; i < 2; ++i) {
    REQUIRE_OK(writer->Set("run/k", value));
    CHECK(writer->Add("run/n", 1).value() == i + 1);
    lazy.push_back(RawSocket());
    ConnectTo(server->port(), lazy.back());
    SendBytes(lazy.back().get(), Handshake() + Encoded({Opcode::kMultiGet, keys, {}, 0, 0}));
    CHECK(ReadBytes(lazy.back().get(), 8).size() == 8);  // the answer is under way
  }
  CHECK(server->counts().budget.bytes > 2 * value.size());
  CHECK_FALSE((writer->Set("run/k", value).ok() && writer->Add("run/n", 1).ok()));
  lazy.clear();
  CHECK(testing::PollUntil([&] { return server->counts().budget.bytes < size_t{6} << 20; }, kLong));
}

TEST_CASE("answers that nobody reads count, also where they share the value") {
  const auto server = SmallStore();
  const auto writer = ClientOf(*server);
  REQUIRE_OK(writer->Set("run/k", std::string(600, 'v')));
  CHECK(writer->Add("run/n", 1).value() == 1);
  const std::vector<std::string> keys(100'000, "/run/k");
  const UniqueFd lazy = RawSocket();
  ConnectTo(server->port(), lazy);
  SendBytes(lazy.get(), Handshake() + Encoded({Opcode::kMultiGet, keys, {}, 0, 0}));
  CHECK(ReadBytes(lazy.get(), 8).size() == 8);  // the answer is under way
  // Two segments for each value that no socket has taken: its length, and itself.
  CHECK(testing::PollUntil([&] { return server->counts().budget.bytes > size_t{5} << 20; }, kLong));
  for (size_t left = keys.size() * 608 - 8; left > 0;) {
    const std::string part = ReadBytes(lazy.get(), std::min<size_t>(left, 1 << 20));
    REQUIRE_FALSE(part.empty());
    left -= part.size();
  }
  CHECK(testing::PollUntil([&] { return server->counts().budget.bytes < size_t{1} << 20; }, kLong));
}

TEST_CASE_METHOD(StoreFixture, "a client that waits for a queue and takes nothing holds no item") {
  const std::string wait = Handshake() + Encoded({Opcode::kWait, {"/q"}, {}, 0, 0});
  const UniqueFd looker = RawConnection();
  SendBytes(looker.get(), Handshake() + Encoded({Opcode::kQueuePush, {"/q"}, {"item"}, 0, 0}) +
                              Encoded({Opcode::kWait, {"/q"}, {}, 0, 0}));
  CHECK(ReadBytes(looker.get(), 1).size() == 1);
  const UniqueFd consumer = RawConnection();
  SendBytes(consumer.get(), wait);
  CHECK(ReadBytes(consumer.get(), 1).size() == 1);
  SendBytes(consumer.get(), Encoded({Opcode::kQueuePop, {"/q"}, {}, 0, 0}));
  CHECK(ReadBytes(consumer.get(), 20) == std::string("\1\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0item", 20));
}

TEST_CASE("requests that do not end count for their run, and leave room for others") {
  const auto server = SmallStore();
  const std::string begun =
      Handshake() +
      Encoded({Opcode::kSet, {"run/k"}, {std::string(4 << 20, 'v')}, 0, 0}).substr(0, 3 << 20);
  std::vector<Thread> slow;
  std::vector<UniqueFd> sockets;
  for (int i = 0; i < 10; ++i) {
    sockets.push_back(RawSocket());
    ConnectTo(server->port(), sockets.back());
  }
  for (const UniqueFd& socket : sockets) {
    auto thread = Thread::Start("slow", [&begun, fd = socket.get()] {
      size_t sent = 0;  // some are closed meanwhile
      while (sent < begun.size()) {
        const ssize_t count = send(fd, &begun[sent], begun.size() - sent, MSG_NOSIGNAL);
        if (count <= 0) return;
        sent += static_cast<size_t>(count);
      }
    });
    REQUIRE_OK(thread);
    slow.push_back(*std::move(thread));
  }
  for (Thread& thread : slow) thread.Join();
  CHECK(testing::PollUntil([&] { return server->counts().budget.refusals > 0; }, kLong));
  CHECK(server->counts().budget.bytes <= size_t{13} << 20);
  const auto client = ClientOf(*server);
  REQUIRE_OK(client->Set("other/k", std::string(4 << 20, 'v')));
  CHECK(client->Add("other/n", 1).value() == 1);
  sockets.clear();
  CHECK(testing::PollUntil([&] { return server->counts().budget.bytes < size_t{5} << 20; }, kLong));
}

TEST_CASE("keys of clients that left are dropped when the next one comes, those in use are not") {
  StoreServer::Options options;
  options.forget_after = absl::ZeroDuration();
  const auto server = StoreServer::Start(options);
  REQUIRE_OK(server);
  const auto connect = [&] {
    auto client = StoreClient::Connect("127.0.0.1", (*server)->port(), kLong);
    REQUIRE_OK(client);
    return *std::move(client);
  };
  auto over = connect();
  const auto living = connect();
  CHECK(over->Add("torch.rendezvous.over/n", 1).value() == 1);
  CHECK(living->Add("torch.rendezvous.living/n", 1).value() == 1);
  over.reset();
  CHECK(testing::PollUntil([&] { return (*server)->counts().connections == 1; }, kLong));
  CHECK((*server)->counts().keys == 2);
  const auto next = connect();
  CHECK((*server)->counts().keys == 1);
  CHECK(next->Add("torch.rendezvous.over/n", 1).value() == 1);
  CHECK(next->Add("torch.rendezvous.living/n", 1).value() == 2);
}

// No new descriptors for this process while it lives.
class NoNewDescriptors {
 public:
  NoNewDescriptors() {
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit none = {3, before_.rlim_max};  // not 0: poll() refuses more than that many
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoNewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

TEST_CASE("out of descriptors, the store serves whom it has and accepts the others later") {
  StoreServer::Options options;
  options.threads = 1;  // so that it has tried to accept before it answers the client it has
  const auto server = StoreServer::Start(options);
  REQUIRE_OK(server);
  const auto client = StoreClient::Connect("127.0.0.1", (*server)->port(), kLong);
  REQUIRE_OK(client);
  const UniqueFd late = RawSocket();
  {
    const NoNewDescriptors no_new_descriptors;
    ConnectTo((*server)->port(), late);
    SendBytes(late.get(), Handshake() + Encoded({Opcode::kPing, {}, {}, 0, 0x1234}));
    CHECK((*client)->Add("n", 1).value() == 1);
    CHECK((*server)->counts().connections == 1);
  }
  CHECK(ReadBytes(late.get(), 4) == std::string("\x34\x12\0\0", 4));
  CHECK((*client)->Add("n", 1).value() == 2);
}

TEST_CASE(
    "clients leave the process some descriptors, and the one that does not fit comes in later") {
  StoreServer::Options options;
  options.threads = 1;
  const auto server = StoreServer::Start(options);
  REQUIRE_OK(server);
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 60; ++i) clients.push_back(RawSocket());
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const auto limit = static_cast<rlim_t>(clients.back().get()) + 40;
  const rlimit few = {limit, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  const size_t taken = 39 - limit / 8;
  REQUIRE(taken < clients.size());
  for (size_t i = 0; i <= taken; ++i) {
    ConnectTo((*server)->port(), clients[i]);
    SendBytes(clients[i].get(), Handshake() + Encoded({Opcode::kPing, {}, {}, 0, 0x1234}));
  }
  CHECK(testing::PollUntil([&] { return (*server)->counts().connections == taken; }, kLong));
  {
    std::vector<UniqueFd> own;
    for (rlim_t i = 0; i + 1 < limit / 8; ++i) {  // but for the connection that is held back
      own.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
      CHECK(own.back().valid());
    }
  }
  for (size_t i = 0; i <= taken; ++i) {
    CHECK(ReadBytes(clients[i].get(), 4) == std::string("\x34\x12\0\0", 4));
    clients[i].Reset();
  }
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("a store that cannot start a thread says so, and ends those that it has") {
  const ScopedThreadFault fault("store1");
  StoreServer::Options options;
  options.threads = 3;
  CHECK_STATUS(StoreServer::Start(options).status(), absl::StatusCode::kResourceExhausted,
               "cannot start the thread \"store1\"");
}

TEST_CASE("a store for this machine alone is not there on another address") {
  StoreServer::Options options;
  options.host = "127.0.0.1";
  const auto server = StoreServer::Start(options);
  REQUIRE_OK(server);
  const auto connects_to = [&](const char* address) {
    const UniqueFd fd = RawSocket();
    sockaddr_in place = {};
    place.sin_family = AF_INET;
    place.sin_port = htons(static_cast<uint16_t>((*server)->port()));
    REQUIRE(inet_pton(AF_INET, address, &place.sin_addr) == 1);
    return connect(fd.get(), reinterpret_cast<sockaddr*>(&place), sizeof(place)) == 0;
  };
  CHECK(connects_to("127.0.0.1"));
  CHECK_FALSE(connects_to("127.0.0.2"));
}

TEST_CASE_METHOD(StoreFixture, "a taken port is named") {
  StoreServer::Options options;
  options.port = server_->port();
  CHECK_STATUS(StoreServer::Start(options), absl::StatusCode::kAlreadyExists,
               std::to_string(options.port));
}

TEST_CASE_METHOD(StoreFixture, "a server that ends takes its clients' connections with it") {
  const auto client = Client();
  CHECK_STATUS(client->Wait({"k"}, absl::ZeroDuration()), absl::StatusCode::kDeadlineExceeded, "");
  const int port = server_->port();
  server_.reset();
  CHECK_STATUS(client->Add("n", 1), absl::StatusCode::kUnavailable,
               "127.0.0.1:" + std::to_string(port));
  CHECK_STATUS(client->Set("k", "v"), absl::StatusCode::kUnavailable, "lost the store");
}

TEST_CASE("nobody at the address, and no such address, are told apart") {
  int port = 0;
  {
    auto gone = StoreServer::Start({});
    REQUIRE_OK(gone);
    port = (*gone)->port();
  }
  CHECK_STATUS(StoreClient::Connect("127.0.0.1", port, absl::Milliseconds(50)),
               absl::StatusCode::kUnavailable, "127.0.0.1:" + std::to_string(port));
#ifndef __SANITIZE_THREAD__
  CHECK_STATUS(StoreClient::Connect("no such host", 1, absl::Milliseconds(500)),
               absl::StatusCode::kInvalidArgument, "no such host");
#endif
}

}  // namespace
}  // namespace convene::rendezvous
