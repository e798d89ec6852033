#include "worker_runtime/testing/recording_device.h"

#include <cstring>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "tools/base/thread.h"

namespace convene::worker::testing {

class RecordingDevice::NumberedEvent : public Event {
 public:
  explicit NumberedEvent(int number) : number(number) {}
  const int number;
};

// Hears of every op of its stream. An op within another op is part of it.
class RecordingDevice::Recorder : public OpProfile {
 public:
  Recorder(RecordingDevice& device, StreamNumber stream) : device_(device), stream_(stream) {}

  void Begin(const char* op, const OpDetail& /*detail*/) override {
    if (depth_++ > 0) return;
    op_ = op;
    device_.AddStrays();
  }
  void End() override {
    if (--depth_ == 0) device_.AddOp(stream_, op_);
  }
  std::vector<OpTime> Times() override { return {}; }
  void KeepSpans(size_t /*most*/) override {}
  OpSpans TakeSpans() override { return {}; }

 private:
  RecordingDevice& device_;
  const StreamNumber stream_;
  int depth_ = 0;
  const char* op_ = nullptr;
};

// Each call counts as an op of its stream argument.
class RecordingDevice::WatchedCollective final : public Collective {
 public:
  WatchedCollective(RecordingDevice& device, Collective& collective)
      : device_(device), collective_(collective) {}
  ~WatchedCollective() override { AwaitBroadcast(); }

  const std::string& name() const override { return collective_.name(); }
  int rank() const override { return collective_.rank(); }
  int size() const override { return collective_.size(); }
  absl::Status Call(const CollectiveCall& call, Stream& stream) override {
    const absl::Status status = CallRecorded(call, stream);
    device_.calls_.back().collective_bytes = call.output.size_bytes();
    return status;
  }
  absl::StatusOr<PendingMessage> Send(ConstElements data, int peer, Stream& stream) override {
    const OpScope scope(stream, "send");
    return collective_.Send(data, peer, stream);
  }
  absl::Status Wait(PendingMessage pending, Stream& stream) override {
    const OpScope scope(stream, "wait");
    const absl::Status status = collective_.Wait(pending, stream);
    const auto landing = landings_.find(pending.id);
    if (landing == landings_.end()) return status;
    if (status.ok())
      std::memcpy(landing->second.place, landing->second.bytes.data(),
                  landing->second.bytes.size());
    landings_.erase(landing);
    return status;
  }
  absl::StatusOr<PendingMessage> StartRecv(Elements data, int peer, Stream& stream) override {
    const OpScope scope(stream, "recv");
    Landing landing = {data.data, std::vector<char>(data.size_bytes())};
    // From here on the place is the message's.
    std::memcpy(landing.bytes.data(), data.data, landing.bytes.size());
    std::memcpy(data.data, landing.bytes.data(), landing.bytes.size());
    CONVENE_ASSIGN_OR_RETURN(
        const PendingMessage pending,
        collective_.StartRecv({landing.bytes.data(), data.count, data.dtype}, peer, stream));
    landings_.emplace(pending.id, std::move(landing));
    return pending;
  }
  absl::Status Check() override { return collective_.Check(); }
  void Abort(absl::string_view why) override { collective_.Abort(why); }

 private:
  // A message on its way. The peer's thread writes it whenever it comes, beside any op of this
  // rank, which would seem to have touched the place: so it comes to other memory, and into its
  // place within the wait for it.
  struct Landing {
    void* place;
    std::vector<char> bytes;
  };

  absl::Status CallRecorded(const CollectiveCall& call, Stream& stream) {
    const OpScope scope(stream, CollectiveName(call.kind));
    if (device_.NumberOf(stream) != StreamNumber::kCompute) {
      device_.Watch(call.input);
      device_.Watch(call.output);
      if (call.kind == CollectiveKind::kBroadcast && call.root == rank())
        return BroadcastCopy(call);
    }
    AwaitBroadcast();
    return collective_.Call(call, stream);
  }
  // The root has read its data on return. Others may receive a copy of them later: they may wait
  // until then for what the root's compute sends them next.
  absl::Status BroadcastCopy(const CollectiveCall& call) {
    AwaitBroadcast();
    const auto* const data = static_cast<const char*>(call.input.data);
    copy_.assign(data, data + call.input.size_bytes());
    broadcast_ =
        Thread("broadcast", [this, root = call.root,
                             copy = Elements(copy_.data(), call.input.count, call.input.dtype)] {
          Stream stream = Stream::Cpu();
          collective_.Broadcast(copy, root, stream).IgnoreError();  // Check() tells of it
        });
    return absl::OkStatus();
  }
  void AwaitBroadcast() {
    if (broadcast_.joinable()) broadcast_.Join();
  }

