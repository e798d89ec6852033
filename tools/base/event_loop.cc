#include "tools/base/event_loop.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tools/base/check.h"

namespace convene {
namespace {

int TimeoutMilliseconds(MonotonicTime deadline) {
  if (deadline == MonotonicTime::InfiniteFuture()) return -1;
  const absl::Duration left = deadline - Clock::Real().Now();
  // Rounded up: waking early would mean a busy last millisecond.
  const int64_t milliseconds = absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)));
  return static_cast<int>(std::clamp<int64_t>(milliseconds, 0, 60'000));
}

}  // namespace

EventLoop::EventLoop() : epoll_(epoll_create1(EPOLL_CLOEXEC)) { CONVENE_CHECK(epoll_.valid()); }

void EventLoop::Watch(int fd, Callback on_ready, bool writable) {
  const uint64_t id = next_id_++;
  epoll_event event = {};
  event.events = writable ? EPOLLOUT : EPOLLIN;
  event.data.u64 = id;
  CONVENE_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0);
  watched_[fd] = Watched{id, std::move(on_ready)};
  fd_of_id_[id] = fd;
}

void EventLoop::Forget(int fd) {
  const auto found = watched_.find(fd);
  if (found == watched_.end()) return;
  fd_of_id_.erase(found->second.id);
  watched_.erase(found);
  CONVENE_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr) == 0);
}

void EventLoop::RunOnce(MonotonicTime deadline) {
  epoll_event events[64];
  const int count = epoll_wait(epoll_.get(), events, 64, TimeoutMilliseconds(deadline));
  if (count < 0) {
    CONVENE_CHECK(errno == EINTR);
    return;
  }
  for (int i = 0; i < count; ++i) {
    const uint64_t id = events[i].data.u64;  // A copy: the struct is packed.
    const auto found = fd_of_id_.find(id);
    if (found == fd_of_id_.end()) continue;
    const Callback on_ready = watched_[found->second].on_ready;  // A copy: it may Forget itself.
    on_ready();
  }
}

}  // namespace convene
