// The names that an agent and its workers share: environment variables and session words.
#pragma once

namespace convene::contract {

// torchrun's environment; README.md of this folder says what convene-train takes from it.
inline constexpr char kRank[] = "RANK";
inline constexpr char kLocalRank[] = "LOCAL_RANK";
inline constexpr char kGroupRank[] = "GROUP_RANK";
inline constexpr char kRoleRank[] = "ROLE_RANK";
inline constexpr char kRoleName[] = "ROLE_NAME";
inline constexpr char kWorldSize[] = "WORLD_SIZE";
inline constexpr char kLocalWorldSize[] = "LOCAL_WORLD_SIZE";
inline constexpr char kGroupWorldSize[] = "GROUP_WORLD_SIZE";
inline constexpr char kRoleWorldSize[] = "ROLE_WORLD_SIZE";
inline constexpr char kMasterAddr[] = "MASTER_ADDR";
inline constexpr char kMasterPort[] = "MASTER_PORT";
inline constexpr char kRestartCount[] = "TORCHELASTIC_RESTART_COUNT";
inline constexpr char kMaxRestarts[] = "TORCHELASTIC_MAX_RESTARTS";
inline constexpr char kRunId[] = "TORCHELASTIC_RUN_ID";
inline constexpr char kUseAgentStore[] = "TORCHELASTIC_USE_AGENT_STORE";
inline constexpr char kErrorFile[] = "TORCHELASTIC_ERROR_FILE";
inline constexpr char kTimerFile[] = "TORCHELASTIC_TIMER_FILE";
inline constexpr char kNcclAsyncErrorHandling[] = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
inline constexpr char kOmpNumThreads[] = "OMP_NUM_THREADS";

// Our own variables: the group's generation, how many generations this run of the job had before,
// and a Unix stream socket of the agent (absent under torchrun).
inline constexpr char kEpoch[] = "CONVENE_EPOCH";
inline constexpr char kAttempt[] = "CONVENE_ATTEMPT";
inline constexpr char kSession[] = "CONVENE_SESSION";
// Marks every process that an agent's workers start, so that the agent finds and ends it. Workers
// do not use it.
inline constexpr char kAgentToken[] = "CONVENE_AGENT_TOKEN";
// "1" when the agent's stdout is a terminal: workers' progress lines may be redrawn in place.
inline constexpr char kTerminal[] = "CONVENE_TERMINAL";
// Where the agent has chosen OMP_NUM_THREADS: the threads for arithmetic of the host alone, beside
// a GPU or before the first step. They are this worker's share of the node's CPUs.
inline constexpr char kHostThreads[] = "CONVENE_HOST_THREADS";

// Path of this worker's progress page (progress_page.h): a file of 4096 bytes for it to map.
inline constexpr char kProgress[] = "CONVENE_PROGRESS";
// Path of a file of memory that the agent holds for all workers of its node, from epoch to epoch,
// the node's topology label, and the most nodes that the job may have.
inline constexpr char kMemory[] = "CONVENE_MEMORY";
inline constexpr char kTopology[] = "CONVENE_TOPOLOGY";
inline constexpr char kMaxNodes[] = "CONVENE_MAX_NODES";
// The worker's number on its node, for --virtual-local-rank, where LOCAL_RANK is 0 for all workers.
inline constexpr char kNodeLocalRank[] = "CONVENE_LOCAL_RANK";
// Asks a worker's program to tell what makes it warm, or to be the parent of spares: "record" or
// "parent", then ':' and the agent's socket, then ':' and what agent/warm adds for Python.
inline constexpr char kWarm[] = "CONVENE_WARM";
inline constexpr char kCudaVisibleDevices[] = "CUDA_VISIBLE_DEVICES";
inline constexpr char kHipVisibleDevices[] = "HIP_VISIBLE_DEVICES";

// The session: the worker connects to CONVENE_SESSION and sends "hello <local_rank> <epoch>\n";
// from then on the agent may send lines.
inline constexpr char kSessionHello[] = "hello";
// "leave": the worker's last word; its process becomes a program that may know no session. (A
// worker that just ends says nothing.)
inline constexpr char kSessionLeave[] = "leave";
// "abort <why>": a peer is gone; end at once with exit code 75.
inline constexpr char kSessionAbort[] = "abort";
// "checkpoint <why>": finish the step, save, end with exit code 75.
inline constexpr char kSessionCheckpoint[] = "checkpoint";

}  // namespace convene::contract
