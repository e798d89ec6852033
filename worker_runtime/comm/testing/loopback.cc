#include "worker_runtime/comm/testing/loopback.h"

#include <algorithm>
#include <cstring>
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
  // One end of a message.
  template <typename Data>
  struct End {
    MessageTag tag;
    Data data;
    MonotonicTime arrives;    // of what is sent
    bool is_copying = false;  // one of the two ranks copies, without the lock
    bool is_done = false;     // its owner has not yet looked
  };
  using Sent = End<const void*>;
  using Posted = End<void*>;
  // The messages from one rank to another. An end stays until its owner has seen that it is done.
  // Stable addresses: a copy goes on without the lock.
  struct Route {
    std::list<Sent> sent;
    std::list<Posted> posted;
    bool is_over = false;  // one of the two ranks has aborted
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
      : board_(std::move(board)), rank_(rank), link_(link) {}

  ~LoopbackWire() override { Withdraw(absl::UnavailableError("the wire is destroyed")); }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(board_->members.size()); }
  int GlobalRank(int peer) const override { return board_->members[peer]; }

  absl::Status CheckOpen() override {
    MutexLock lock(&board_->mutex);
    return CheckOpenLocked();
  }

  absl::Status PostReceive(int peer, const MessageTag& tag, void* data) override {
    MutexLock lock(&board_->mutex);
    board_->RouteOf(peer, rank_).posted.push_back({.tag = tag, .data = data});
    board_->changed.SignalAll();
    return absl::OkStatus();
  }

  absl::Status PostSend(int peer, const MessageTag& tag, const void* data) override {
    MutexLock lock(&board_->mutex);
    sent_ = std::max(sent_, Clock::Real().Now());
    if (link_.bytes_per_second > 0) {
      sent_ = sent_ + absl::Seconds(static_cast<double>(tag.size_bytes) / link_.bytes_per_second);
    }
    board_->RouteOf(rank_, peer)
        .sent.push_back({.tag = tag, .data = data, .arrives = sent_ + link_.latency});
    board_->changed.SignalAll();
    return absl::OkStatus();
  }

  absl::Status AwaitReceive(int peer, Lane lane, const WaitLimit& limit) override {
    MutexLock lock(&board_->mutex);
    Switchboard::Route& route = board_->RouteOf(peer, rank_);
    return AwaitOldest(route, route.posted, peer, lane, limit);
  }

  absl::Status AwaitSend(int peer, Lane lane, const WaitLimit& limit) override {
    MutexLock lock(&board_->mutex);
    Switchboard::Route& route = board_->RouteOf(rank_, peer);
    return AwaitOldest(route, route.sent, peer, lane, limit);
  }

  void Withdraw(const absl::Status& hang_up) override {
    MutexLock lock(&board_->mutex);
    for (int peer = 0; peer < size(); ++peer) {
      Clear(board_->RouteOf(rank_, peer).sent);
      Clear(board_->RouteOf(peer, rank_).posted);
    }
    if (!hang_up.ok()) {
      board_->here[rank_] = false;
      board_->changed.SignalAll();
    }
  }

  void Abort(const absl::Status& why) override {
    MutexLock lock(&board_->mutex);
    if (aborted_.ok()) aborted_ = why;
    for (int peer = 0; peer < size(); ++peer) {
      board_->RouteOf(rank_, peer).is_over = board_->RouteOf(peer, rank_).is_over = true;
    }
    board_->changed.SignalAll();
  }

 private:
  // A rank that hears of its end may free its memory, so no other rank copies from or to it then.
  absl::Status CheckOpenLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(board_->mutex) {
    for (int peer = 0; peer < size() && !aborted_.ok(); ++peer) {
      AwaitCopies(board_->RouteOf(rank_, peer).sent);
      AwaitCopies(board_->RouteOf(peer, rank_).posted);
    }
    return aborted_;
  }

  // Until the oldest of `ends`, which is one side of the route, is done. Whichever rank waits
  // copies: no rank has to wait until the other one does.
  template <typename End>
  absl::Status AwaitOldest(Switchboard::Route& route, std::list<End>& ends, int peer, Lane lane,
                           const WaitLimit& limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(board_->mutex) {
    const auto oldest = std::find_if(ends.begin(), ends.end(),
                                     [&](const End& end) { return end.tag.lane == lane; });
    CONVENE_CHECK(oldest != ends.end());
    while (true) {
      if (!oldest->is_done) {
        const absl::Status open = CheckOpenLocked();
        if (!open.ok()) return open;
      }
      const MonotonicTime arrives =
          oldest->is_copying ? MonotonicTime::InfiniteFuture() : MoveMessage(route, oldest->tag);
      if (oldest->is_done) {
        ends.erase(oldest);
        return absl::OkStatus();
      }
      const absl::Status waited = WaitForChange(peer, limit.deadline, arrives);
      if (!waited.ok()) return waited;
    }
  }

  // Copies the message if it has arrived and its receive is posted; else says when it arrives. It
  // copies without the lock, so that other pairs copy at the same time.
  MonotonicTime MoveMessage(Switchboard::Route& route, const MessageTag& tag)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(board_->mutex) {
    const auto is_it = [&](const auto& end) { return !end.is_done && SameTag(end.tag, tag); };
    const auto sent = std::find_if(route.sent.begin(), route.sent.end(), is_it);
    const auto posted = std::find_if(route.posted.begin(), route.posted.end(), is_it);
    if (sent == route.sent.end() || posted == route.posted.end() || sent->is_copying ||
        route.is_over) {
      return MonotonicTime::InfiniteFuture();
    }
    if (sent->arrives > Clock::Real().Now()) return sent->arrives;
    sent->is_copying = posted->is_copying = true;
    board_->mutex.Unlock();
    if (tag.size_bytes > 0) std::memcpy(posted->data, sent->data, tag.size_bytes);
    board_->mutex.Lock();
    sent->is_copying = posted->is_copying = false;
    sent->is_done = posted->is_done = true;
    board_->changed.SignalAll();
    return MonotonicTime::InfiniteFuture();
  }

  // Waits until nobody copies from or to any of them.
  template <typename End>
  void AwaitCopies(const std::list<End>& ends) ABSL_EXCLUSIVE_LOCKS_REQUIRED(board_->mutex) {
    while (std::any_of(ends.begin(), ends.end(), [](const End& end) { return end.is_copying; })) {
      board_->changed.Wait(&board_->mutex);
    }
  }
  template <typename End>
  void Clear(std::list<End>& ends) ABSL_EXCLUSIVE_LOCKS_REQUIRED(board_->mutex) {
    AwaitCopies(ends);
    ends.clear();
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
