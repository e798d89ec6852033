// PURE. How a daemon comes to lead, and until when it may believe that it does.
//
//   look ──► the leader's key is there: look again in kBetweenLooks
//    ▲  └──► it is gone: grant (a lease) ──► campaign (put the key, if there is none) ──► lead
//    └──── lost, no lease, or the lease may be over ◄─────────────┘                         │
//                                                   keep the lease alive, 8 times a TTL    ◄┘
//
// A lease is over by etcd's clock some TTL after etcd's last renewal. We count from a moment before
// we sent the request for that renewal, by our own clock, and end a margin earlier: a word that is
// already on its way to a socket then leaves in time.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "rendezvous/etcd/etcd.pb.h"
#include "rendezvous/etcd/place.h"
#include "tools/base/clock.h"

namespace convene::rendezvous::etcd {

enum class Deed { kLook, kGrant, kCampaign, kKeepAlive, kOver };

// One candidacy, which ends with its tenure. Not thread-safe.
class Leadership {
 public:
  static constexpr absl::Duration kBetweenLooks = absl::Milliseconds(200);
  // Before a request without an answer is sent again.
  static constexpr absl::Duration kPause = absl::Milliseconds(100);

  explicit Leadership(MonotonicTime now) : next_at_(now) {}

  struct Next {
    Deed deed;              // kOver: this daemon led, and leads no more
    MonotonicTime at;       // not before
    MonotonicTime give_up;  // an answer after this is of no use
  };
  Next NextDeed(MonotonicTime now);

  // Answers to the deeds. `sent`: a moment before the request.
  void Looked(MonotonicTime now, bool has_leader);
  void Granted(MonotonicTime sent, int64_t lease, absl::Duration ttl);
  // `term`: of our key; none: another daemon's key is there.
  void Campaigned(MonotonicTime now, std::optional<int64_t> term);
  void KeptAlive(MonotonicTime sent, absl::Duration ttl);  // zero: the lease is gone
  // No answer, or an error.
  void Failed(MonotonicTime now);

  int64_t lease() const { return lease_; }        // 0: none
  int64_t term() const { return term_; }          // 0: does not lead
  MonotonicTime until() const { return until_; }  // the end of the tenure, once it leads

 private:
  void Renew(MonotonicTime sent, absl::Duration ttl);
  void LookAgain(MonotonicTime at);

  Deed deed_ = Deed::kLook;
  MonotonicTime next_at_;
  int64_t lease_ = 0;
  int64_t term_ = 0;
  MonotonicTime until_;
};

// The transaction by which a candidate becomes the leader. `name` tells people which daemon leads.
etcdserverpb::TxnRequest CampaignRequest(const Place& place, int64_t lease,
                                         const std::string& name);
// Our term by the answer to it, also when an earlier copy of it was applied; none: another leads.
std::optional<int64_t> TermOf(const etcdserverpb::TxnResponse& response, int64_t lease);

}  // namespace convene::rendezvous::etcd
