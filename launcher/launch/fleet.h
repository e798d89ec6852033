// PURE. Decides about the hosts of a launch: when each is dialled, what a host's end means for the
// others, and the exit code.
//
//              slot free            "started"             "ended N", or the link's end
//   kWaiting ------------> kDialing ---------> kRunning --------------------------> kEnded
//      ^                       |                   |
//      |                       | no start          | the link is lost: the agent there may live
//      +-----------------------+-------------------+ dialled again, until the job is over
//             (only a host that ran before)
//
// A link on which nothing comes is closed, and so counts as ended: a host that is dialled may be
// silent for kStartPatience or the link timeout, whichever is longer; one that runs for a quarter
// more than the link timeout, so that ssh, which gives up after that timeout, can tell why.
//
// An agent that ends by itself ends the job, or the job goes on without it; only the rendezvous
// knows. So a launch does not decide for the agents. It stops them in these cases only: a person or
// a scheduler wants it, a host that the job needs cannot be started, or an agent has failed, fewer
// than MIN hosts are left, and the others do not end by themselves: no other host will come.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "launcher/launch/ssh.h"
#include "launcher/launch/task.h"
#include "tools/base/backoff.h"
#include "tools/base/clock.h"
#include "tools/base/stop_request.h"

namespace convene::launcher {

// The time that a host gets from its dialling to the first sign of `convene launched` there.
inline constexpr absl::Duration kStartPatience = absl::Minutes(1);

struct FleetOptions {
  std::vector<std::string> hosts;  // as they are called in lines
  int nodes_min = 1;               // the job needs so many of them
  bool first_serves = true;        // the first host serves the rendezvous: no job without it
  size_t most_dialing = 64;        // ssh connections that are being made at one time
  SshOptions ssh;                  // for explanations
  std::string program;
};

// The caller carries these out in order.
struct DialHost {
  size_t host;
};
struct TellHost {
  size_t host;
  Request request;
};
// Ends the link; LinkEnded follows.
struct CloseLink {
  size_t host;
};
struct SayLine {
  std::string line;
  bool is_error = false;
};
using FleetAction = std::variant<DialHost, TellHost, CloseLink, SayLine>;

// The end of one link.
struct LinkEnd {
  int exit_code = 0;                    // of ssh; 128 + n: signal n
  std::vector<std::string> last_lines;  // on its stderr
};

// Not thread-safe.
class Fleet {
 public:
  explicit Fleet(FleetOptions options);

  // Each of these returns what is to be done now.
  std::vector<FleetAction> Begin(MonotonicTime now);
  std::vector<FleetAction> Started(size_t host, MonotonicTime now);
  // Something came from there: output, or a heartbeat (task.h).
  void HeardFrom(size_t host, MonotonicTime now);
  // While this process reads no link, because its own reader is slow, no host counts as silent.
  void SetDeaf(bool is_deaf, MonotonicTime now);
  // The agent has ended; its link is about to.
  std::vector<FleetAction> AgentEnded(size_t host, int exit_code, MonotonicTime now);
  std::vector<FleetAction> LinkEnded(size_t host, const LinkEnd& end, MonotonicTime now);
  std::vector<FleetAction> Heard(const ReceivedSignal& signal, MonotonicTime now);
  std::vector<FleetAction> OnTime(MonotonicTime now);

  // When OnTime has something to do next.
  MonotonicTime next_deadline() const;
  // The exit code of the launch, once no link is left and none will be made.
  std::optional<int> result() const;

 private:
  enum class State { kWaiting, kDialing, kRunning, kEnded };
  struct Host {
    State state = State::kWaiting;
    MonotonicTime dial_at;
    bool has_run = false;
    bool is_closing = false;
    bool is_silent = false;          // and so is_closing
    MonotonicTime heard_at;          // or dialled
    std::optional<Backoff> backoff;  // since it last ran
    std::optional<int> exit_code;    // of its agent, or of its failure to start
    MonotonicTime close_at = MonotonicTime::InfiniteFuture();
  };

  void DialNext(MonotonicTime now);
  size_t FreeSlots() const;
  // The longest time for which nothing may come from there.
  absl::Duration Patience(const Host& host) const;
  // When the host counts as silent; never, where its end is known or awaited.
  MonotonicTime SilentAt(const Host& host) const;
  void NotStarted(size_t host, const SshFailure& failure);
  void Lost(size_t host, const std::string& why, MonotonicTime now);
  void DialAgain(size_t host, MonotonicTime now);
  // Whether an agent runs that could tell the end of the job.
  bool IsAnyConnected() const;
  bool MayStart(const Host& host) const;
  // Fewer agents run, or may yet run, than the job needs.
  bool HasTooFew() const;
  // Once no agent runs, hosts that were lost are not dialled any more.
  void EndRedials();
  void Close(size_t host);
  void Stop(Request request);
  void Say(std::string line, bool is_error = false);
  std::vector<FleetAction> Take();

  const FleetOptions options_;
  std::vector<Host> hosts_;
  StopRequest stop_request_;
  bool is_stopping_ = false;
  bool is_deaf_ = false;
  std::optional<int> stop_signal_;   // of a person or a scheduler
  std::optional<int> failure_code_;  // the first of the hosts'
  bool has_succeeded_ = false;       // an agent ended with 0: the job is over
  MonotonicTime stop_at_ = MonotonicTime::InfiniteFuture();   // the others, after a failure
  MonotonicTime close_at_ = MonotonicTime::InfiniteFuture();  // all links, after kAtOnce
  std::vector<FleetAction> actions_;
};

}  // namespace convene::launcher
