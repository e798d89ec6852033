#include "rendezvous/etcd/client.h"

#include <algorithm>
#include <climits>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "grpcpp/grpcpp.h"
#include "rendezvous/etcd/etcd.grpc.pb.h"
#include "rendezvous/lock/secret_file.h"
#include "rendezvous/net/grpc_setup.h"
#include "rendezvous/wire/grpc_status.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous::etcd {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(1);             // with one member
constexpr absl::Duration kBetweenRounds = absl::Milliseconds(50);  // when no member answered
constexpr int kFirstReconnectMs = 100;
constexpr int kLongestReconnectMs = 500;
constexpr size_t kLargestKeyFile = 64 * 1024;

// Of errors that say nothing about the request: another member, or the same one later, may answer.
bool IsPassing(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnknown:  // "context deadline exceeded": without a leader
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kInternal:    // a program that is no etcd
    case absl::StatusCode::kOutOfRange:  // a revision that this member has not seen yet
      return true;
    default:
      return false;
  }
}

gpr_timespec DeadlineIn(absl::Duration wait) {
  // Not less: a try that ends before its call's deadline would be followed by one of no time.
  const int64_t wait_ms =
      std::max<int64_t>(1, absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1))));
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(wait_ms, GPR_TIMESPAN));
}

// gRPC's words for bytes that are no HTTP/2.
bool IsNoHttp2(const absl::Status& status) {
  return absl::StrContains(status.message(), "Failed parsing HTTP/2") ||
         absl::StrContains(status.message(), "Trying to connect an http1.x server");
}

// Why a member is passed over.
std::string ReasonOf(const absl::Status& status) {
  if (absl::IsDeadlineExceeded(status)) return "does not answer";
  if (absl::IsUnimplemented(status)) return "does not speak version 3 of etcd's API";
  if (IsNoHttp2(status)) {
    return "does not speak version 3 of etcd's API over HTTP/2: an etcd of version 2 is there, or "
           "one that wants TLS, or another program";
  }
  return std::string(status.message());
}

absl::Status WithAdvice(const absl::Status& status, const std::string& member) {
  if (absl::IsUnimplemented(status)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the program at ", member,
                     " does not speak version 3 of etcd's API: start an "
                     "etcd of version 3.4 or later, or correct the address"));
  }
  if (absl::IsResourceExhausted(status)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("etcd takes no more: ", status.message(),
                     ". Where its space is full: etcdctl compact REVISION, etcdctl defrag, etcdctl "
                     "alarm disarm; "
                     "and start it with --auto-compaction-retention"));
  }
  return status;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CredentialsOf(const TlsFiles& tls) {
  if (tls.ca.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  CONVENE_ASSIGN_OR_RETURN(options.pem_root_certs, ReadFile(tls.ca));
  if (!tls.cert.empty()) {
    CONVENE_ASSIGN_OR_RETURN(options.pem_cert_chain, ReadFile(tls.cert));
    CONVENE_ASSIGN_OR_RETURN(options.pem_private_key,
                             ReadSecretFile(tls.key, "the private key for etcd", kLargestKeyFile));
  }
  return grpc::SslCredentials(options);
}

}  // namespace

struct Client::Member {
  Member(const std::string& its_address,
         const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : address(its_address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(INT_MAX);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kLongestReconnectMs);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestReconnectMs);
    // Another client of the same address, the next candidate, gets a connection of its own.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    channel = grpc::CreateCustomChannel(address, credentials, arguments);
    kv = etcdserverpb::KV::NewStub(channel);
    lease = etcdserverpb::Lease::NewStub(channel);
  }

  const std::string address;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<etcdserverpb::KV::Stub> kv;
  std::unique_ptr<etcdserverpb::Lease::Stub> lease;
};

absl::StatusOr<std::unique_ptr<Client>> Client::Make(const std::vector<std::string>& members,
                                                     const TlsFiles& tls) {
  SetUpGrpc();
  CONVENE_ASSIGN_OR_RETURN(const auto credentials, CredentialsOf(tls));
  std::vector<std::unique_ptr<Member>> made;
  for (const std::string& address : members) {
    made.push_back(std::make_unique<Member>(address, credentials));
  }
  return std::unique_ptr<Client>(new Client(std::move(made)));
}

Client::Client(std::vector<std::unique_ptr<Member>> members) : members_(std::move(members)) {}

Client::~Client() = default;

