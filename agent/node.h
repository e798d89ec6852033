// Carries out what agent/core decides: processes, sockets and files of one node, in one loop on the
// main thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/agent.h"
#include "agent/core/machine.h"
#include "agent/custody/custody.h"
#include "agent/hang/hang_watch.h"
#include "agent/hang/timer_file.h"
#include "agent/log_publisher.h"
#include "agent/output/console.h"
#include "agent/output/recent_lines.h"
#include "agent/output/run_logs.h"
#include "agent/rendezvous_link.h"
#include "agent/scheduler/slurm_requeue.h"
#include "agent/warm/warm_pool.h"
#include "agent/workers/health_check.h"
#include "agent/workers/held_memory.h"
#include "agent/workers/kernel_log.h"
#include "agent/workers/own_input.h"
#include "agent/workers/session_server.h"
#include "agent/workers/worker_group.h"
#include "rendezvous/store/store_server.h"
#include "tools/base/clock.h"
#include "tools/base/event_loop.h"
#include "tools/base/exit_deadline.h"
#include "tools/base/host_port.h"
#include "tools/base/loop_timer.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {

class Node {
 public:
  // `program`: FindProgram's answer for options.command[0]. `places`: the endpoint's.
  // `options` outlives the node.
  Node(const AgentOptions& options, std::string program, std::vector<HostPort> places);
  ~Node();

  // Once. Blocks until the job is over for this node.
  Result Run();

 private:
  void OnNews(RendezvousLink::News&& news);
  void OnSignal();
  bool IsToldToEnd() const { return told_to_end_at_ != MonotonicTime::InfiniteFuture(); }
  // SIGTSTP (Ctrl-Z, `scontrol suspend`).
  void OnSuspend();
  // Workers and agent rest until somebody continues the agent. `signal` stops it.
  void Rest(int signal);
  // Continued in the background (`bg`): the job runs on, until the worker that has the terminal
  // waits for what is typed. Then it rests, as SIGTTIN makes any job: the worker is in a session of
  // its own, where the kernel would let it read beside the shell.
  void OnBackground();
  void Take(Event event) { events_.push_back(std::move(event)); }
  // Takes the ends of workers and health checks. An end that may come from a signal to all
  // processes of the step is held, and later ends behind it, until this process has got that signal
  // too, or echo_patience is over. A peer that breaks because of this end may then report first
  // and is named as the first failure. That is the smaller evil: one failure is counted either way,
  // and all nodes start again. Without the hold every `scancel` would end as a worker's failure. A
  // TERM to one worker alone is rare.
  void TakeEnd(Event event, bool may_be_of_stop);
  void ReleaseHeld();
  void StepOnce();

  void Do(OpenStream& action);
  void Do(CloseStream& action);
  void Do(Send& action);
  void Do(StartWorkers& action);
  void Do(StopWorkers& action);
  void Do(KillWorkers& action);
  void Do(RestWorkers& action);
  void Do(WakeWorkers& action);
  void Do(RestartStore& action);
  void Do(RunHealthCheck& action);
  void Do(CancelHealthCheck& action);
  void Do(Say& action) { Log(action.line); }
  void Do(Finish& action);

  // `progress_path`: "" = none. Errors: a device or CPU for --virtual-local-rank or --numa-binding
  // is missing.
  absl::StatusOr<WorkerGroup::Worker> MakeWorker(const StartWorkers& action, int local_rank,
                                                 const std::string& progress_path);
  // Makes the folders for logs and spawns.
  absl::Status Launch(const StartWorkers& action);
  // Reports the workers that ended in this round to the machine, the first cause first.
  void ReportEnds();
  void OnHang(WorkerHung hung, bool by_debugger);
  void StartWarmPool();
  // Lets the first start be warm by what an earlier run has kept. REQUIRES: warm_pool_.
  void BeginFromRecord();
  // Of the workers' command.
  std::vector<std::string> ArgumentsOf(int local_rank) const;
  void StartSessions(const std::string& parent);
  // In another folder where the present one was removed. Returns as OpenTimerFile does.
  bool BeginSessions(Epoch epoch);
  // Returns false when the file was asked for and cannot be opened; the result says why.
  bool OpenTimerFile();
  // The last steps, when the result is known: the last output, the other agents' Close.
  void WindUp();
  // Makes the process end within a bound from now on, whatever a library does.
  void BeginWindUp();
  // The runs that this process still serves the rendezvous for.
  std::vector<std::string> ServedRuns();
  // Waits for the end of these runs. After a signal it waits for the workers of its own run alone,
  // as long as a stop may take, or until a person does not want to wait.
  void ServeOtherJobs();
  void TellWhyItStays(const std::vector<std::string>& served);
  // Names the runs that lose their rendezvous with this process, and the runs whose agents go on
  // with it. False: there are none.
  bool TellServedRuns();
  // When the job ends with a failure, hands the first one's error file on to the program that
  // started this agent.
  void HandOnError();
  // Writes a line of the agent's own, without breaking a worker's redrawn one.
  void Log(const std::string& line);
  // Likewise: output is lost, or late.
  void Warn(const std::string& line);
  void ClearRow();

  // It is the first member, so that it watches over the destruction of the others.
  std::optional<ExitDeadline> wind_up_;
  const AgentOptions& options_;
  const std::string program_;
  // The agent's own, overridden by extra_environment.
  const std::map<std::string, std::string> environment_;
  // The agent serves the workers' store; else the worker of rank 0 does.
  const bool shares_store_;
  State state_;
  std::deque<Event> events_;
  std::deque<Event> held_;  // TakeEnd's
  MonotonicTime held_until_ = MonotonicTime::InfiniteFuture();
  std::optional<Result> result_;
  MonotonicTime told_to_end_at_ = MonotonicTime::InfiniteFuture();  // when the first signal came
  bool has_told_of_background_ = false;
  // How the rendezvous was lost, and how the search for it went: each text is told once. Empty: the
  // rendezvous answers.
  std::set<std::string> told_losses_;

  EventLoop loop_;
  const OwnInput input_;
  const std::optional<int> terminal_worker_;  // local rank of the worker that has the terminal
  LoopTimer background_timer_;
  Custody custody_;  // early: its guardian is a fork of this process
  const HeldMemory memory_;
  SlurmRequeue slurm_requeue_;
  UniqueFd signals_;
  UniqueFd suspend_signals_;
  Console console_;
  RecentLines recent_lines_;
  std::unique_ptr<SessionServer> sessions_;
  std::unique_ptr<TimerFile> timer_file_;  // where it was asked for
  std::unique_ptr<rendezvous::StoreServer> store_;
  UniqueFd worker_store_port_;  // kept for the worker of rank 0, where it serves the store
  std::unique_ptr<RendezvousLink> link_;
  std::unique_ptr<LogPublisher> log_publisher_;
  std::unique_ptr<BoundedCommand> health_check_;  // while it runs
  std::optional<RunHealthCheck> held_check_;      // waits for the spares of the first start
  std::vector<std::vector<int>> cpus_;            // of each worker; empty: not bound
  HangWatch hang_watch_;
  KernelLog kernel_log_;
  std::unique_ptr<WarmPool> warm_pool_;  // where it was asked for and can be had
  std::unique_ptr<RunLogs> logs_;
  std::vector<WorkerExited> ended_;     // not reported yet
  std::unique_ptr<WorkerGroup> group_;  // of the latest epoch
};

}  // namespace convene::agent
