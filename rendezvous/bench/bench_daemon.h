// A rendezvous daemon in a process of its own, so that a benchmark measures its cost alone.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/client/endpoint.h"
#include "rendezvous/lock/credentials.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

inline constexpr char kBenchDaemonFlag[] = "--as-daemon";

class BenchDaemon {
 public:
  struct Usage {
    absl::Duration cpu;  // user and system, all threads
    int64_t resident_bytes = 0;
  };

  // Starts this program once more, with kBenchDaemonFlag first: its main must call Serve() then.
  // `under`: the words of a tool to run it under, such as {"valgrind", "--tool=callgrind"}; it must
  // keep its standard output to itself. The token of a benchmark is no secret: it is a word, too.
  static absl::StatusOr<std::unique_ptr<BenchDaemon>> Start(std::vector<std::string> under,
                                                            const Credentials& credentials);
  // Ends it.
  ~BenchDaemon();

  // Where agents of the benchmark reach it.
  const Endpoint& endpoint() const { return endpoint_; }
  Usage usage() const;
  pid_t pid() const { return pid_; }

  // Runs in the started program, with its words: serves until its starter is gone; returns the
  // program's exit code.
  static int Serve(char** words);

 private:
  BenchDaemon() : endpoint_("") {}

  pid_t pid_ = -1;
  Endpoint endpoint_;
  UniqueFd leash_;  // the daemon ends when it is closed
};

}  // namespace convene::rendezvous
