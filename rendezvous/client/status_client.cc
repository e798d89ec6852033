#include "rendezvous/client/status_client.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/client/ask_in_turn.h"
#include "rendezvous/client/dial.h"
#include "rendezvous/wire/grpc_status.h"
#include "rendezvous/wire/wire.h"
#include "tools/base/clock.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::rendezvous {
namespace {

class GrpcStatusClient final : public StatusClient {
 public:
  GrpcStatusClient(Endpoint endpoint, std::shared_ptr<grpc::Channel> channel)
      : endpoint_(std::move(endpoint)), stub_(pb::Rendezvous::NewStub(std::move(channel))) {}

  absl::StatusOr<std::vector<JobView>> Fetch(const std::string& job_id,
                                             absl::Duration timeout) override {
    const int64_t left_ms = std::max<int64_t>(1, absl::ToInt64Milliseconds(timeout));
    grpc::ClientContext context;
    context.set_deadline(
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(left_ms, GPR_TIMESPAN)));
    pb::StatusRequest request;
    request.set_job_id(Utf8(job_id));
    pb::StatusReply reply;
    const absl::Status asked = FromGrpc(stub_->Status(&context, request, &reply));
    if (asked.ok() || absl::IsNotFound(asked)) has_answered_ = true;
    switch (asked.code()) {
      case absl::StatusCode::kOk:
        break;
      case absl::StatusCode::kNotFound:
        return asked;
      case absl::StatusCode::kDeadlineExceeded:
        return absl::UnavailableError(absl::StrCat(endpoint_.address(), " did not answer in time"));
      case absl::StatusCode::kAborted:  // it leads no more, and says so
        return absl::UnavailableError(asked.message());
      default: {
        if (has_answered_) {
          return absl::UnavailableError(absl::StrCat("lost the daemon at ", endpoint_.address(),
                                                     ": ", std::string(asked.message())));
        }
        const std::string text = absl::StrCat(
            "the program that answers at ", endpoint_.address(), " is no rendezvous daemon",
            endpoint_.is_locked() ? ": " : ", or wants --join-token-file or --tls-cert: ",
            std::string(asked.message()));
        // Of several endpoints another one may be the daemon's.
        return endpoint_.dialling().is_once ? absl::UnavailableError(text)
                                            : absl::FailedPreconditionError(text);
      }
    }
    std::vector<JobView> views;
    for (const pb::JobStatus& job : reply.jobs()) views.push_back(FromWire(job));
    return views;
  }

 private:
  const Endpoint endpoint_;
  const std::unique_ptr<pb::Rendezvous::Stub> stub_;
  bool has_answered_ = false;  // as a daemon
};

}  // namespace

absl::StatusOr<std::unique_ptr<StatusClient>> StatusClient::Open(const Endpoint& endpoint,
                                                                 absl::Duration timeout) {
  CONVENE_ASSIGN_OR_RETURN(Connection connection, Dial(endpoint, Clock::Real().Now() + timeout));
  return std::make_unique<GrpcStatusClient>(endpoint, ChannelOver(std::move(connection), timeout));
}

absl::StatusOr<std::vector<JobView>> FetchStatus(const Endpoint& endpoint,
                                                 const std::string& job_id,
                                                 absl::Duration timeout) {
  absl::StatusOr<std::vector<JobView>> views;
  CONVENE_RETURN_IF_ERROR(
      AskInTurn(endpoint, timeout, [&](const Endpoint& each, absl::Duration share) {
        const MonotonicTime deadline = Clock::Real().Now() + share;
        auto client = StatusClient::Open(each, share);
        if (!client.ok()) return client.status();
        views = (*client)->Fetch(job_id, deadline - Clock::Real().Now());
        return views.status();
      }));
  return views;
}

}  // namespace convene::rendezvous
