#include "rendezvous/client/log_client.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/client/dial.h"
#include "rendezvous/wire/grpc_status.h"
#include "rendezvous/wire/wire.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kLongestWait = absl::Hours(1);

gpr_timespec Timespec(MonotonicTime deadline) {
  const absl::Duration left =
      std::clamp(deadline - Clock::Real().Now(), absl::ZeroDuration(), kLongestWait);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_micros(absl::ToInt64Microseconds(left), GPR_TIMESPAN));
}

class GrpcLogClient final : public LogClient {
 public:
  GrpcLogClient(Endpoint endpoint, std::shared_ptr<grpc::Channel> channel,
                const LogRequest& request)
      : endpoint_(std::move(endpoint)), stub_(pb::Rendezvous::NewStub(std::move(channel))) {
    reader_ = stub_->AsyncWatchLogs(&context_, ToWire(request), &queue_, kStarted);
  }

  ~GrpcLogClient() override {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  absl::StatusOr<std::optional<News>> Next(MonotonicTime deadline) override {
    for (;;) {
      if (end_.has_value()) return *end_;
      void* tag = nullptr;
      bool ok = false;
      const auto outcome = queue_.AsyncNext(&tag, &ok, Timespec(deadline));
      if (outcome == grpc::CompletionQueue::TIMEOUT) {
        if (Clock::Real().Now() < deadline) continue;
        return std::nullopt;
      }
      if (tag == kFinished) {
        end_ = End();
      } else if (!ok) {
        reader_->Finish(&status_, kFinished);
      } else if (tag == kStarted) {
        reader_->Read(&incoming_, kRead);
      } else {
        CONVENE_ASSIGN_OR_RETURN(News news, FromWire(incoming_));
        incoming_.Clear();
        reader_->Read(&incoming_, kRead);
        return std::optional<News>(std::move(news));
      }
    }
  }

 private:
  // The tags that the queue brings back.
  static inline void* const kStarted = reinterpret_cast<void*>(1);
  static inline void* const kRead = reinterpret_cast<void*>(2);
  static inline void* const kFinished = reinterpret_cast<void*>(3);

  absl::Status End() const {
    const absl::Status status = FromGrpc(status_);
    switch (status.code()) {
      case absl::StatusCode::kNotFound:
      case absl::StatusCode::kFailedPrecondition:
      case absl::StatusCode::kInvalidArgument:
        return status;
      case absl::StatusCode::kResourceExhausted:
        return absl::UnavailableError(status.message());
      case absl::StatusCode::kUnimplemented:
        return absl::FailedPreconditionError(
            absl::StrCat("the rendezvous at ", endpoint_.address(),
                         " is too old for `convene logs`, or is no rendezvous"));
      default:
        return absl::UnavailableError(absl::StrCat("the rendezvous at ", endpoint_.address(),
                                                   " is gone (", std::string(status.message()),
                                                   ")"));
    }
  }

  const Endpoint endpoint_;
  const std::unique_ptr<pb::Rendezvous::Stub> stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::ClientAsyncReader<pb::LogNews>> reader_;
  pb::LogNews incoming_;  // of the one read under way
  grpc::Status status_;
  std::optional<absl::Status> end_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LogClient>> LogClient::Open(const Endpoint& endpoint,
                                                           const LogRequest& request,
                                                           absl::Duration timeout) {
  CONVENE_ASSIGN_OR_RETURN(Connection connection, Dial(endpoint, Clock::Real().Now() + timeout));
  return std::make_unique<GrpcLogClient>(endpoint, ChannelOver(std::move(connection), kLogSilence),
                                         request);
}

}  // namespace convene::rendezvous
