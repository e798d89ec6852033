// Load for a TCPStore server, ours or PyTorch's: many connections from few threads, so that the
// server, not the clients, is measured. tests/bench/store_bench.py drives it.
//
// Each connection does what PyTorch's client does, one operation after another:
//   get   WAIT, its answer, GET, its answer      add    ADD, its answer
//   wait  WAIT for a key that is there           set    16 SETs, each sent by itself, and one PING
//   barrier  BARRIER on one key by all connections; the operation is the whole barrier
// With --depth N an exchange is N requests in one send, and their N answers (SETs: one PING's):
// then the server, not the kernel, takes the time. No PyTorch client does that. Prints one line of
// JSON.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/net/connect.h"
#include "rendezvous/net/resolve.h"
#include "rendezvous/store/wire.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/environment.h"
#include "tools/base/flag_reader.h"
#include "tools/base/resource_limits.h"
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

constexpr int kSetsPerCycle = 16;
constexpr absl::Duration kPatience = absl::Seconds(60);

struct Options {
  int port = 0;
  std::string workload = "add";
  int clients = 64;
  int threads = 1;
  double seconds = 1;
  int barriers = 5;
  int value_bytes = 128;  // an ncclUniqueId
  int depth = 1;          // requests in one send
};

// The bytes to send, and the number of bytes to await before the next exchange.
struct Exchange {
  std::vector<std::string> sends;
  size_t reply_bytes = 0;
};

std::string Encoded(const Request& request) {
  std::string wire;
  EncodeRequest(request, &wire);
  return wire;
}

Exchange Validation() {
  return {{Encoded({Opcode::kValidate, {}, {}, 0, kValidateMagic}) +
           Encoded({Opcode::kPing, {}, {}, 0, 1})},
          4};
}

// `depth` of the same request at once.
Exchange Together(const Options& options, const Request& request, size_t reply_bytes) {
  Exchange exchange;
  exchange.sends.emplace_back();
  for (int i = 0; i < options.depth; ++i) EncodeRequest(request, &exchange.sends[0]);
  exchange.reply_bytes = reply_bytes * static_cast<size_t>(options.depth);
  return exchange;
}

size_t OperationsPerCycle(const Options& options) {
  if (options.depth > 1) return static_cast<size_t>(options.depth);
  return options.workload == "set" ? kSetsPerCycle : 1;
}

// One cycle of `client`. The key is there already.
std::vector<Exchange> CycleOf(const Options& options, int client) {
  const std::string key = absl::StrCat("/bench/", client);
  const size_t value_bytes = static_cast<size_t>(options.value_bytes);
  const Exchange wait = Together(options, {Opcode::kWait, {key}, {}, 0, 0}, 1);
  if (options.workload == "get") {
    return {wait, Together(options, {Opcode::kGet, {key}, {}, 0, 0}, 8 + value_bytes)};
  }
  if (options.workload == "wait") return {wait};
  if (options.workload == "add") {
    return {Together(options, {Opcode::kAdd, {absl::StrCat("/bench/n", client)}, {}, 1, 0}, 8)};
  }
  const Request set = {Opcode::kSet, {key}, {std::string(value_bytes, 'v')}, 0, 0};
  const std::string ping = Encoded({Opcode::kPing, {}, {}, 0, 1});
  Exchange sets;
  if (options.depth > 1) {
    sets = Together(options, set, 0);
    sets.sends[0] += ping;
  } else {
    sets.sends.assign(kSetsPerCycle, Encoded(set));
    sets.sends.push_back(ping);
  }
  sets.reply_bytes = 4;
  return {sets};
}

struct Client {
  UniqueFd fd;
  std::vector<Exchange> cycle;
  size_t exchange = 0;
  size_t received_bytes = 0;
  MonotonicTime began = {};
};

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "store_bench: %s\n", what.c_str());
  std::_Exit(1);
}

