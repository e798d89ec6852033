// Calls to etcd, whichever of its members answers.
//
// Each call goes to the member that answered last, and on to the next when that one is away, has no
// leader or says nothing for a second; round and round until its deadline. So a request may be
// applied more than once: send none that must not be.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rendezvous/etcd/etcd.pb.h"
#include "rendezvous/etcd/place.h"
#include "tools/base/clock.h"

namespace convene::rendezvous::etcd {

// Thread-safe; calls block until they are answered or their deadline, on the real clock, is over.
// Errors: Unavailable, naming each member and its reason, when none answered in time;
// FailedPrecondition when none answered before and the programs there speak no v3 of etcd's API;
// ResourceExhausted when etcd has no space left, with what to do; else etcd's own.
class Client {
 public:
  // Over TLS where `tls` names files, which are read now. Errors: the system's, and
  // PermissionDenied where others may read the key; each names the file.
  static absl::StatusOr<std::unique_ptr<Client>> Make(const std::vector<std::string>& members,
                                                      const TlsFiles& tls);
  ~Client();

  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request,
                                                MonotonicTime deadline);
  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request,
                                                    MonotonicTime deadline);
  // A request that is sent twice leaves a lease behind that nobody keeps alive.
  absl::StatusOr<etcdserverpb::LeaseGrantResponse> Grant(int64_t ttl_seconds,
                                                         MonotonicTime deadline);
  // TTL: the lease's seconds from now on; 0 when there is no such lease.
  absl::StatusOr<etcdserverpb::LeaseKeepAliveResponse> KeepAlive(int64_t lease,
                                                                 MonotonicTime deadline);
  absl::Status Revoke(int64_t lease, MonotonicTime deadline);

 private:
  struct Member;
  explicit Client(std::vector<std::unique_ptr<Member>> members);

  // `ask(member, context)` is one try; it returns gRPC's status.
  template <typename Ask>
  absl::Status GoRound(MonotonicTime deadline, const Ask& ask);

  const std::vector<std::unique_ptr<Member>> members_;
  std::atomic<size_t> current_ = 0;  // the member that answered last
  std::atomic<bool> was_answered_ = false;
};

}  // namespace convene::rendezvous::etcd
