// How a session ends with communicators that others can be made from, and how they are made.
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/comm/nccl/session.h"

namespace convene::worker {
namespace {

// For kernels to see their flag, and for NCCL's threads to end.
constexpr absl::Duration kRevokePatience = absl::Seconds(10);

absl::Status CannotBe(const char* deed, const NcclLibrary& library) {
  return absl::UnimplementedError(
      absl::StrCat("NCCL ", NcclVersionText(library.features.version_code), " cannot ", deed));
}

}  // namespace

bool NcclSession::RevokeAll() {
  if (options_.library->revoke == nullptr || queueing_ >= 0) return false;
  absl::Status status;
  for (const Communicator& communicator : communicators_) {
    status.Update(NcclStatus(options_.library->revoke(*communicator.handle, /*flags=*/0)));
  }
  const MonotonicTime deadline = Clock::Real().Now() + kRevokePatience;
  for (const Communicator& communicator : communicators_) {
    if (!status.ok()) break;
    status = AwaitState(*communicator.handle, deadline, [] { return false; });
  }
  if (!status.ok()) {
    spdlog::warn("NCCL communicators are aborted, because they could not be revoked: {}",
                 std::string(status.message()));
  }
  return status.ok();
}

bool NcclSession::revoked() {
  if (status().ok()) return false;  // and waits for an end that has only begun
  MutexLock lock(&nccl_mutex_);
  return !communicators_.empty();
}

absl::StatusOr<int> NcclSession::MakeFrom(
    NcclSession& parent, int number, MonotonicTime deadline,
    absl::FunctionRef<ncclResult_t(ncclComm_t, ncclComm_t*)> start) {
  CONVENE_CHECK(&parent != this);
  absl::Status status;
  {
    MutexLock parent_lock(&parent.nccl_mutex_);
    MutexLock lock(&nccl_mutex_);
    if (parent.communicators_.empty()) {
      return absl::FailedPreconditionError("its communicators were aborted: make new ones");
    }
    parent.queueing_ = number;
    const Communicator& from = parent.communicators_[number];
    const absl::StatusOr<int> made =
        Make(from.name, *from.handle, deadline,
             [&](ncclComm_t* place) { return start(*from.handle, place); });
    if (made.ok()) {
      parent.queueing_ = -1;
      return made;
    }
    status = made.status();
  }
  // A thread of NCCL's may still be at it, and other ranks wait for this one.
  parent.End({.status = status});
  MutexLock parent_lock(&parent.nccl_mutex_);
  parent.AbortAll();
  return status;
}

absl::StatusOr<int> NcclSession::ShrinkCommunicator(NcclSession& parent, int number,
                                                    const std::vector<int>& lost,
                                                    MonotonicTime deadline) {
  const auto shrink = options_.library->shrink;
  if (shrink == nullptr) return CannotBe("shrink", *options_.library);
  std::vector<int> excluded = lost;  // NCCL sorts it
  return MakeFrom(parent, number, deadline, [&](ncclComm_t from, ncclComm_t* made) {
    return shrink(from, excluded.data(), static_cast<int>(excluded.size()), made,
                  /*config=*/nullptr, /*flags=*/0);
  });
}

absl::StatusOr<int> NcclSession::GrowCommunicator(NcclSession& parent, int number, int size,
                                                  const ncclUniqueId* id, MonotonicTime deadline) {
  const auto grow = options_.library->grow;
  if (grow == nullptr) return CannotBe("grow", *options_.library);
  return MakeFrom(parent, number, deadline, [&](ncclComm_t from, ncclComm_t* made) {
    return grow(from, size, id, /*rank=*/-1, made, /*config=*/nullptr);
  });
}

absl::StatusOr<int> NcclSession::JoinCommunicator(const std::string& name, int size, int rank,
                                                  const ncclUniqueId& id, MonotonicTime deadline) {
  const auto grow = options_.library->grow;
  if (grow == nullptr) return CannotBe("grow", *options_.library);
  MutexLock lock(&nccl_mutex_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return Make(name, nullptr, deadline,
              [&](ncclComm_t* made) { return grow(nullptr, size, &id, rank, made, &config); });
}

absl::StatusOr<ncclUniqueId> NcclSession::GrowId(int number) {
  if (options_.library->grow_id == nullptr) return CannotBe("grow", *options_.library);
  MutexLock lock(&nccl_mutex_);
  ncclUniqueId id;
  CONVENE_RETURN_IF_ERROR(
      NcclStatus(options_.library->grow_id(*communicators_[number].handle, &id)));
  return id;
}

}  // namespace convene::worker