void SendExchange(const Client& client, const Exchange& exchange) {
  for (const std::string& bytes : exchange.sends) {
    if (send(client.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(bytes.size())) {
      Fail(absl::StrCat("the server took only a part of a request, errno ", errno));
    }
  }
}

// Waits for `size` bytes and drops them.
void Await(const Client& client, size_t size) {
  char buffer[4096];
  while (size > 0) {
    const absl::Status ready =
        AwaitReady(client.fd.get(), EPOLLIN, Clock::Real().Now() + kPatience);
    if (!ready.ok()) Fail(ready.ToString());
    const ssize_t count = recv(client.fd.get(), buffer, std::min(size, sizeof(buffer)), 0);
    if (count == 0) Fail("the server closed a connection");
    if (count > 0) size -= static_cast<size_t>(count);
  }
}

// Connects all; each is validated, and its key is there.
std::vector<Client> Connect(const Options& options) {
  const auto addresses = ResolveHost("127.0.0.1", kPatience, options.port);
  if (!addresses.ok()) Fail(addresses.status().ToString());
  std::vector<Client> clients(static_cast<size_t>(options.clients));
  for (size_t i = 0; i < clients.size(); ++i) {
    auto fd = ConnectTo(addresses->front(), Clock::Real().Now() + kPatience);
    if (!fd.ok()) Fail(fd.status().ToString());
    clients[i].fd = *std::move(fd);
    Exchange first = Validation();
    first.sends.push_back(Encoded({Opcode::kSet,
                                   {absl::StrCat("/bench/", i)},
                                   {std::string(static_cast<size_t>(options.value_bytes), 'v')},
                                   0,
                                   0}));
    SendExchange(clients[i], first);
    Await(clients[i], first.reply_bytes);
    clients[i].cycle = CycleOf(options, static_cast<int>(i));
  }
  return clients;
}

class Driver {
 public:
  // Cycles of `clients`, each as often as it gets to, until `deadline`.
  Driver(Client* clients, size_t count, MonotonicTime deadline)
      : clients_(clients), count_(count), deadline_(deadline), epoll_(epoll_create1(0)) {
    for (size_t i = 0; i < count; ++i) {
      epoll_event event = {};
      event.events = EPOLLIN;
      event.data.u64 = i;
      CONVENE_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, clients[i].fd.get(), &event) == 0);
    }
  }

  void Run() {
    MonotonicTime now = Clock::Real().Now();
    for (size_t i = 0; i < count_; ++i) BeginCycle(&clients_[i], now);
    epoll_event events[256];
    while (busy_ > 0) {
      const int ready = epoll_wait(epoll_.get(), events, 256, 60000);
      if (ready == 0) Fail("no answer within a minute");
      now = Clock::Real().Now();
      for (int i = 0; i < ready; ++i) {
        const uint64_t client = events[i].data.u64;  // A copy: the struct is packed.
        Receive(&clients_[client], now);
      }
    }
  }

  std::vector<double> cycle_us;

 private:
  void BeginCycle(Client* client, MonotonicTime now) {
    client->began = now;
    client->exchange = 0;
    SendExchange(*client, client->cycle[0]);
    ++busy_;
  }

  void Receive(Client* client, MonotonicTime now) {
    char buffer[16384];
    const ssize_t count = recv(client->fd.get(), buffer, sizeof(buffer), 0);
    if (count == 0) Fail("the server closed a connection");
    if (count < 0) return;
    client->received_bytes += static_cast<size_t>(count);
    if (client->received_bytes < client->cycle[client->exchange].reply_bytes) return;
    client->received_bytes = 0;
    if (++client->exchange < client->cycle.size()) {
      return SendExchange(*client, client->cycle[client->exchange]);
    }
    cycle_us.push_back(absl::ToDoubleMicroseconds(now - client->began));
    --busy_;
    if (now < deadline_) BeginCycle(client, now);
  }

  Client* const clients_;
  const size_t count_;
  const MonotonicTime deadline_;
  UniqueFd epoll_;
  size_t busy_ = 0;
};

double Percentile(std::vector<double>* samples, double fraction) {
  if (samples->empty()) return 0;
  const auto at = samples->begin() +
                  static_cast<ptrdiff_t>(fraction * static_cast<double>(samples->size() - 1));
  std::nth_element(samples->begin(), at, samples->end());
  return *at;
}

