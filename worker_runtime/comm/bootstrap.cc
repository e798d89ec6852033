#include "worker_runtime/comm/bootstrap.h"

#include <algorithm>
#include <iterator>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/net/resolve.h"
#include "tools/base/mutex.h"
#include "tools/base/source_address.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/comm/gloo_mesh.h"
#include "worker_runtime/comm/group_collective.h"
#include "worker_runtime/comm/members.h"
#include "worker_runtime/comm/rank_wires.h"
#include "worker_runtime/comm/wire.h"

namespace convene::worker {
namespace {

absl::StatusOr<std::string> ListenHost(const BootstrapOptions& options) {
  if (!options.listen_host.empty()) return options.listen_host;
  CONVENE_ASSIGN_OR_RETURN(const auto addresses,
                           rendezvous::ResolveHost(options.store_host, options.connect_timeout));
  for (const rendezvous::ResolvedAddress& address : addresses) {
    absl::StatusOr<std::string> own = SourceTowards(address.get(), address.length);
    if (own.ok()) return own;
  }
  return absl::UnavailableError(
      absl::StrCat("no route to \"", options.store_host,
                   "\": state the address that other workers can reach this node at"));
}

// The wire of a group that sends no message: of one rank, or of ranks that are only planned.
class NoWire final : public Wire {
 public:
  // `state`: the status of each call until Abort.
  NoWire(int rank, int size, absl::Status state)
      : rank_(rank), size_(size), state_(std::move(state)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int GlobalRank(int peer) const override { return peer; }  // nobody waits for it
  absl::Status CheckOpen() override {
    MutexLock lock(&mutex_);
    return state_;
  }
  absl::Status PostReceive(int, const MessageTag&, void*) override { return CheckOpen(); }
  absl::Status PostSend(int, const MessageTag&, const void*) override { return CheckOpen(); }
  absl::Status AwaitReceive(int, Lane, const WaitLimit&) override { return CheckOpen(); }
  absl::Status AwaitSend(int, Lane, const WaitLimit&) override { return CheckOpen(); }
  void Withdraw(const absl::Status& /*hang_up*/) override {}
  void Abort(const absl::Status& why) override {
    MutexLock lock(&mutex_);
    if (state_.ok()) state_ = why;
  }

 private:
  const int rank_;
  const int size_;
  Mutex mutex_;
  absl::Status state_ ABSL_GUARDED_BY(mutex_);
};

// `recorder`: as in BootstrapOptions.
std::unique_ptr<Collective> WithoutMessages(const CommunicatorMember& member, int rank, int size,
                                            absl::Status state, FlightRecorder& recorder) {
  return std::make_unique<GroupCollective>(member.name(),
                                           std::make_unique<NoWire>(rank, size, std::move(state)),
                                           absl::InfiniteDuration(), recorder);
}

// Communicators that send no message; the status of each call is `state`.
CommunicatorSet Unconnected(const Layout& layout, int rank, const absl::Status& state) {
  CommunicatorSet set;
  for (const CommunicatorMember& member : kCommunicatorMembers) {
    const std::vector<int> group = GroupOf(layout, member.axes, rank);
    if (group.empty()) continue;
    const auto place = std::find(group.begin(), group.end(), rank) - group.begin();
    set.*member.place =
        WithoutMessages(member, static_cast<int>(place), static_cast<int>(group.size()), state,
                        FlightRecorder::OfProcess());
  }
  return set;
}

}  // namespace

absl::StatusOr<CommunicatorSet> BootstrapGloo(const Layout& layout, int rank,
                                              rendezvous::StoreClient& store,
                                              const std::string& key_prefix,
                                              const BootstrapOptions& options, GlooPart part) {
  if (rank < 0 || rank >= layout.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is not in ", layout.ToString(),
                                                   ", which has ", layout.world_size(), " ranks"));
  }
  std::shared_ptr<GlooMesh> mesh;
  if (layout.world_size() > 1) {
    CONVENE_ASSIGN_OR_RETURN(const std::string host, ListenHost(options));
    CONVENE_ASSIGN_OR_RETURN(mesh, GlooMesh::Connect(rank, layout.world_size(), host, store,
                                                     key_prefix, options.connect_timeout));
  }
  CommunicatorSet set;
  const auto rank_wires = std::make_shared<RankWires>();
  for (int id = 0; id < static_cast<int>(std::size(kCommunicatorMembers)); ++id) {
    const CommunicatorMember& member = kCommunicatorMembers[id];
    const std::vector<int> group = GroupOf(layout, member.axes, rank);
    if (group.size() == 1) {
      set.*member.place = WithoutMessages(member, 0, 1, absl::OkStatus(), *options.recorder);
    } else if (!group.empty() && (part == GlooPart::kAll || member.in_host_memory)) {
      set.*member.place = std::make_unique<GroupCollective>(
          member.name(), mesh->MakeWire(group, id), options.*member.timeout, *options.recorder,
          options.message_bytes_max, rank_wires, member.is_beside_training);
    }
  }
  return set;
}

std::vector<Collective*> CommunicatorSet::OnDevice() const {
  std::vector<Collective*> present;
  for (const CommunicatorMember& member : kCommunicatorMembers) {
    if (!member.in_host_memory && this->*member.place != nullptr) {
      present.push_back((this->*member.place).get());
    }
  }
  return present;
}

void CommunicatorSet::AbortAll(absl::string_view why) {
  for (const CommunicatorMember& member : kCommunicatorMembers) {
    if (this->*member.place != nullptr) (this->*member.place)->Abort(why);
  }
}

CommunicatorSet SoloCommunicators() { return Unconnected(Layout{}, 0, absl::OkStatus()); }

CommunicatorSet PlannedCommunicators(const Layout& layout, int rank) {
  return Unconnected(layout, rank, absl::FailedPreconditionError("these ranks are only planned"));
}

}  // namespace convene::worker