template <typename Ask>
absl::Status Client::GoRound(MonotonicTime deadline, const Ask& ask) {
  std::vector<std::string> reasons(members_.size(), "was not asked in time");
  std::set<size_t> strangers;  // that are no etcd
  std::set<size_t> others;     // of which the newest try says so, or shows no HTTP/2
  for (size_t tries = 1;; ++tries) {
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) break;
    const size_t index = current_ % members_.size();
    Member& member = *members_[index];
    grpc::ClientContext context;
    context.set_deadline(DeadlineIn(std::min(left, kPatience)));
    const absl::Status status = FromGrpc(ask(member, &context));
    const bool is_stranger = absl::IsUnimplemented(status);
    if (is_stranger) strangers.insert(index);
    const bool may_go_on =
        IsPassing(status.code()) || (is_stranger && strangers.size() < members_.size());
    if (status.ok()) was_answered_ = true;
    if (!may_go_on) return WithAdvice(status, member.address);
    if (is_stranger || IsNoHttp2(status)) {
      others.insert(index);
    } else {
      others.erase(index);
    }
    reasons[index] = ReasonOf(status);
    // Another thread may have gone on meanwhile.
    size_t expected = index;
    current_.compare_exchange_strong(expected, (index + 1) % members_.size());
    // gRPC goes on with a connection only while a thread waits for it, and a call to a member that
    // was refused before does not wait: without this no handshake of TLS would come to its end.
    const absl::Duration pause = std::min(left, kBetweenRounds);
    const bool is_connected =
        member.channel->WaitForConnected(DeadlineIn(pause / static_cast<int64_t>(members_.size())));
    if (is_connected && tries % members_.size() == 0) Clock::Real().SleepFor(pause);
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    reasons[i] = absl::StrCat(members_[i]->address, ": ", reasons[i]);
  }
  const std::string why = absl::StrJoin(reasons, "; ");
  // To an etcd that was there once, a proxy may show another program for a while.
  if (others.size() == members_.size() && !was_answered_) {
    return absl::FailedPreconditionError(
        absl::StrCat("no etcd of version 3.4 or later is there (", why, ")"));
  }
  return absl::UnavailableError(absl::StrCat("no member of etcd answers (", why, ")"));
}

absl::StatusOr<etcdserverpb::TxnResponse> Client::Txn(const etcdserverpb::TxnRequest& request,
                                                      MonotonicTime deadline) {
  etcdserverpb::TxnResponse response;
  const absl::Status status = GoRound(deadline, [&](Member& member, grpc::ClientContext* context) {
    return member.kv->Txn(context, request, &response);
  });
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<etcdserverpb::RangeResponse> Client::Range(const etcdserverpb::RangeRequest& request,
                                                          MonotonicTime deadline) {
  etcdserverpb::RangeResponse response;
  const absl::Status status = GoRound(deadline, [&](Member& member, grpc::ClientContext* context) {
    return member.kv->Range(context, request, &response);
  });
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<etcdserverpb::LeaseGrantResponse> Client::Grant(int64_t ttl_seconds,
                                                               MonotonicTime deadline) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(ttl_seconds);
  etcdserverpb::LeaseGrantResponse response;
  const absl::Status status = GoRound(deadline, [&](Member& member, grpc::ClientContext* context) {
    return member.lease->LeaseGrant(context, request, &response);
  });
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<etcdserverpb::LeaseKeepAliveResponse> Client::KeepAlive(int64_t lease,
                                                                       MonotonicTime deadline) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse response;
  // One request and one answer a stream: a stream that lasts would have to be watched for silence.
  const absl::Status status = GoRound(deadline, [&](Member& member, grpc::ClientContext* context) {
    const auto stream = member.lease->LeaseKeepAlive(context);
    const bool is_answered = stream->Write(request) && stream->Read(&response);
    if (is_answered) context->TryCancel();
    const grpc::Status ended = stream->Finish();
    if (is_answered) return grpc::Status::OK;
    return ended.ok() ? grpc::Status(grpc::UNAVAILABLE, "the stream ended without an answer")
                      : ended;
  });
  if (!status.ok()) return status;
  return response;
}

absl::Status Client::Revoke(int64_t lease, MonotonicTime deadline) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseRevokeResponse response;
  return GoRound(deadline, [&](Member& member, grpc::ClientContext* context) {
    return member.lease->LeaseRevoke(context, request, &response);
  });
}

}  // namespace convene::rendezvous::etcd
