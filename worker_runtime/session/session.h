// One thread hears the worker's signals and the words of its agent
// (worker_runtime/contract/names.h).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tools/base/stop_request.h"
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/contract/contract.h"
#include "worker_runtime/session/stop_token.h"

namespace convene::worker {

// Blocks the stop signals for the calling thread and all that it starts from now on: SIGTERM,
// SIGINT, SIGQUIT, and SIGHUP unless this process was started to ignore it (nohup). Ignores
// SIGUSR1, which `scancel --signal=USR1` sends to every process of a step. Call first thing in
// main.
void BlockStopSignals();

class Session {
 public:
  // Starts the thread "session". Connects to contract.session_path when there is one: Unavailable
  // when the agent's socket is gone.
  //   "checkpoint" or a stop signal: requests a stop through `token`. Before StopToken::Watch, it
  //   ends the process at once: with ExitCode::kMembershipChanged, or with 128 + signal.
  //   "abort", or the agent's end of the socket closing: the process ends at once with
  //   ExitCode::kMembershipChanged, because peers are gone and a collective may never return.
  //   Further stop signals: echoes of the same request (tools/base/stop_request.h), but for a
  //   second Ctrl-C, clearly later: the process ends at once with 128 + signal.
  // `token` outlives the session.
  static absl::StatusOr<std::unique_ptr<Session>> Start(const Contract& contract, StopToken& token);
  ~Session();

  // Ends the session and tells the agent: this process goes on as a program that may know none
  // (exec). Once, as the last call before the destructor.
  void Leave();

 private:
  Session(UniqueFd signals, UniqueFd socket, UniqueFd wake, StopToken& token);
  void Listen();
  void EndThread();
  void OnSignal();
  // False when the socket is closed.
  bool OnSocket();
  void OnLine(const std::string& line);

  const UniqueFd signals_;
  const UniqueFd socket_;  // invalid without an agent
  const UniqueFd wake_;    // written to by EndThread
  StopToken& token_;
  // Used by the thread alone.
  StopRequest stop_request_;
  std::string partial_line_;
  Thread thread_;
};

}  // namespace convene::worker
