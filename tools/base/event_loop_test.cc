#include "tools/base/event_loop.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tools/base/doorbell.h"
#include "tools/base/loop_timer.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"

namespace convene {
namespace {

MonotonicTime Patience() { return Clock::Real().Now() + absl::Seconds(20); }

struct Ends {
  Ends() {
    int fds[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    ours.Reset(fds[0]);
    theirs.Reset(fds[1]);
  }
  void Say() const { REQUIRE(write(theirs.get(), "x", 1) == 1); }

  UniqueFd ours, theirs;
};

TEST_CASE("a descriptor that a callback forgets is not called any more, not even in its round") {
  EventLoop loop;
  const Ends ends[2];
  int calls = 0;
  for (const Ends& end : ends) {
    end.Say();
    REQUIRE_OK(loop.Add(end.ours.get(), EPOLLIN, [&](uint32_t) {
      ++calls;
      for (const Ends& other : ends) loop.Forget(other.ours.get());
    }));
  }
  loop.RunOnce(Patience());
  CHECK(calls == 1);
  CHECK_FALSE(loop.Wait(MonotonicTime()));
}

TEST_CASE("a callback may end its own watch and close the descriptor, whose number serves again") {
  EventLoop loop;
  std::string heard;
  auto first = std::make_unique<Ends>();
  first->Say();
  std::unique_ptr<Ends> second;
  const auto owner = std::make_shared<std::string>("first ");
  loop.Watch(first->ours.get(), [&, owner] {
    loop.Forget(first->ours.get());
    first.reset();
    second = std::make_unique<Ends>();
    second->Say();
    loop.Watch(second->ours.get(), [&] { heard += "second"; });
    heard += *owner;  // its captures are still there
  });
  loop.RunOnce(Patience());
  CHECK(heard == "first ");
  CHECK(owner.use_count() == 1);
  loop.RunOnce(Patience());
  CHECK(heard == "first second");
}

TEST_CASE("a round within a callback serves the others, and nothing is lost") {
  EventLoop loop;
  const Ends ends[3];
  std::vector<int> calls(3);
  int depth = 0;
  for (int i = 0; i < 3; ++i) {
    ends[i].Say();
    loop.Watch(ends[i].ours.get(), [&, i] {
      char byte;
      REQUIRE(read(ends[i].ours.get(), &byte, 1) == 1);
      ++calls[i];
      if (++depth == 1) loop.RunOnce(Patience());
    });
  }
  while (loop.Wait(MonotonicTime())) loop.Serve();
  CHECK(calls == std::vector<int>{1, 1, 1});
}

TEST_CASE("only what was asked for is told, with its events, and the question can change") {
  EventLoop loop;
  const Ends ends;
  std::vector<uint32_t> told;
  REQUIRE_OK(loop.Add(ends.ours.get(), 0, [&](uint32_t events) { told.push_back(events); }));
  ends.Say();
  CHECK_FALSE(loop.Wait(MonotonicTime()));
  loop.Change(ends.ours.get(), EPOLLIN);
  loop.RunOnce(Patience());
  loop.Change(ends.ours.get(), EPOLLOUT);
  loop.RunOnce(Patience());
  CHECK(told == std::vector<uint32_t>{EPOLLIN, EPOLLOUT});
}

TEST_CASE("a doorbell wakes the loop from another thread, and rings before Attach are heard") {
  EventLoop loop;
  const Doorbell bell;
  bell.Ring();
  bell.Ring();
  int rings = 0;
  REQUIRE_OK(bell.Attach(loop, [&] { ++rings; }));
  loop.RunOnce(Patience());
  CHECK(rings == 1);
  CHECK_FALSE(loop.Wait(MonotonicTime()));
  auto other = Thread::Start("ringer", [&] { bell.Ring(); });
  REQUIRE_OK(other);
  loop.RunOnce(Patience());
  CHECK(rings == 2);
  other->Join();
}

TEST_CASE("a timer calls once it is time, and not after Cancel") {
  EventLoop loop;
  int calls = 0;
  LoopTimer timer(loop, [&] { ++calls; });
  timer.Set(absl::Nanoseconds(1));
  loop.RunOnce(Patience());
  CHECK(calls == 1);
  timer.Set(absl::ZeroDuration(), absl::Nanoseconds(1));
  timer.Cancel();
  CHECK_FALSE(loop.Wait(MonotonicTime()));
}

#ifndef CONVENE_SANITIZER  // without descriptors UBSan cannot look at types

TEST_CASE("without descriptors loop, doorbell and timer say so, and nothing ends the process") {
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 0;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  EventLoop loop;
  const Doorbell bell;
  const LoopTimer timer(loop, [] {});
  const absl::Status added = loop.Add(STDIN_FILENO, EPOLLIN, [](uint32_t) {});
  const absl::Status attached = bell.Attach(loop, [] {});
  bell.Ring();
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK_STATUS(added, absl::StatusCode::kResourceExhausted, "epoll_create");
  CHECK_STATUS(attached, absl::StatusCode::kResourceExhausted, "eventfd");
  CHECK_FALSE(timer.valid());
}

#endif

}  // namespace
}  // namespace convene
