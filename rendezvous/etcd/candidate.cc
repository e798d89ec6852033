#include "rendezvous/etcd/candidate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous::etcd {
namespace {

constexpr absl::Duration kBetweenComplaints = absl::Minutes(1);
constexpr absl::Duration kRevokePatience = absl::Seconds(1);
// The client goes on to another member no sooner.
constexpr absl::Duration kRenewalPatience = absl::Seconds(1);

}  // namespace

Candidate::Candidate(Client* client, Options options)
    : client_(client),
      options_(std::move(options)),
      leadership_(Clock::Real().Now()),
      was_answered_(options_.answer_by == MonotonicTime::InfiniteFuture()) {}

absl::StatusOr<std::unique_ptr<Candidate>> Candidate::Start(Client* client, Options options) {
  std::unique_ptr<Candidate> candidate(new Candidate(client, std::move(options)));
  Candidate* const self = candidate.get();
  CONVENE_ASSIGN_OR_RETURN(self->thread_, Thread::Start("etcd-lead", [self] { self->Run(); }));
  return candidate;
}

Candidate::~Candidate() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    stopped_.SignalAll();
  }
  if (!thread_.joinable()) return;
  thread_.Join();
  if (tenure_ != nullptr) tenure_->End();
  if (leadership_.lease() == 0) return;
  const absl::Status revoked =
      client_->Revoke(leadership_.lease(), Clock::Real().Now() + kRevokePatience);
  if (!revoked.ok() && !absl::IsNotFound(revoked)) {
    spdlog::warn("the next daemon leads when this one's lease in etcd is over: {}",
                 std::string(revoked.message()));
  }
}

Candidate::State Candidate::state() {
  MutexLock lock(&mutex_);
  return state_;
}

bool Candidate::SleepUntil(MonotonicTime at) {
  MutexLock lock(&mutex_);
  while (!stopping_) {
    const absl::Duration left = at - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) return true;
    stopped_.WaitFor(&mutex_, left);
  }
  return false;
}

void Candidate::End(absl::Status why) {
  if (tenure_ != nullptr) tenure_->End();
  {
    MutexLock lock(&mutex_);
    state_.status = std::move(why);
  }
  options_.on_change();
}

void Candidate::Run() {
  for (;;) {
    Leadership::Next next = leadership_.NextDeed(Clock::Real().Now());
    if (!was_answered_) next.give_up = std::min(next.give_up, options_.answer_by);
    if (next.deed == Deed::kOver) {
      return End(absl::AbortedError("etcd has not renewed this daemon's lease in time"));
    }
    if (!SleepUntil(next.at)) return;
    if (tenure_ != nullptr && !tenure_->Covers(Clock::Real().Now())) {
      return End(absl::AbortedError("this daemon's time to lead is over"));
    }
    const absl::Status done = Perform(next);
    was_answered_ = was_answered_ || done.ok();
    if (done.ok()) continue;
    const MonotonicTime now = Clock::Real().Now();
    if (!was_answered_ && (now >= options_.answer_by || !absl::IsUnavailable(done))) {
      return End(done);
    }
    Complain(done);
    leadership_.Failed(now);
  }
}

void Candidate::Complain(const absl::Status& status) {
  const MonotonicTime now = Clock::Real().Now();
  if (now < complains_at_) return;
  complains_at_ = now + kBetweenComplaints;
  spdlog::warn("{}: {}; it is tried again",
               tenure_ != nullptr ? "the lease of this daemon, which leads, is not renewed"
                                  : "this daemon cannot look which one leads",
               std::string(status.message()));
}

absl::Status Candidate::Perform(const Leadership::Next& next) {
  switch (next.deed) {
    case Deed::kLook:
      return Look(next.give_up);
    case Deed::kGrant:
      return Grant(next.give_up);
    case Deed::kCampaign:
      return Campaign(next.give_up);
    case Deed::kKeepAlive:
      return KeepAlive(next.give_up);
    case Deed::kOver:
      break;
  }
  return absl::OkStatus();
}

absl::Status Candidate::Look(MonotonicTime give_up) {
  etcdserverpb::RangeRequest request;
  request.set_key(options_.place.leader());
  CONVENE_ASSIGN_OR_RETURN(const auto found, client_->Range(request, give_up));
  bool has_leader = found.kvs_size() > 0;
  const bool is_own =
      has_leader && options_.earlier_lease != 0 && found.kvs(0).lease() == options_.earlier_lease;
  if (is_own) {
    // An etcd that had no quorum could not take it back, and its next leader gave it its full time
    // once more.
    const absl::Status revoked = client_->Revoke(options_.earlier_lease, give_up);
    if (!revoked.ok() && !absl::IsNotFound(revoked)) return revoked;
    has_leader = false;
  }
  leadership_.Looked(Clock::Real().Now(), has_leader);
  if (has_leader && std::exchange(other_term_, found.kvs(0).create_revision()) != other_term_) {
    spdlog::info("{} leads, in term {}: this daemon stands by", found.kvs(0).value(), other_term_);
  }
  return absl::OkStatus();
}

absl::Status Candidate::Grant(MonotonicTime give_up) {
  const MonotonicTime sent = Clock::Real().Now();
  CONVENE_ASSIGN_OR_RETURN(const auto granted,
                           client_->Grant(absl::ToInt64Seconds(options_.lease), give_up));
  leadership_.Granted(sent, granted.id(), absl::Seconds(granted.ttl()));
  return absl::OkStatus();
}

absl::Status Candidate::Campaign(MonotonicTime give_up) {
  const int64_t lease = leadership_.lease();
  CONVENE_ASSIGN_OR_RETURN(
      const auto response,
      client_->Txn(CampaignRequest(options_.place, lease, options_.name), give_up));
  const std::optional<int64_t> term = TermOf(response, lease);
  leadership_.Campaigned(Clock::Real().Now(), term);
  if (!term.has_value()) return absl::OkStatus();
  tenure_ = std::make_shared<Tenure>(*term, leadership_.until());
  {
    MutexLock lock(&mutex_);
    state_.tenure = tenure_;
    state_.lease = lease;
  }
  options_.on_change();
  return absl::OkStatus();
}

absl::Status Candidate::KeepAlive(MonotonicTime give_up) {
  etcdserverpb::RangeRequest request;
  request.set_key(options_.place.leader());
  // The next daemon waits for a whole lease after the last renewal that etcd heard, whether or not
  // the answer came. So after a failure no renewal goes out before etcd has answered something, and
  // each goes to one member.
  if (std::exchange(is_doubtful_, true)) {
    CONVENE_RETURN_IF_ERROR(client_->Range(request, give_up).status());
  }
  const MonotonicTime sent = Clock::Real().Now();
  CONVENE_ASSIGN_OR_RETURN(
      const auto kept,
      client_->KeepAlive(leadership_.lease(), std::min(give_up, sent + kRenewalPatience)));
  // A leader of etcd that has just been cut off still renews leases. It cannot answer a read, and
  // the next one answers in a higher term.
  CONVENE_ASSIGN_OR_RETURN(const auto proof, client_->Range(request, give_up));
  if (proof.header().raft_term() != kept.header().raft_term()) {
    return absl::UnavailableError("etcd's own leader has changed meanwhile");
  }
  is_doubtful_ = false;
  leadership_.KeptAlive(sent, absl::Seconds(kept.ttl()));
  tenure_->Extend(Clock::Real().Now(), leadership_.until());
  return absl::OkStatus();
}

}  // namespace convene::rendezvous::etcd
