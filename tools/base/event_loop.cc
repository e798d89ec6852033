#include "tools/base/event_loop.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene {
namespace {

int TimeoutMilliseconds(MonotonicTime deadline) {
  if (deadline == MonotonicTime()) return 0;
  if (deadline == MonotonicTime::InfiniteFuture()) return -1;
  const absl::Duration left = deadline - Clock::Real().Now();
  // Rounded up: waking early would mean a busy last millisecond.
  const int64_t milliseconds = absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)));
  return static_cast<int>(std::clamp<int64_t>(milliseconds, 0, 60'000));
}

}  // namespace

EventLoop::EventLoop()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), epoll_errno_(epoll_.valid() ? 0 : errno) {}

absl::Status EventLoop::Add(int fd, uint32_t events, Callback on_events) {
  if (!epoll_.valid()) return ErrnoStatus(epoll_errno_, "epoll_create");
  auto watched = std::make_unique<Watched>();
  watched->on_events = std::move(on_events);
  epoll_event event = {.events = events, .data = {.ptr = watched.get()}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoStatus(errno, "epoll_ctl");
  }
  watched_[fd] = std::move(watched);
  return absl::OkStatus();
}

void EventLoop::Watch(int fd, std::function<void()> on_ready, bool writable) {
  CONVENE_CHECK(Add(fd, writable ? EPOLLOUT : EPOLLIN, [on_ready = std::move(on_ready)](uint32_t) {
                  on_ready();
                }).ok());
}

void EventLoop::Change(int fd, uint32_t events) {
  epoll_event event = {.events = events, .data = {.ptr = watched_.at(fd).get()}};
  CONVENE_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0);
}

void EventLoop::Forget(int fd) {
  const auto found = watched_.find(fd);
  if (found == watched_.end()) return;
  CONVENE_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr) == 0);
  found->second->is_forgotten = true;
  const bool may_be_pointed_at = depth_ > 0 || next_ < ready_;
  if (may_be_pointed_at) forgotten_.push_back(std::move(found->second));
  watched_.erase(found);
}

bool EventLoop::Wait(MonotonicTime deadline) {
  const int count =
      epoll_wait(epoll_.get(), events_, kEventsPerWait, TimeoutMilliseconds(deadline));
  CONVENE_CHECK(count >= 0 || errno == EINTR);
  next_ = 0;
  ready_ = std::max(count, 0);
  return ready_ > 0;
}

void EventLoop::Serve() {
  ++depth_;
  while (next_ < ready_) {
    const epoll_event event = events_[next_++];
    Watched* const watched = static_cast<Watched*>(event.data.ptr);
    if (!watched->is_forgotten) watched->on_events(event.events);
  }
  if (--depth_ == 0) forgotten_.clear();
}

}  // namespace convene
