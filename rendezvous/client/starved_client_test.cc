// A client whose gRPC cannot start a single thread: it would never hear how its call ended.
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "rendezvous/client/agent_stream.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"
#include "tools/base/exit_deadline.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

// From now on no thread's stack fits into the address space.
void StarveOfThreads() {
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, size_t{1} << 46) == 0);
  REQUIRE(pthread_setattr_default_np(&attributes) == 0);
}

TEST_CASE("a stream that gRPC never ends is given up at its deadline") {
  // Ends the test when the client hangs, and the process when gRPC's own exit does.
  static const ExitDeadline* const watchdog =
      new ExitDeadline(absl::Seconds(20), 1, "the client hangs");
  REQUIRE(watchdog != nullptr);
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(bind(listener.get(), raw, length) == 0);
  REQUIRE(listen(listener.get(), 16) == 0);
  REQUIRE(getsockname(listener.get(), raw, &length) == 0);
  Hello hello;
  hello.job_id = "job";
  hello.host = "node0";
  AgentStream::Handlers handlers;
  handlers.on_event = [](const DaemonEvent&) {};
  handlers.on_end = [](const absl::Status&) {};
  StarveOfThreads();
  const MonotonicTime start = Clock::Real().Now();
  CHECK_STATUS(AgentStream::Open(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)),
                                 Incarnation(1), hello, handlers, absl::Milliseconds(100))
                   .status(),
               absl::StatusCode::kUnavailable, "did not answer as a rendezvous daemon");
  CHECK(Clock::Real().Now() - start < absl::Seconds(10));
}

}  // namespace
}  // namespace convene::rendezvous
