// One wait for many descriptors: epoll.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "tools/base/clock.h"
#include "tools/base/unique_fd.h"

namespace convene {

// One thread owns it and does everything on it; another may have made it before that thread began.
class EventLoop {
 public:
  // `events` as epoll_wait(2) tells them.
  using Callback = std::function<void(uint32_t events)>;

  // Without a descriptor to spare each Add fails and says so.
  EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Calls `on_events` whenever `fd` has one of `events` (EPOLLIN, EPOLLOUT and so on, 0 for none),
  // an error or a hang-up, as long as that lasts (level-triggered unless EPOLLET is among them).
  // Errors are the system's own, ResourceExhausted above all. REQUIRES: `fd` is open, pollable and
  // not watched.
  absl::Status Add(int fd, uint32_t events, Callback on_events);
  // The same for a process that cannot go on without: failure is a CHECK.
  void Watch(int fd, std::function<void()> on_ready, bool writable = false);
  // From now on waits for these. REQUIRES: `fd` is watched.
  void Change(int fd, uint32_t events);
  // Allowed within callbacks, also for the descriptor at hand: it is not called again, not even in
  // the round at hand. Call before closing the descriptor; one not watched is fine.
  void Forget(int fd);

  // Waits until something is ready or `deadline` has come (a minute at most, unless that is
  // InfiniteFuture), then calls the callbacks of what is ready, each at most once. Allowed within a
  // callback, too.
  void RunOnce(MonotonicTime deadline) {
    if (Wait(deadline)) Serve();
  }
  // RunOnce in two, for a thread that measures between them. Wait is true when something is ready;
  // a deadline of MonotonicTime() looks and does not wait. Serve comes next.
  bool Wait(MonotonicTime deadline);
  void Serve();

 private:
  struct Watched {
    Callback on_events;
    bool is_forgotten = false;
  };
  static constexpr int kEventsPerWait = 256;

  UniqueFd epoll_;
  int epoll_errno_ = 0;
  std::unordered_map<int, std::unique_ptr<Watched>> watched_;
  // Of the round at hand. A round within a callback takes the place of the rest of the outer one;
  // what is still ready then comes again.
  epoll_event events_[kEventsPerWait];
  int next_ = 0;
  int ready_ = 0;
  int depth_ = 0;                                    // of Serve within Serve
  std::vector<std::unique_ptr<Watched>> forgotten_;  // events or callers may still point at them
};

}  // namespace convene