  RecordingDevice& device_;
  Collective& collective_;
  std::vector<char> copy_;
  Thread broadcast_;
  std::map<uint64_t, Landing> landings_;  // by the message's id
};

RecordingDevice::RecordingDevice()
    : compute_recorder_(std::make_unique<Recorder>(*this, StreamNumber::kCompute)),
      communication_recorder_(std::make_unique<Recorder>(*this, StreamNumber::kCommunication)),
      layer_recorder_(std::make_unique<Recorder>(*this, StreamNumber::kLayerCommunication)),
      host_recorder_(std::make_unique<Recorder>(*this, StreamNumber::kHost)) {
  compute_.set_profile(compute_recorder_.get());
  communication_.set_profile(communication_recorder_.get());
  layer_communication_.set_profile(layer_recorder_.get());
  host_.set_profile(host_recorder_.get());
}

RecordingDevice::~RecordingDevice() = default;

absl::StatusOr<void*> RecordingDevice::WatchedMemory::Allocate(size_t bytes) {
  CONVENE_ASSIGN_OR_RETURN(void* const data, HostMemory().Allocate(bytes));
  blocks_[static_cast<const char*>(data)] = bytes;
  return data;
}

void RecordingDevice::WatchedMemory::Free(void* data, size_t bytes) {
  watch_.Remove(data, bytes);
  blocks_.erase(static_cast<const char*>(data));
  HostMemory().Free(data, bytes);
}

bool RecordingDevice::WatchedMemory::Holds(const void* data) const {
  const auto* const place = static_cast<const char*>(data);
  const auto after = blocks_.upper_bound(place);
  if (after == blocks_.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return place < begin + bytes;
}

void RecordingDevice::WatchMemory() {
  for (const auto& [begin, bytes] : memory_.blocks()) watch_.Add(const_cast<char*>(begin), bytes);
}

void RecordingDevice::Watch(ConstElements data) {
  watch_.Add(const_cast<void*>(data.data), data.size_bytes());
}

std::unique_ptr<Collective> RecordingDevice::Watched(Collective& collective) {
  return std::make_unique<WatchedCollective>(*this, collective);
}

StreamNumber RecordingDevice::NumberOf(const Stream& stream) const {
  if (stream.profile() == compute_recorder_.get()) return StreamNumber::kCompute;
  if (stream.profile() == host_recorder_.get()) return StreamNumber::kHost;
  return stream.profile() == layer_recorder_.get() ? StreamNumber::kLayerCommunication
                                                   : StreamNumber::kCommunication;
}

void RecordingDevice::AddStrays() {
  std::vector<PageTouch> touches = watch_.Take();
  if (touches.empty()) return;
  calls_.push_back({.kind = StreamCall::Kind::kOp, .op = kNoOp, .touches = std::move(touches)});
}

void RecordingDevice::AddOp(StreamNumber stream, std::string op) {
  calls_.push_back({.kind = StreamCall::Kind::kOp,
                    .stream = stream,
                    .op = std::move(op),
                    .touches = watch_.Take()});
}

void RecordingDevice::AddCall(StreamCall::Kind kind, StreamNumber stream, const Event& event) {
  calls_.push_back(
      {.kind = kind, .stream = stream, .event = static_cast<const NumberedEvent&>(event).number});
}

void RecordingDevice::Zero(void* data, size_t bytes, Stream& stream) {
  const OpScope scope(stream, "zero");
  if (bytes > 0) std::memset(data, 0, bytes);
}

void RecordingDevice::Copy(const void* from, void* to, size_t bytes, Stream& stream) {
  const OpScope scope(stream, "copy");
  for (const void* const end : {from, static_cast<const void*>(to)}) {
    if (staging_.Holds(end)) watch_.Add(const_cast<void*>(end), bytes);
  }
  if (bytes > 0) std::memcpy(to, from, bytes);
}

std::unique_ptr<Event> RecordingDevice::MakeEvent() {
  return std::make_unique<NumberedEvent>(events_++);
}

void RecordingDevice::Record(Event& event, Stream& stream) {
  AddCall(StreamCall::Kind::kRecord, NumberOf(stream), event);
}

void RecordingDevice::Order(Event& event, Stream& stream) {
  AddCall(StreamCall::Kind::kOrder, NumberOf(stream), event);
}

absl::Status RecordingDevice::Wait(Event& event, absl::Duration /*timeout*/) {
  AddCall(StreamCall::Kind::kWait, StreamNumber::kCompute, event);
  return absl::OkStatus();
}

absl::Status RecordingDevice::Synchronize(absl::Duration /*timeout*/) {
  calls_.push_back({.kind = StreamCall::Kind::kSynchronize});
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Graph>> RecordingDevice::Capture(
    Stream& /*stream*/, absl::FunctionRef<absl::Status()> /*work*/) {
  return absl::UnimplementedError("a recording device captures nothing");
}

void RecordingDevice::Launch(Graph& /*graph*/, Stream& /*stream*/) { CONVENE_CHECK(false); }

std::unique_ptr<OpProfile> RecordingDevice::MakeProfile(Stream& /*stream*/) {
  CONVENE_CHECK(false);
}

}  // namespace convene::worker::testing
