// Agents with broken connections, half-open connections, delays, repeated words, crashes and
// restarts against the daemon's table of jobs, in simulated time. Each seed is one world; a failure
// names its seed, and CONVENE_SIM_SEED runs that one alone.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "rendezvous/quorum/job.h"
#include "rendezvous/quorum/messages.h"
#include "rendezvous/server/job_table.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kStep = absl::Milliseconds(100);
constexpr absl::Duration kFaults = absl::Seconds(15);    // then the world is kind
constexpr absl::Duration kPatience = absl::Seconds(40);  // and every agent has its answer by then
constexpr absl::Duration kWork = absl::Seconds(2);       // an epoch left alone succeeds

void Expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// One node: an agent process after another, each with at most one live stream.
struct Agent {
  Hello hello;
  bool is_up = true;
  bool is_done = false;  // it was told that the job is over
  bool is_mute = false;  // its network is cut: nothing gets out, nothing gets in
  bool is_welcome = false;
  Incarnation incarnation;
  MemberId stream;  // 0: none
  Epoch running;    // 0: no workers
  Epoch seen;
  MonotonicTime running_since;
  MonotonicTime acts_at;  // comes up, connects, or says Ready then
  bool owes_ready = false;
  struct Word {
    Epoch epoch;  // when it was said: the world changes while it is on its way
    std::variant<Hello, AgentEvent> body;
  };
  std::deque<Word> outgoing;

  void Say(std::variant<Hello, AgentEvent> body) { outgoing.push_back({seen, std::move(body)}); }
};

// What the daemon has promised, checked as it promises it.
class Promises {
 public:
  void See(MemberId to, const Outbox::Item& item, const Hello& hello) {
    Expect(ended_.count(to) == 0, "an event after the end of a stream");
    if (std::holds_alternative<absl::Status>(item.what)) {
      ended_.insert(to);
      return;
    }
    const DaemonEvent& event = std::get<DaemonEvent>(item.what);
    const auto* assignment = std::get_if<Assignment>(&event.body);
    if (assignment == nullptr) return;
    if (event.epoch != epoch_) Begin(event.epoch, *assignment, hello);
    Expect(assignment->group_rank == next_rank_, "group ranks not dense or not unique");
    Expect(assignment->first_global_rank == next_global_rank_, "global ranks overlap or gape");
    Expect(assignment->group_world_size == first_.group_world_size &&
               assignment->world_size == first_.world_size &&
               assignment->store_host == first_.store_host &&
               assignment->store_port == first_.store_port &&
               assignment->restart_count == first_.restart_count,
           "two nodes of one epoch were told different things");
    ++next_rank_;
    next_global_rank_ += hello.local_world_size;
  }

  // Between two events of the daemon every epoch is given out whole.
  void CheckWhole() const {
    Expect(next_rank_ == first_.group_world_size, "a rank of the epoch was given to nobody");
    Expect(next_global_rank_ == first_.world_size, "the world size is not the sum of the nodes'");
  }

 private:
  void Begin(Epoch epoch, const Assignment& assignment, const Hello& hello) {
    Expect(epoch > epoch_, "an epoch did not rise");
    CheckWhole();
    Expect(assignment.group_world_size <= hello.nodes_max, "more than nodes_max members");
    Expect(assignment.group_world_size >= hello.nodes_min, "fewer than nodes_min members");
    epoch_ = epoch;
    first_ = assignment;
    next_rank_ = 0;
    next_global_rank_ = 0;
  }

  std::set<MemberId> ended_;
  Epoch epoch_;
  Assignment first_{0, 0, 0, 0, "", 0, 0, 0, ""};
  int next_rank_ = 0;
  int next_global_rank_ = 0;
};

