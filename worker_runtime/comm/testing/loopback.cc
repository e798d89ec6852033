#include "worker_runtime/comm/testing/loopback.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "worker_runtime/comm/group_collective.h"
#include "worker_runtime/comm/members.h"
#include "worker_runtime/comm/rank_wires.h"
#include "worker_runtime/mesh/testing/all_groups.h"

namespace convene::worker {
namespace {

bool SameTag(const MessageTag& a, const MessageTag& b) {
  return a.lane == b.lane && a.sequence == b.sequence && a.size_bytes == b.size_bytes;
}

// The state that the wires of one group share: the messages under way, and which ranks are still
// there.
struct Switchboard {
  struct Message {
    MessageTag tag;
    const void* data;
    MonotonicTime arrives;
    bool taken = false;    // the receiver has it; the sender has not yet looked
    bool copying = false;  // the receiver reads `data` now, without the lock
  };
  // The messages from one rank to another. They stay until their sender has seen that they were
  // taken.
  struct Route {
    std::list<Message> messages;  // stable addresses: a copy goes on without the lock
  };

  explicit Switchboard(std::vector<int> ranks)
      : members(std::move(ranks)),
        routes(members.size() * members.size()),
        here(members.size(), true) {}

  Route& RouteOf(size_t from, size_t to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return routes[from * members.size() + to];
  }
  std::string NameOf(int rank) const {
    return absl::StrCat("rank ", rank, " (global rank ", members[rank], ")");
  }

  const std::vector<int> members;  // global ranks

  Mutex mutex;
  CondVar changed;
  std::vector<Route> routes ABSL_GUARDED_BY(mutex);
  std::vector<char> here ABSL_GUARDED_BY(mutex);
};

class LoopbackWire final : public Wire {
 public:
  LoopbackWire(std::shared_ptr<Switchboard> board, int rank, const LoopbackLink& link)
      : board_(std::move(board)), rank_(rank), link_(link), receives_(board_->members.size()) {}

  ~LoopbackWire() override { Withdraw(absl::UnavailableError("the wire is destroyed")); }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(board_->members.size()); }

  absl::Status CheckOpen() override {
    MutexLock lock(&board_->mutex);
    return CheckOpenLocked();
  }

  absl::Status PostReceive(int peer, const MessageTag& tag, void* data) override {
    receives_[peer].push_back({.tag = tag, .data = data});
    return absl::OkStatus();
  }

  absl::Status PostSend(int peer, const MessageTag& tag, const void* data) override {
    MutexLock lock(&board_->mutex);
    sent_ = std::max(sent_, Clock::Real().Now());
    if (link_.bytes_per_second > 0) {
      sent_ = sent_ + absl::Seconds(static_cast<double>(tag.size_bytes) / link_.bytes_per_second);
    }
    board_->RouteOf(rank_, peer)
        .messages.push_back({.tag = tag, .data = data, .arrives = sent_ + link_.latency});
    board_->changed.SignalAll();
    return absl::OkStatus();
  }

  absl::Status AwaitReceive(int peer, Lane lane, const WaitLimit& limit) override {
    const Receive receive = TakeOldestReceive(peer, lane);
    MutexLock lock(&board_->mutex);
    auto& messages = board_->RouteOf(peer, rank_).messages;
    while (true) {
      const absl::Status open = CheckOpenLocked();
      if (!open.ok()) return open;
      MonotonicTime arrives = MonotonicTime::InfiniteFuture();
      for (Switchboard::Message& message : messages) {
        if (message.taken || !SameTag(message.tag, receive.tag)) continue;
        arrives = message.arrives;
        if (arrives > Clock::Real().Now()) break;
        Copy(message, receive);
        return absl::OkStatus();
      }
      const absl::Status waited = WaitForChange(peer, limit.deadline, arrives);
      if (!waited.ok()) return waited;
    }
  }

  absl::Status AwaitSend(int peer, Lane lane, const WaitLimit& limit) override {
    MutexLock lock(&board_->mutex);
    auto& messages = board_->RouteOf(rank_, peer).messages;
    while (true) {
      const auto oldest = std::find_if(messages.begin(), messages.end(), [&](const auto& message) {
        return message.tag.lane == lane;
      });
      CONVENE_CHECK(oldest != messages.end());
      if (oldest->taken) {
        messages.erase(oldest);
        return absl::OkStatus();
      }
      const absl::Status open = CheckOpenLocked();
      if (!open.ok()) return open;
      const absl::Status waited = WaitForChange(peer, limit.deadline);
      if (!waited.ok()) return waited;
    }
  }

