#include "worker_runtime/profile/trace_gather.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

constexpr int kRoundTrips = 16;
constexpr size_t kPieceBytes = 1 << 20;

// Bytes on their way: a message's type says its size alone.
Elements Bytes(void* data, size_t size) { return {data, size, DType::kE4M3}; }

absl::Status Send(Collective& host, int peer, const void* data, size_t size) {
  Stream stream = Stream::Cpu();
  CONVENE_ASSIGN_OR_RETURN(const PendingMessage message,
                           host.Send(Bytes(const_cast<void*>(data), size), peer, stream));
  return host.Wait(message, stream);
}

absl::Status Receive(Collective& host, int peer, void* data, size_t size) {
  Stream stream = Stream::Cpu();
  CONVENE_ASSIGN_OR_RETURN(const PendingMessage message,
                           host.StartRecv(Bytes(data, size), peer, stream));
  return host.Wait(message, stream);
}

// The part of rank 0: `peer` asks for the time by rank 0's clock; then come its events.
absl::Status Serve(Clock& clock, Collective& host, int peer,
                   absl::FunctionRef<void(absl::string_view)> write) {
  char question = 0;
  for (int i = 0; i < kRoundTrips; ++i) {
    CONVENE_RETURN_IF_ERROR(Receive(host, peer, &question, sizeof(question)));
    const int64_t now_ns = absl::ToInt64Nanoseconds(clock.Now().since_epoch());
    CONVENE_RETURN_IF_ERROR(Send(host, peer, &now_ns, sizeof(now_ns)));
  }
  uint64_t size = 0;
  CONVENE_RETURN_IF_ERROR(Receive(host, peer, &size, sizeof(size)));
  std::string piece;
  for (uint64_t done = 0; done < size; done += piece.size()) {
    piece.resize(std::min<uint64_t>(kPieceBytes, size - done));
    CONVENE_RETURN_IF_ERROR(Receive(host, peer, piece.data(), piece.size()));
    write(piece);
  }
  return absl::OkStatus();
}

absl::Status Deliver(const RankTrace& trace, Clock& clock, Collective& host) {
  std::vector<RoundTrip> trips;
  for (int i = 0; i < kRoundTrips; ++i) {
    const char question = 0;
    RoundTrip trip{.sent = clock.Now()};
    CONVENE_RETURN_IF_ERROR(Send(host, 0, &question, sizeof(question)));
    int64_t other_ns = 0;
    CONVENE_RETURN_IF_ERROR(Receive(host, 0, &other_ns, sizeof(other_ns)));
    trip.received = clock.Now();
    trip.other = MonotonicTime::FromEpoch(absl::Nanoseconds(other_ns));
    trips.push_back(trip);
  }
  const std::string events = TraceEvents(trace, OffsetBy(trips));
  const uint64_t size = events.size();
  CONVENE_RETURN_IF_ERROR(Send(host, 0, &size, sizeof(size)));
  for (size_t done = 0; done < events.size(); done += kPieceBytes) {
    const size_t piece = std::min(kPieceBytes, events.size() - done);
    CONVENE_RETURN_IF_ERROR(Send(host, 0, events.data() + done, piece));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status GatherTrace(const RankTrace& trace, Clock& clock, Collective& host,
                         absl::FunctionRef<void(absl::string_view)> write) {
  if (host.rank() != 0) return Deliver(trace, clock, host);
  write(kTraceHead);
  const std::string own = TraceEvents(trace, {});
  for (size_t done = 0; done < own.size(); done += kPieceBytes) {
    write(absl::string_view(own).substr(done, kPieceBytes));
  }
  for (int peer = 1; peer < host.size(); ++peer) {
    write(kTraceBetween);
    CONVENE_RETURN_IF_ERROR(Serve(clock, host, peer, write));
  }
  write(kTraceEnd);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Open(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(UniqueFd file,
                           OpenFile(absl::StrCat(path, ".tmp"), O_WRONLY | O_CREAT | O_TRUNC));
  return std::unique_ptr<TraceFile>(new TraceFile(path, std::move(file)));
}

TraceFile::~TraceFile() {
  if (file_.valid()) unlink(absl::StrCat(path_, ".tmp").c_str());
}

void TraceFile::Write(absl::string_view piece) {
  if (status_.ok()) status_ = WriteAll(file_.get(), piece, path_);
}

absl::Status TraceFile::Finish() {
  if (status_.ok()) status_ = RenameFile(absl::StrCat(path_, ".tmp"), path_);
  if (status_.ok()) file_ = UniqueFd();
  return status_;
}

}  // namespace convene::worker