class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {
    const int nodes_max = Between(1, 6);
    const int nodes_min = Between(1, nodes_max);
    const int count = Between(nodes_min, nodes_max + 2);
    const bool has_ranks = Chance(0.5);
    const int max_restarts = Between(0, 3);
    for (int i = 0; i < count; ++i) {
      Agent agent;
      agent.hello.job_id = "sim";
      agent.hello.host = absl::StrCat("node", Chance(0.2) ? 0 : i);
      agent.hello.node_rank = has_ranks ? i : -1;
      agent.hello.local_world_size = Between(1, 4);
      agent.hello.nodes_min = nodes_min;
      agent.hello.nodes_max = nodes_max;
      agent.hello.max_restarts = max_restarts;
      agent.hello.join_timeout = absl::Seconds(6);
      agent.hello.last_call = absl::Seconds(1);
      agent.hello.lease = absl::Seconds(2);
      agent.incarnation = Incarnation(++last_incarnation_);
      agent.acts_at = Soon(3);
      agents_.push_back(agent);
    }
  }

  void Run() {
    const MonotonicTime kind_from = now_ + kFaults;
    const MonotonicTime end = kind_from + kPatience;
    for (; now_ < end; now_ = now_ + kStep) {
      for (Agent& agent : agents_) {
        if (agent.is_done) continue;
        now_ < kind_from ? Hurt(agent) : Heal(agent);
        Act(agent);
        Transmit(agent);
      }
      Outbox outbox;
      if (table_.wake_at() <= now_) table_.Tick(now_, &outbox);
      Deliver(outbox);
      if (std::all_of(agents_.begin(), agents_.end(),
                      [](const Agent& agent) { return agent.is_done; })) {
        return;
      }
    }
    Expect(false, absl::StrCat("agents still wait; the job: ", table_.Views("sim")->front().phase,
                               ", ", table_.Views("sim")->front().why));
  }

 private:
  int Between(int least, int most) {
    return least + static_cast<int>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  bool Chance(double probability) {
    return static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
  }
  MonotonicTime Soon(int seconds) { return now_ + kStep * Between(0, seconds * 10); }

  void Hurt(Agent& agent) {
    if (!agent.is_up) return;
    if (Chance(0.005)) {  // the process dies; its kernel closes the connection, unless the whole
                          // machine died
      if (Chance(0.7)) Disconnect(agent);
      by_stream_.erase(agent.stream);
      agent = Reborn(agent);
      agent.is_up = false;
      agent.acts_at = Soon(6);
    } else if (Chance(0.005)) {
      Disconnect(agent);
      Forget(agent);
    } else if (Chance(0.003)) {
      agent.is_mute = true;
    } else if (Chance(0.01) && agent.running > Epoch()) {
      WorkerFailure failure;
      failure.global_rank = 0;
      failure.costs_budget = Chance(0.5);
      failure.why = "simulated";
      agent.Say(AgentEvent(failure));
      StopWork(agent);
    } else if (Chance(0.003) && agent.stream != MemberId()) {
      agent.Say(AgentEvent(Leave{"simulated"}));
    } else if (Chance(0.02) && !agent.outgoing.empty() &&
               std::holds_alternative<AgentEvent>(agent.outgoing.back().body)) {
      agent.outgoing.push_back(agent.outgoing.back());
    }
  }

  void Heal(Agent& agent) {
    if (!agent.is_mute) return;
    agent.is_mute = false;
    Disconnect(agent);  // what the kernel would have given up long ago
    Forget(agent);
  }

  Agent Reborn(const Agent& agent) {
    Agent reborn;
    reborn.hello = agent.hello;
    reborn.incarnation = Incarnation(++last_incarnation_);
    return reborn;
  }

  void Forget(Agent& agent) {
    by_stream_.erase(agent.stream);
    agent.stream = MemberId();
    agent.is_welcome = false;
    agent.outgoing.clear();
    agent.acts_at = Soon(2);
  }

  void Disconnect(Agent& agent) {
    if (agent.stream == MemberId()) return;
    Outbox outbox;
    const MemberId stream = agent.stream;
    by_stream_.erase(stream);
    agent.stream = MemberId();
    table_.Disconnect(now_, stream, &outbox);
    Deliver(outbox);
  }

  void StopWork(Agent& agent) {
    agent.running = Epoch();
    agent.owes_ready = true;
    agent.acts_at = Soon(1);
  }

  // What the agent does of its own accord.
  void Act(Agent& agent) {
    if (agent.stream == MemberId()) {
      if (now_ < agent.acts_at) return;
      agent.is_up = true;
      agent.stream = MemberId(++last_stream_);
      by_stream_[agent.stream] = &agent;
      agent.hello.last_epoch = agent.seen;
      agent.Say(agent.hello);
      return;
    }
    if (agent.owes_ready && agent.is_welcome && now_ >= agent.acts_at) {
      agent.owes_ready = false;
      agent.Say(AgentEvent(Ready{agent.hello.host, ++last_port_ % 65536}));
    } else if (agent.running > Epoch() && now_ - agent.running_since >= kWork && Chance(0.3)) {
      agent.Say(AgentEvent(WorkersSucceeded()));
      agent.running_since = MonotonicTime::InfiniteFuture();
    } else if (agent.outgoing.empty() && Chance(0.3)) {
      agent.Say(AgentEvent(Heartbeat()));
    }
  }

  // The stream keeps its order; how long each word takes is luck.
  void Transmit(Agent& agent) {
    while (!agent.is_mute && agent.stream != MemberId() && !agent.outgoing.empty() && Chance(0.7)) {
      const Agent::Word word = std::move(agent.outgoing.front());
      agent.outgoing.pop_front();
      Outbox outbox;
      if (const auto* hello = std::get_if<Hello>(&word.body)) {
        hellos_[agent.stream] = *hello;
        const absl::Status joined =
            table_.Join(now_, agent.stream, agent.incarnation, *hello, &outbox);
        if (!joined.ok()) outbox.End(agent.stream, joined);
      } else {
        table_.Receive(now_, agent.stream, agent.incarnation, word.epoch,
                       std::get<AgentEvent>(word.body), &outbox);
      }
      Deliver(outbox);
    }
  }

  void Deliver(const Outbox& outbox) {
    for (const Outbox::Item& item : outbox.items) {
      promises_.See(item.to, item, hellos_.at(item.to));
      const auto found = by_stream_.find(item.to);
      if (found == by_stream_.end() || found->second->is_mute) continue;
      Agent& agent = *found->second;
      if (std::holds_alternative<absl::Status>(item.what)) {
        Forget(agent);
      } else {
        Hear(agent, std::get<DaemonEvent>(item.what));
      }
    }
    promises_.CheckWhole();
  }

  void Hear(Agent& agent, const DaemonEvent& event) {
    agent.seen = std::max(agent.seen, event.epoch);
    if (std::holds_alternative<Welcome>(event.body)) {
      agent.is_welcome = true;
      StopWork(agent);
    } else if (std::holds_alternative<Assignment>(event.body)) {
      Expect(agent.running == Epoch(), "an assignment for a node that still runs workers");
      agent.running = event.epoch;
      agent.owes_ready = false;  // a Stop and its Ready had crossed on the wire
      agent.running_since = now_;
    } else if (std::holds_alternative<Stop>(event.body)) {
      StopWork(agent);
    } else {
      agent.is_done = true;
      by_stream_.erase(agent.stream);
    }
  }

  std::mt19937_64 random_;
  MonotonicTime now_;
  JobTable table_;
  Promises promises_;
  std::vector<Agent> agents_;
  std::map<MemberId, Agent*> by_stream_;
  std::map<MemberId, Hello> hellos_;
  uint64_t last_incarnation_ = 0;
  int64_t last_stream_ = 0;
  int last_port_ = 0;
};

TEST_CASE("whatever breaks, epochs are whole, and every agent gets its answer in the end") {
  uint64_t first = 1;
  uint64_t last = 2000;
  if (const char* seed = std::getenv("CONVENE_SIM_SEED")) {
    first = last = std::strtoull(seed, nullptr, 10);
  }
  for (uint64_t seed = first; seed <= last; ++seed) {
    try {
      World(seed).Run();
    } catch (const std::runtime_error& error) {
      FAIL("CONVENE_SIM_SEED=" << seed << ": " << error.what());
    }
  }
  SUCCEED();
}

}  // namespace
}  // namespace convene::rendezvous
