#include "worker_runtime/comm/gloo_wire.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gloo/transport/context.h"
#include "gloo/transport/unbound_buffer.h"
#include "tools/base/check.h"

namespace convene::worker {
namespace {

// Waits end by WaitWatch or Abort, never by gloo's own timeout (see wait_watch.h).
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

}  // namespace

GlooWire::GlooWire(std::shared_ptr<GlooMesh> mesh, std::vector<int> members, int group_id)
    : mesh_(std::move(mesh)),
      members_(std::move(members)),
      rank_(static_cast<int>(std::find(members_.begin(), members_.end(), mesh_->rank()) -
                             members_.begin())),
      group_id_(group_id),
      peers_(members_.size()) {
  CONVENE_CHECK(rank_ < size());
  CONVENE_CHECK(group_id >= 0 && group_id < (1 << 16));
  // Each buffer spans the whole address space: a message's memory is its offset, and no buffer is
  // made per message.
  const auto whole_memory = [this] {
    return mesh_->context_->createUnboundBuffer(nullptr, std::numeric_limits<size_t>::max());
  };
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    for (Buffers& buffers : peers_[peer].lanes) {
      buffers = {.receive = whole_memory(), .send = whole_memory()};
    }
  }
  place_.wake = [this] {
    MutexLock lock(&mutex_);
    if (waiting_receive_ != nullptr) waiting_receive_->abortWaitRecv();
    if (waiting_send_ != nullptr) waiting_send_->abortWaitSend();
  };
}

GlooWire::~GlooWire() { Withdraw(absl::OkStatus()); }

uint64_t GlooWire::SlotOf(const MessageTag& tag) const {
  CONVENE_CHECK(tag.size_bytes <= std::numeric_limits<uint32_t>::max());
  return group_id_ << 48 | static_cast<uint64_t>(tag.lane) << 47 |
         static_cast<uint64_t>(tag.sequence & 0x7FFF) << 32 | tag.size_bytes;
}

std::string GlooWire::NameOf(int peer) const {
  return absl::StrCat("rank ", peer, " (global rank ", members_[peer], ")");
}

absl::Status GlooWire::Broken(int peer, const std::exception& error) const {
  const absl::Status reason = mesh_->hang_up_reason();
  return absl::UnavailableError(reason.ok() ? absl::StrCat(NameOf(peer), ": ", error.what())
                                            : absl::StrCat("after ", reason.message()));
}

absl::Status GlooWire::CheckOpen() {
  MutexLock lock(&mutex_);
  return aborted_;
}

absl::Status GlooWire::PostReceive(int peer, const MessageTag& tag, void* data) {
  try {
    BuffersOf(peer, tag.lane)
        .receive->recv(members_[peer], SlotOf(tag), reinterpret_cast<uintptr_t>(data),
                       tag.size_bytes);
  } catch (const std::exception& error) {
    return Broken(peer, error);
  }
  return absl::OkStatus();
}

absl::Status GlooWire::PostSend(int peer, const MessageTag& tag, const void* data) {
  try {
    BuffersOf(peer, tag.lane)
        .send->send(members_[peer], SlotOf(tag), reinterpret_cast<uintptr_t>(data), tag.size_bytes);
  } catch (const std::exception& error) {
    return Broken(peer, error);
  }
  return absl::OkStatus();
}

absl::Status GlooWire::AwaitReceive(int peer, Lane lane, const WaitLimit& limit) {
  return Await(peer, *BuffersOf(peer, lane).receive, /*receive=*/true, limit);
}

absl::Status GlooWire::AwaitSend(int peer, Lane lane, const WaitLimit& limit) {
  return Await(peer, *BuffersOf(peer, lane).send, /*receive=*/false, limit);
}

absl::Status GlooWire::Await(int peer, Buffer& buffer, bool receive, const WaitLimit& limit) {
  {
    MutexLock lock(&mutex_);
    if (!aborted_.ok()) return aborted_;
    (receive ? waiting_receive_ : waiting_send_) = &buffer;
  }
  mesh_->watch_.Arm(&place_, limit.since, limit.deadline);
  absl::Status status;
  try {
    if (receive) {
      buffer.waitRecv(kForever);
    } else {
      buffer.waitSend(kForever);
    }
  } catch (const std::exception& error) {
    status = Broken(peer, error);
  }
  // Both orders of the two locks below are free of each other: the watch's thread takes ours inside
  // its own, we never do so the other way round.
  const bool too_late = mesh_->watch_.Disarm(&place_);
  MutexLock lock(&mutex_);
  waiting_receive_ = nullptr;
  waiting_send_ = nullptr;
  if (!aborted_.ok()) return aborted_;
  if (!status.ok()) return status;
  if (too_late) {
    return absl::DeadlineExceededError(absl::StrCat(NameOf(peer), " did not answer in time"));
  }
  return absl::OkStatus();
}

void GlooWire::Withdraw(const absl::Status& hang_up) {
  // A buffer's destructor waits until gloo's thread has let go of it.
  for (Peer& peer : peers_) peer = Peer();
  if (!hang_up.ok()) mesh_->HangUp(hang_up);
}

void GlooWire::Abort(const absl::Status& why) {
  MutexLock lock(&mutex_);
  if (aborted_.ok()) aborted_ = why;
  if (waiting_receive_ != nullptr) waiting_receive_->abortWaitRecv();
  if (waiting_send_ != nullptr) waiting_send_->abortWaitSend();
}

}  // namespace convene::worker