  void Withdraw(const absl::Status& hang_up) override {
    for (auto& receives : receives_) receives.clear();
    MutexLock lock(&board_->mutex);
    for (int peer = 0; peer < size(); ++peer) {
      auto& messages = board_->RouteOf(rank_, peer).messages;
      while (
          std::any_of(messages.begin(), messages.end(), [](const auto& m) { return m.copying; })) {
        board_->changed.Wait(&board_->mutex);
      }
      messages.clear();
    }
    if (!hang_up.ok()) {
      board_->here[rank_] = false;
      board_->changed.SignalAll();
    }
  }

  void Abort(const absl::Status& why) override {
    MutexLock lock(&board_->mutex);
    if (aborted_.ok()) aborted_ = why;
    board_->changed.SignalAll();
  }

 private:
  struct Receive {
    MessageTag tag;
    void* data = nullptr;
  };

  absl::Status CheckOpenLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(board_->mutex) { return aborted_; }

  Receive TakeOldestReceive(int peer, Lane lane) {
    auto& receives = receives_[peer];
    const auto oldest = std::find_if(receives.begin(), receives.end(), [&](const Receive& receive) {
      return receive.tag.lane == lane;
    });
    CONVENE_CHECK(oldest != receives.end());
    const Receive receive = *oldest;
    receives.erase(oldest);
    return receive;
  }

  // Without the lock, so that other pairs copy at the same time; `copying` keeps the sender from
  // leaving.
  void Copy(Switchboard::Message& message, const Receive& receive)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(board_->mutex) {
    message.copying = true;
    board_->mutex.Unlock();
    if (receive.tag.size_bytes > 0) {
      std::memcpy(receive.data, message.data, receive.tag.size_bytes);
    }
    board_->mutex.Lock();
    message.copying = false;
    message.taken = true;
    board_->changed.SignalAll();
  }

  // `arrives`: when a message that is under way does.
  absl::Status WaitForChange(int peer, MonotonicTime deadline,
                             MonotonicTime arrives = MonotonicTime::InfiniteFuture())
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(board_->mutex) {
    if (!board_->here[peer]) {
      return absl::UnavailableError(absl::StrCat(board_->NameOf(peer), " closed the connection"));
    }
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat(board_->NameOf(peer), " did not answer in time"));
    }
    board_->changed.WaitFor(&board_->mutex, std::min(left, arrives - Clock::Real().Now()));
    return absl::OkStatus();
  }

  const std::shared_ptr<Switchboard> board_;
  const int rank_;
  const LoopbackLink link_;
  MonotonicTime sent_;  // when the link is free again; this wire's thread only
  std::vector<std::deque<Receive>> receives_;  // per peer, oldest first; this wire's thread only
  absl::Status aborted_ ABSL_GUARDED_BY(board_->mutex);
};

}  // namespace

LoopbackWorld::LoopbackWorld(int size, const LoopbackOptions& options) : options_(options) {
  CONVENE_CHECK(size >= 1);
  for (int rank = 0; rank < size; ++rank) wires_.push_back(std::make_shared<RankWires>());
}

std::vector<std::unique_ptr<Collective>> LoopbackWorld::Group(const std::vector<int>& ranks,
                                                              const std::string& name) const {
  for (const int rank : ranks) {
    CONVENE_CHECK(rank >= 0 && rank < size());
    CONVENE_CHECK(std::count(ranks.begin(), ranks.end(), rank) == 1);
  }
  const auto board = std::make_shared<Switchboard>(ranks);
  std::vector<std::unique_ptr<Collective>> group;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    group.push_back(std::make_unique<GroupCollective>(
        name, std::make_unique<LoopbackWire>(board, static_cast<int>(rank), options_.link),
        options_.timeout, *options_.recorder, options_.message_bytes_max, wires_[ranks[rank]]));
  }
  return group;
}

std::vector<CommunicatorSet> LoopbackCommunicators(const Layout& layout,
                                                   const LoopbackOptions& options) {
  const LoopbackWorld world(layout.world_size(), options);
  std::vector<CommunicatorSet> sets(layout.world_size());
  for (const CommunicatorMember& member : kCommunicatorMembers) {
    for (const std::vector<int>& ranks : AllGroups(layout, member.axes)) {
      auto group = world.Group(ranks, member.name());
      for (size_t i = 0; i < ranks.size(); ++i) sets[ranks[i]].*member.place = std::move(group[i]);
    }
  }
  return sets;
}

}  // namespace convene::worker
