// Functions of this process's NCCL library that not every usable version has.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>

#include "worker_runtime/comm/nccl/features.h"

namespace convene::worker {

// Looked up, not linked: a program linked against a newer library would not start with an older
// one. Null: this library has it not, or not to be trusted (features.h). A value, so that tests put
// their own in. Types as in nccl.h from the version on that brought each; ours may be older.
struct NcclLibrary {
  NcclFeatures features;  // false where the library lacks the function

  ncclResult_t (*all_to_all)(const void* input, void* output, size_t count, ncclDataType_t type,
                             ncclComm_t communicator, cudaStream_t stream) = nullptr;
  // Stops what runs, and returns; the communicator's state says when all is quiet. `flags`: 0.
  ncclResult_t (*revoke)(ncclComm_t communicator, int flags) = nullptr;
  // *made stays null until the parent's state is no longer "in progress". `flags`: 0.
  ncclResult_t (*shrink)(ncclComm_t communicator, int* excluded, int excluded_count,
                         ncclComm_t* made, ncclConfig_t* config, int flags) = nullptr;
  // The id of a communicator that will grow, from one of its ranks, for one grow.
  ncclResult_t (*grow_id)(ncclComm_t communicator, ncclUniqueId* id) = nullptr;
  // Ranks that are there already: their communicator, and -1 for the rank; the one that made the id
  // gives it too. New ones: null, the id, and the rank they become.
  ncclResult_t (*grow)(ncclComm_t communicator, int size, const ncclUniqueId* id, int rank,
                       ncclComm_t* made, ncclConfig_t* config) = nullptr;

  // The process's own, looked up at the first call.
  static const NcclLibrary& OfProcess();
};

}  // namespace convene::worker