void Report(const Options& options, double seconds, size_t operations,
            std::vector<double> samples_us) {
  std::printf(
      "{\"workload\": \"%s\", \"clients\": %d, \"operations\": %zu, \"seconds\": %.6f, "
      "\"p50_us\": %.2f, \"p99_us\": %.2f}\n",
      options.workload.c_str(), options.clients, operations, seconds, Percentile(&samples_us, 0.5),
      Percentile(&samples_us, 0.99));
}

void RunCycles(const Options& options, std::vector<Client> clients) {
  const MonotonicTime begin = Clock::Real().Now();
  const MonotonicTime deadline = begin + absl::Seconds(options.seconds);
  const size_t threads = std::min(static_cast<size_t>(options.threads), clients.size());
  std::vector<Driver> drivers;
  drivers.reserve(threads);
  for (size_t i = 0; i < threads; ++i) {
    const size_t first = clients.size() * i / threads;
    drivers.emplace_back(&clients[first], clients.size() * (i + 1) / threads - first, deadline);
  }
  std::vector<Thread> running;
  for (Driver& driver : drivers) running.emplace_back("load", [&driver] { driver.Run(); });
  for (Thread& thread : running) thread.Join();
  const double seconds = absl::ToDoubleSeconds(Clock::Real().Now() - begin);
  std::vector<double> samples;
  for (const Driver& driver : drivers) {
    samples.insert(samples.end(), driver.cycle_us.begin(), driver.cycle_us.end());
  }
  Report(options, seconds, samples.size() * OperationsPerCycle(options), samples);
}

void RunBarriers(const Options& options, std::vector<Client> clients) {
  std::vector<double> samples;
  const MonotonicTime begin = Clock::Real().Now();
  for (int round = 0; round < options.barriers; ++round) {
    const std::string key =
        absl::StrCat("/barrier/", absl::ToInt64Nanoseconds(begin.since_epoch()), "/", round);
    const Exchange enter = {{Encoded({Opcode::kBarrier, {key}, {}, options.clients, 0})}, 1};
    for (Client& client : clients) client.cycle = {enter};
    Driver driver(clients.data(), clients.size(), begin);  // long past: one cycle each
    const MonotonicTime entered = Clock::Real().Now();
    driver.Run();
    samples.push_back(absl::ToDoubleMicroseconds(Clock::Real().Now() - entered));
  }
  Report(options, absl::ToDoubleSeconds(Clock::Real().Now() - begin), samples.size(), samples);
}

int Main(int argc, char** argv) {
  Options options;
  FlagReader reader("store_bench", "Load for a TCPStore server on this machine.");
  reader.Option("port", &options.port, "the server's", {.least = 1, .most = 65535});
  reader.Option("workload", &options.workload, "the kind of request",
                {.choices = {"get", "set", "add", "wait", "barrier"}});
  reader.Option("clients", &options.clients, "connections", {.least = 1, .most = 100000});
  reader.Option("threads", &options.threads, "of the clients", {.least = 1, .most = 256});
  reader.Option("seconds", &options.seconds, "how long", {.least = 0.01, .most = 3600});
  reader.Option("barriers", &options.barriers, "how many", {.least = 1, .most = 100000});
  reader.Option("value-bytes", &options.value_bytes, "of a value", {.least = 0, .most = 65536});
  reader.Option("depth", &options.depth, "requests in one send", {.least = 1, .most = 256});
  const auto text = reader.Read({argv + 1, argv + argc}, ProcessEnvironment());
  if (!text.ok()) Fail(std::string(text.status().message()));
  if (text->has_value()) {
    std::fputs((*text)->c_str(), stdout);
    return 0;
  }
  if (options.port == 0) Fail("which server? --port PORT");
  const absl::Status files = EnsureOpenFiles(options.clients + 64, options.clients + 64);
  if (!files.ok()) Fail(files.ToString());
  std::vector<Client> clients = Connect(options);
  if (options.workload == "barrier") {
    RunBarriers(options, std::move(clients));
  } else {
    RunCycles(options, std::move(clients));
  }
  return 0;
}

}  // namespace
}  // namespace convene::rendezvous

int main(int argc, char** argv) { return convene::rendezvous::Main(argc, argv); }
