// The agent's one wait: epoll over descriptors.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>

#include "tools/base/clock.h"
#include "tools/base/unique_fd.h"

namespace convene {

// One thread owns it and does everything on it.
class EventLoop {
 public:
  using Callback = std::function<void()>;

  EventLoop();

  // Calls `on_ready` whenever `fd` is readable (`writable`: writable), or has an error or hang-up,
  // as long as that lasts (level-triggered). REQUIRES: `fd` is open, pollable and not watched.
  void Watch(int fd, Callback on_ready, bool writable = false);
  // Allowed within callbacks, also for the descriptor at hand. Call before closing the descriptor;
  // one not watched is fine.
  void Forget(int fd);

  // Waits until something is ready or `deadline` has come, then calls the callbacks of what is
  // ready, each at most once.
  void RunOnce(MonotonicTime deadline);

 private:
  struct Watched {
    uint64_t id = 0;
    Callback on_ready;
  };

  UniqueFd epoll_;
  uint64_t next_id_ = 1;
  std::unordered_map<int, Watched> watched_;
  std::unordered_map<uint64_t, int>
      fd_of_id_;  // what Forget took away within a round is not called in it
};

}  // namespace convene
