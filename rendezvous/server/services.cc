#include "rendezvous/server/services.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/attend/attend_stream.h"
#include "rendezvous/logs/log_streams.h"
#include "rendezvous/web/status_board.h"
#include "rendezvous/wire/grpc_status.h"
#include "rendezvous/wire/wire.h"
#include "tools/base/clock.h"
#include "tools/base/random.h"

namespace convene::rendezvous {
namespace {

// A slice that keeps `text` alive.
grpc::Slice Share(StatusBoard::Text text) {
  auto* const owner = new StatusBoard::Text(std::move(text));
  return grpc::Slice(
      const_cast<char*>((*owner)->data()), (*owner)->size(),
      [](void* held) { delete static_cast<StatusBoard::Text*>(held); }, owner);
}

std::string SerializedStatus(const std::vector<JobView>& views) {
  pb::StatusReply reply;
  for (const JobView& view : views) ToWire(view, reply.add_jobs());
  return reply.SerializeAsString();
}

using ServiceBase = pb::Rendezvous::WithRawCallbackMethod_Status<
    pb::Rendezvous::WithCallbackMethod_Attend<pb::Rendezvous::WithCallbackMethod_WatchLogs<
        pb::Rendezvous::WithCallbackMethod_PublishLogs<pb::Rendezvous::Service>>>>;

class MembersService final : public ServiceBase {
 public:
  MembersService(Daemon* daemon, LogHub* log_hub)
      : daemon_(daemon),
        log_hub_(log_hub),
        incarnation_(RandomU64()),
        board_([daemon](const std::string& job_id) { return daemon->Views(job_id); },
               SerializedStatus, &Clock::Real()) {}

  grpc::ServerBidiReactor<pb::AgentMessage, pb::DaemonMessage>* Attend(
      grpc::CallbackServerContext* context) override {
    return StartAttendStream(daemon_, incarnation_, context);
  }

  grpc::ServerWriteReactor<pb::LogNews>* WatchLogs(grpc::CallbackServerContext* /*context*/,
                                                   const pb::WatchLogsRequest* request) override {
    return WatchStream::Start(log_hub_, *request);
  }

  grpc::ServerBidiReactor<pb::LogBatch, pb::PublishLogsReply>* PublishLogs(
      grpc::CallbackServerContext* /*context*/) override {
    return PublishStream::Start(log_hub_);
  }

  // The reply is encoded once for all callers, since many may be watching a large job.
  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* reply) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(Reply(*request, reply));
    return reactor;
  }

 private:
  grpc::Status Reply(const grpc::ByteBuffer& bytes, grpc::ByteBuffer* reply) {
    pb::StatusRequest request;
    grpc::ByteBuffer copy = bytes;  // reading takes it apart
    const grpc::Status parsed =
        grpc::SerializationTraits<pb::StatusRequest>::Deserialize(&copy, &request);
    if (!parsed.ok()) return parsed;
    absl::StatusOr<StatusBoard::Text> text = board_.Get(request.job_id());
    if (!text.ok()) return ToGrpc(text.status());
    const grpc::Slice slice = Share(*std::move(text));
    *reply = grpc::ByteBuffer(&slice, 1);
    return grpc::Status::OK;
  }

  Daemon* const daemon_;
  LogHub* const log_hub_;
  const Incarnation incarnation_;
  StatusBoard board_;
};

// A call that a reader may not make.
template <typename Request, typename Reply>
class RefusedStream final : public grpc::ServerBidiReactor<Request, Reply> {
 public:
  RefusedStream() {
    this->Finish(grpc::Status(
        grpc::StatusCode::PERMISSION_DENIED,
        "this is the read token, which opens `convene status`, `logs`, `events` and `incidents`: a "
        "node of the run needs the join token"));
  }
  void OnDone() override { delete this; }
};

class ReadersService final : public ServiceBase {
 public:
  ReadersService(Daemon* daemon, LogHub* log_hub) : service_(daemon, log_hub) {}

  grpc::ServerBidiReactor<pb::AgentMessage, pb::DaemonMessage>* Attend(
      grpc::CallbackServerContext* /*context*/) override {
    return new RefusedStream<pb::AgentMessage, pb::DaemonMessage>;
  }

  grpc::ServerWriteReactor<pb::LogNews>* WatchLogs(grpc::CallbackServerContext* context,
                                                   const pb::WatchLogsRequest* request) override {
    return service_.WatchLogs(context, request);
  }

  grpc::ServerBidiReactor<pb::LogBatch, pb::PublishLogsReply>* PublishLogs(
      grpc::CallbackServerContext* /*context*/) override {
    return new RefusedStream<pb::LogBatch, pb::PublishLogsReply>;
  }

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* reply) override {
    return service_.Status(context, request, reply);
  }

 private:
  MembersService service_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeMembersService(Daemon* daemon, LogHub* log_hub) {
  return std::make_unique<MembersService>(daemon, log_hub);
}

std::unique_ptr<grpc::Service> MakeReadersService(Daemon* daemon, LogHub* log_hub) {
  return std::make_unique<ReadersService>(daemon, log_hub);
}

}  // namespace convene::rendezvous
