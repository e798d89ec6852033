// Accepts the connections that come to a listening socket.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tools/base/clock.h"
#include "tools/base/event_loop.h"
#include "tools/base/loop_timer.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

// Lives on the thread of its loop. When the process is out of descriptors or memory, the log says
// so (once in 10 s) and no connection is accepted for 100 ms: they wait in the kernel's queue. The
// last descriptors are not for connections: the process has files to open, too.
class Acceptor {
 public:
  // `on_connection` gets each connection, non-blocking and closed on exec. `whose` begins the line
  // in the log. ResourceExhausted without a descriptor to spare.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Start(
      EventLoop& loop, UniqueFd listener, std::string whose,
      std::function<void(UniqueFd)> on_connection);
  ~Acceptor();

 private:
  Acceptor(EventLoop& loop, UniqueFd listener, std::string whose,
           std::function<void(UniqueFd)> on_connection);
  void Accept();
  UniqueFd Next();
  void Pause(int error);

  EventLoop& loop_;
  const UniqueFd listener_;
  const std::string whose_;
  const std::function<void(UniqueFd)> on_connection_;
  LoopTimer pause_;
  UniqueFd held_;  // it got one of the last descriptors, and waits for another
  MonotonicTime complains_again_at_;
};

}  // namespace convene::rendezvous
