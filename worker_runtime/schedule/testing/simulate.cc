#include "worker_runtime/schedule/testing/simulate.h"

#include <algorithm>
#include <deque>
#include <set>

#include "absl/strings/str_cat.h"

namespace convene::worker {
namespace {

struct Message {
  int microbatch;
  double sent_at;
};

// One direction between two neighbours.
using Channel = std::deque<Message>;

struct Stage {
  size_t next = 0;  // index of the action it stands at
  double clock = 0;
  std::set<int> activations;  // received and not yet used
  std::set<int> gradients;
  std::set<int> forward_done;
  std::set<int> backward_done;
  int in_flight_max = 0;
};

enum class Progress { kDone, kBlocked, kWrong };

class Simulator {
 public:
  Simulator(const std::vector<std::vector<Action>>& schedules, double forward_time,
            double backward_time)
      : schedules_(schedules),
        forward_time_(forward_time),
        backward_time_(backward_time),
        stages_(schedules.size()),
        activations_(schedules.size() + 1),
        gradients_(schedules.size() + 1) {}

  Simulation Run() {
    // Rounds go on until no stage moves: a stage's clock depends only on its own and its messages'
    // times, so the order of stages is free.
    for (bool moved = true; moved && problem_.empty();) {
      moved = false;
      for (size_t stage = 0; stage < stages_.size() && problem_.empty(); ++stage) {
        while (stages_[stage].next < schedules_[stage].size() && Step(stage)) moved = true;
      }
    }
    if (problem_.empty()) CheckFinished();
    return Result();
  }

 private:
  bool is_first(size_t stage) const { return stage == 0; }
  bool is_last(size_t stage) const { return stage + 1 == stages_.size(); }

  // Does the stage's next action; false when it has to wait or the schedule is wrong (then problem_
  // is set).
  bool Step(size_t stage) {
    const Action& action = schedules_[stage][stages_[stage].next];
    switch (Perform(stage, action)) {
      case Progress::kDone:
        ++stages_[stage].next;
        return true;
      case Progress::kBlocked:
        return false;
      case Progress::kWrong:
        problem_ = absl::StrCat(Place(stage), ": ", wrong_);
        return false;
    }
    return false;
  }

  Progress Perform(size_t stage, const Action& action) {
    const int microbatch = action.microbatch;
    Stage& state = stages_[stage];
    switch (action.kind) {
      case ActionKind::kForward:
        return Forward(stage, microbatch);
      case ActionKind::kBackward:
        return Backward(stage, microbatch);
      case ActionKind::kSendActivation:
        if (is_last(stage)) return Wrong("there is no next stage");
        if (!state.forward_done.contains(microbatch)) return Wrong("it has not been computed");
        activations_[stage + 1].push_back({microbatch, state.clock});
        return Progress::kDone;
      case ActionKind::kSendGradient:
        if (is_first(stage)) return Wrong("there is no previous stage");
        if (!state.backward_done.contains(microbatch)) return Wrong("it has not been computed");
        gradients_[stage].push_back({microbatch, state.clock});
        return Progress::kDone;
      case ActionKind::kRecvActivation:
        if (is_first(stage)) return Wrong("there is no previous stage");
        return Receive(state, microbatch, activations_[stage], state.activations);
      case ActionKind::kRecvGradient:
        if (is_last(stage)) return Wrong("there is no next stage");
        return Receive(state, microbatch, gradients_[stage + 1], state.gradients);
    }
    return Wrong("unknown action");
  }

  Progress Forward(size_t stage, int microbatch) {
    Stage& state = stages_[stage];
    if (!is_first(stage) && state.activations.erase(microbatch) == 0) {
      return Wrong("its activation has not been received");
    }
    if (!state.forward_done.insert(microbatch).second) return Wrong("it is done twice");
    state.clock += forward_time_;
    state.in_flight_max =
        std::max(state.in_flight_max, static_cast<int>(state.forward_done.size()) -
                                          static_cast<int>(state.backward_done.size()));
    return Progress::kDone;
  }

  Progress Backward(size_t stage, int microbatch) {
    Stage& state = stages_[stage];
    if (!state.forward_done.contains(microbatch)) return Wrong("it has not gone forward");
    if (!is_last(stage) && state.gradients.erase(microbatch) == 0) {
      return Wrong("its gradient has not been received");
    }
    if (!state.backward_done.insert(microbatch).second) return Wrong("it is done twice");
    state.clock += backward_time_;
    return Progress::kDone;
  }

  Progress Receive(Stage& state, int microbatch, Channel& channel, std::set<int>& received) {
    if (channel.empty()) return Progress::kBlocked;
    const Message message = channel.front();
    if (message.microbatch != microbatch) {
      return Wrong(absl::StrCat("the next message is microbatch ", message.microbatch));
    }
    channel.pop_front();
    state.clock = std::max(state.clock, message.sent_at);
    received.insert(microbatch);
    return Progress::kDone;
  }

  void CheckFinished() {
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      const Stage& state = stages_[stage];
      if (state.next < schedules_[stage].size()) {
        problem_ = absl::StrCat(Place(stage), ": deadlock, nobody will send it");
      } else if (state.forward_done != state.backward_done ||
                 state.forward_done != stages_[0].forward_done) {
        problem_ = absl::StrCat("stage ", stage, " ends with unfinished microbatches");
      } else if (!activations_[stage].empty() || !gradients_[stage].empty()) {
        problem_ = absl::StrCat("messages between stages ", stage - 1, " and ", stage,
                                " were never received");
      }
      if (!problem_.empty()) return;
    }
  }

  Simulation Result() const {
    Simulation result = {.ok = problem_.empty(), .problem = problem_, .in_flight_max = {}};
    double busy = 0;
    for (const Stage& stage : stages_) {
      result.makespan = std::max(result.makespan, stage.clock);
      result.in_flight_max.push_back(stage.in_flight_max);
      busy += static_cast<double>(stage.forward_done.size()) * forward_time_ +
              static_cast<double>(stage.backward_done.size()) * backward_time_;
    }
    const double available = result.makespan * static_cast<double>(stages_.size());
    if (available > 0) result.bubble_fraction = 1 - busy / available;
    return result;
  }

  // "stage 1 at #3 recv_activation 1".
  std::string Place(size_t stage) const {
    const size_t next = stages_[stage].next;
    const Action& action = schedules_[stage][next];
    return absl::StrCat("stage ", stage, " at #", next, " ", ActionName(action.kind), " ",
                        action.microbatch);
  }

  Progress Wrong(std::string why) {
    wrong_ = std::move(why);
    return Progress::kWrong;
  }

  const std::vector<std::vector<Action>>& schedules_;
  const double forward_time_;
  const double backward_time_;
  std::vector<Stage> stages_;
  std::vector<Channel> activations_;  // [s]: from stage s - 1 to s
  std::vector<Channel> gradients_;    // [s]: from stage s to s - 1
  std::string wrong_;
  std::string problem_;
};

}  // namespace

Simulation Simulate(const std::vector<std::vector<Action>>& schedules, double forward_time,
                    double backward_time) {
  return Simulator(schedules, forward_time, backward_time).Run();
}

}  // namespace convene::worker
