// The job's key-value store, served over the c10d TCPStore wire.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/store/budget.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

// Serves from the moment Start returns until it is destroyed (which closes every connection and
// joins its threads, "store0" and so on). Thread-safe.
class StoreServer {
 public:
  static constexpr size_t kBytesMaxByDefault = size_t{2} << 30;
  struct Options {
    std::string host = "0.0.0.0";  // the address to bind; this one is all, of IPv6 and IPv4
    int port = 0;                  // 0 = any free one
    // False: the server has no port of its own; all its connections come by Adopt().
    bool listen = true;
    // Connections wait for Admit().
    bool is_shut = false;
    // Of connections that wait for Admit(), and of others that have not said VALIDATE, more than
    // this end the oldest. 0: half of the files that this process may open, at most 16,384.
    size_t most_strangers = 0;
    int threads = 0;  // 0 = a quarter of the processors, at least 1 and at most 4
    // The most bytes of all that clients make the server hold (budget.h says how much of them one
    // run may hold): a request beyond them ends its connection, and the log says so. 0: a quarter
    // of the memory that this process may use, at most kBytesMaxByDefault.
    size_t bytes_max = 0;
    // The time for which a job's keys (keys with the same beginning, spaces.h) outlive its last
    // connection; they are dropped when the next client comes.
    absl::Duration forget_after = absl::InfiniteDuration();
  };
  // AlreadyExists when the port is taken (the text names it), InvalidArgument for an address that
  // is not this machine's, ResourceExhausted without descriptors or threads.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Start(const Options& options);
  virtual ~StoreServer() = default;

  // 0 when it does not listen.
  virtual int port() const = 0;

  // Serves the client of an accepted connection whose bytes were at most peeked at. Takes the
  // socket over and makes it non-blocking. Never blocks for long; works from the moment Start
  // returned.
  virtual void Adopt(UniqueFd socket) = 0;

  // From now on it serves connections from these numeric addresses, from loopback, and from the
  // address at which they reach it; it closes others, with a line in the log. None: it serves
  // everybody. Connections that were accepted before stay. REQUIRES: Options::is_shut.
  virtual void Admit(const std::vector<std::string>& addresses) = 0;

  struct Counts {
    size_t connections = 0;
    size_t waiting = 0;          // of those: in a wait or a barrier
    size_t reserved = 0;         // of those: with a queue item kept for them
    size_t keys = 0;             // with a value; queues are not among them
    Budget::Counts budget = {};  // with the runs of the most bytes, at most kRunsCounted
  };
  static constexpr size_t kRunsCounted = 32;
  // As of now.
  virtual Counts counts() const = 0;
};

}  // namespace convene::rendezvous
