// Carries out what agent/core decides: processes, sockets and files of one node, in one loop on the
// main thread.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "agent/agent.h"
#include "agent/core/machine.h"
#include "agent/process/console.h"
#include "agent/process/event_loop.h"
#include "agent/process/session_server.h"
#include "agent/process/worker_group.h"
#include "agent/rendezvous_link.h"
#include "rendezvous/store/store_server.h"
#include "tools/base/clock.h"
#include "tools/base/exit_deadline.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {

class Node {
 public:
  // `program`: FindProgram's answer for options.command[0]. `host` and `port`: the endpoint.
  // `options` outlives the node.
  Node(const AgentOptions& options, std::string program, const std::string& host, int port);
  ~Node();

  // Once. Blocks until the job is over for this node.
  Result Run();

 private:
  void OnNews(RendezvousLink::News news);
  void OnSignal();
  void Take(Event event) { events_.push_back(std::move(event)); }
  void StepOnce();

  void Do(OpenStream& action);
  void Do(CloseStream& action);
  void Do(Send& action);
  void Do(StartWorkers& action);
  void Do(StopWorkers& action);
  void Do(KillWorkers& action);
  void Do(RestartStore& action);
  void Do(Finish& action);

  WorkerGroup::Worker MakeWorker(const StartWorkers& action, int local_rank) const;
  // What is left to do when the result is known: the last output, the other agents' Close.
  void WindUp();
  // A line of the agent's own, that does not get into a worker's redrawn one.
  void Log(const std::string& line);

  // First, so that it watches over the end of all the others.
  std::optional<ExitDeadline> wind_up_;
  const AgentOptions& options_;
  const std::string program_;
  const std::string log_root_;  // "" = no files
  State state_;
  std::deque<Event> events_;
  std::optional<Result> result_;

  EventLoop loop_;
  UniqueFd signals_;
  Console console_;
  std::unique_ptr<SessionServer> sessions_;
  std::unique_ptr<rendezvous::StoreServer> store_;
  std::unique_ptr<RendezvousLink> link_;
  std::unique_ptr<WorkerGroup> group_;  // of the latest epoch
};

}  // namespace convene::agent
