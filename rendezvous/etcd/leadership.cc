#include "rendezvous/etcd/leadership.h"

#include <algorithm>
#include <string>

#include "rendezvous/etcd/ledger.h"
#include "tools/base/check.h"

namespace convene::rendezvous::etcd {
namespace {

constexpr int kMarginsPerTtl = 8;
constexpr int kRenewalsPerTtl = 8;
constexpr absl::Duration kPatience = absl::Seconds(3);  // with one deed of a candidate

}  // namespace

Leadership::Next Leadership::NextDeed(MonotonicTime now) {
  const bool is_over = lease_ != 0 && now >= until_;
  if (is_over && term_ != 0) deed_ = Deed::kOver;
  if (is_over && term_ == 0) LookAgain(now);
  const MonotonicTime at = std::max(next_at_, now);
  return {deed_, at, lease_ != 0 ? std::min(until_, at + kPatience) : at + kPatience};
}

void Leadership::LookAgain(MonotonicTime at) {
  deed_ = Deed::kLook;
  lease_ = 0;
  until_ = MonotonicTime();
  next_at_ = at;
}

void Leadership::Renew(MonotonicTime sent, absl::Duration ttl) {
  until_ = std::max(until_, sent + ttl - ttl / kMarginsPerTtl);
  next_at_ = sent + ttl / kRenewalsPerTtl;
}

void Leadership::Looked(MonotonicTime now, bool has_leader) {
  CONVENE_CHECK(deed_ == Deed::kLook);
  if (has_leader) return LookAgain(now + kBetweenLooks);
  deed_ = Deed::kGrant;
  next_at_ = now;
}

void Leadership::Granted(MonotonicTime sent, int64_t lease, absl::Duration ttl) {
  CONVENE_CHECK(deed_ == Deed::kGrant);
  lease_ = lease;
  Renew(sent, ttl);
  deed_ = Deed::kCampaign;
  next_at_ = sent;
}

void Leadership::Campaigned(MonotonicTime now, std::optional<int64_t> term) {
  CONVENE_CHECK(deed_ == Deed::kCampaign);
  if (!term.has_value()) return LookAgain(now + kBetweenLooks);
  term_ = *term;
  deed_ = Deed::kKeepAlive;
  next_at_ = now;
}

void Leadership::KeptAlive(MonotonicTime sent, absl::Duration ttl) {
  CONVENE_CHECK(deed_ == Deed::kKeepAlive);
  if (ttl <= absl::ZeroDuration()) {
    deed_ = Deed::kOver;
  } else {
    Renew(sent, ttl);
  }
}

void Leadership::Failed(MonotonicTime now) {
  if (deed_ == Deed::kGrant) deed_ = Deed::kLook;
  next_at_ = now + kPause;
}

etcdserverpb::TxnRequest CampaignRequest(const Place& place, int64_t lease,
                                         const std::string& name) {
  etcdserverpb::TxnRequest request;
  etcdserverpb::Compare* is_free = request.add_compare();
  is_free->set_target(etcdserverpb::Compare::CREATE);
  is_free->set_key(place.leader());
  is_free->set_create_revision(0);
  etcdserverpb::PutRequest* leader = request.add_success()->mutable_request_put();
  leader->set_key(place.leader());
  leader->set_value(name);
  leader->set_lease(lease);
  etcdserverpb::PutRequest* counter = request.add_success()->mutable_request_put();
  counter->set_key(place.counter());
  counter->set_value(Ledger::FirstCount(lease));
  request.add_failure()->mutable_request_range()->set_key(place.leader());
  return request;
}

std::optional<int64_t> TermOf(const etcdserverpb::TxnResponse& response, int64_t lease) {
  if (response.succeeded()) return response.header().revision();
  if (response.responses_size() != 1) return std::nullopt;
  const auto& found = response.responses(0).response_range();
  if (found.kvs_size() != 1 || found.kvs(0).lease() != lease) return std::nullopt;
  return found.kvs(0).create_revision();
}

}  // namespace convene::rendezvous::etcd
