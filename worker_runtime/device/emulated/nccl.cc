// NCCL's calls between threads, whose GPUs are emulated. A call on a communicator is "in progress"
// until its caller has asked about it, and only then stands in its stream: a caller that does not
// ask waits for ever.
#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker_runtime/device/emulated/nccl_meeting.h"

namespace convene::emulated {
namespace {

// How often a caller is told that a call is in progress.
constexpr int kAsks = 2;
constexpr size_t kGranularity = size_t{2} << 20;  // of ncclMemAlloc
// From this version on, operations on windows look whether they are aborted.
constexpr int kAbortsWindows = 22907;

// Of CONVENE_EMULATED_NCCL_VERSION ("22809"); else the header's.
int Version() {
  const char* const value = std::getenv("CONVENE_EMULATED_NCCL_VERSION");
  return value == nullptr ? NCCL_VERSION_CODE : std::atoi(value);
}

// The lane of collectives; a message's lane is its sender's and receiver's ranks.
constexpr std::pair<int, int> kCollectives = {-1, -1};
using Lane = std::pair<int, int>;

// Memory of one rank that all ranks of the communicator reach.
struct Window {
  const char* base = nullptr;
  size_t bytes = 0;

  bool Holds(const void* data) const {
    return std::less_equal<>()(base, static_cast<const char*>(data)) &&
           std::less<>()(static_cast<const char*>(data), base + bytes);
  }
};

// The state that the communicators of one id share.
struct Clique {
  std::vector<int> devices;  // by rank; -1: the rank is not here yet
  int joined = 0;
  int ended = 0;                             // finalized or aborted
  std::vector<std::vector<Window>> windows;  // by rank
  std::vector<size_t> windows_made;          // by rank, also those that are given back
  // Those that not all ends have queued, by lane and number.
  std::map<std::pair<Lane, uint64_t>, std::shared_ptr<Meeting>> open;
};

// An end that a call brings to a meeting.
struct Transfer {
  Lane lane;
  size_t place = 0;
  size_t ends = 0;
  Task task;
  const void* from = nullptr;
  void* to = nullptr;
};

struct Call {
  std::shared_ptr<MeetingKernel> kernel;
  std::vector<Transfer> transfers;
};

struct Library {
  uint64_t ids = 0;
  std::map<uint64_t, std::weak_ptr<Clique>> cliques;
  std::set<ncclComm_t> live;
};
// Guarded by the state's mutex.
Library& TheLibrary() {
  static auto* const library = new Library;
  return *library;
}

struct Group {
  int depth = 0;
  std::map<ncclComm_t, Call> calls;
  std::vector<ncclComm_t> aborted;
};
Group& ThisThreadsGroup() {
  thread_local Group group;
  return group;
}

std::string& LastWords() {
  thread_local std::string words;
  return words;
}
ncclResult_t Refuse(ncclResult_t result, std::string why) {
  LastWords() = std::move(why);
  return result;
}

}  // namespace
}  // namespace convene::emulated

struct ncclComm {
  std::shared_ptr<convene::emulated::Clique> clique;
  int rank = 0;
  int device = 0;
  int asks_left = convene::emulated::kAsks;
  bool is_finalized = false;
  std::shared_ptr<bool> is_aborted = std::make_shared<bool>(false);
  std::vector<convene::emulated::Call> calls;  // not in their streams yet
  std::vector<std::weak_ptr<convene::emulated::MeetingKernel>> queued;
  std::map<std::pair<convene::emulated::Lane, size_t>, uint64_t> counts;  // by lane and place
  std::set<void*> registered;

  int size() const { return static_cast<int>(clique->devices.size()); }
};

namespace convene::emulated {
namespace {

bool IsLive(ncclComm_t communicator) { return TheLibrary().live.count(communicator) > 0; }

// Through windows a rank reads and writes another rank's data at the offset of its own. `data`: one
// pointer a rank.
void CheckOffsets(const Clique& clique, const std::vector<const void*>& data) {
  const auto is_window = [&](size_t rank, size_t i) {
    return clique.windows[rank].size() > i && clique.windows[rank][i].Holds(data[rank]);
  };
  for (size_t i = 0; i < clique.windows[0].size(); ++i) {
    size_t holders = 0;
    bool is_alike = true;
    const auto offset = [&](size_t rank) {
      return static_cast<const char*>(data[rank]) - clique.windows[rank][i].base;
    };
    for (size_t rank = 0; rank < data.size(); ++rank) {
      if (!is_window(rank, i)) continue;
      ++holders;
      is_alike = is_alike && is_window(0, i) && offset(rank) == offset(0) &&
                 clique.windows[rank][i].bytes == clique.windows[0][i].bytes;
    }
    if (holders > 0 && (holders < data.size() || !is_alike)) {
      Fail("NCCL: the ranks' data lies at different offsets of a symmetric window");
    }
  }
}

void CheckOffsets(const Clique& clique, const Meeting& meeting) {
  const Deed deed = meeting.task.deed;
  if (deed == Deed::kMessage) return;
  std::vector<const void*> from;
  std::vector<const void*> to;
  for (const Meeting::End& end : meeting.ends) {
    from.push_back(end.from);
    to.push_back(end.to);
  }
  if (deed != Deed::kAllGather) CheckOffsets(clique, from);
  if (deed != Deed::kReduceScatter) CheckOffsets(clique, to);
}

// Whether an end of a collective lies in a window of its rank.
bool UsesWindow(const ncclComm& communicator, const Transfer& transfer) {
  const std::vector<Window>& windows = communicator.clique->windows[communicator.rank];
  return transfer.task.deed != Deed::kMessage &&
         std::any_of(windows.begin(), windows.end(), [&](const Window& window) {
           return window.Holds(transfer.from) || window.Holds(transfer.to);
         });
}

// Puts a call into its stream, which keeps a copy.
void Queue(ncclComm& communicator, const Call& call) {
  Clique& clique = *communicator.clique;
  for (const Transfer& transfer : call.transfers) {
    const uint64_t number = communicator.counts[{transfer.lane, transfer.place}]++;
    std::shared_ptr<Meeting>& meeting = clique.open[{transfer.lane, number}];
    if (meeting == nullptr) {
      meeting = std::make_shared<Meeting>();
      meeting->task = transfer.task;
      meeting->ends.resize(transfer.ends);
      meeting->first_gpu = clique.devices.front();
    }
    // A GPU would hang here, or take bytes for others.
    if (meeting->task != transfer.task) {
      Fail(absl::StrCat("NCCL: rank ", communicator.rank, " of ", communicator.size(),
                        " calls for another operation, count or type than another rank: operation ",
                        static_cast<int>(transfer.task.deed), " with ", transfer.task.count,
                        " elements meets operation ", static_cast<int>(meeting->task.deed),
                        " with ", meeting->task.count));
    }
    meeting->ends[transfer.place] = {call.kernel, transfer.from, transfer.to};
    if (UsesWindow(communicator, transfer) && Version() < kAbortsWindows) {
      call.kernel->hears_aborts = false;
    }
    call.kernel->meetings.push_back(meeting);
    const bool is_complete =
        std::all_of(meeting->ends.begin(), meeting->ends.end(),
                    [](const Meeting::End& end) { return end.kernel != nullptr; });
    if (!is_complete) continue;
    CheckOffsets(clique, *meeting);
    clique.open.erase({transfer.lane, number});
  }
  communicator.queued.push_back(call.kernel);
  (void)Enqueue(call.kernel->stream, {.kind = Operation::Kind::kMeeting,
                                      .meet = [kernel = call.kernel] { return Meet(*kernel); }});
  TheState().changed.SignalAll();
}

bool IsInProgress(ncclComm& communicator) {
  if (communicator.asks_left > 0 && --communicator.asks_left > 0) return true;
  for (Call& call : std::exchange(communicator.calls, {})) Queue(communicator, call);
  std::erase_if(communicator.queued, [](const auto& kernel) { return kernel.expired(); });
  const Clique& clique = *communicator.clique;
  if (clique.joined < communicator.size()) return true;
  const size_t windows = clique.windows_made[communicator.rank];
  for (const size_t others : clique.windows_made) {
    if (others < windows) return true;
  }
  return communicator.is_finalized &&
         (clique.ended < communicator.size() || !communicator.queued.empty());
}

// Adds an end to the calling thread's group, or makes it a call of its own.
ncclResult_t Add(ncclComm_t communicator, cudaStream_t stream, const Transfer& transfer) {
  const MutexLock lock(&TheState().mutex);
  if (!IsLive(communicator) || *communicator->is_aborted || communicator->is_finalized) {
    return Refuse(ncclInvalidArgument, "the communicator has ended");
  }
  if (Resolve(stream)->device != communicator->device) {
    return Refuse(ncclInvalidArgument, "the stream is another GPU's");
  }
  if (Resolve(stream)->capture != nullptr) {
    return Refuse(ncclInvalidUsage, "the emulated GPU captures no operation of NCCL");
  }
  if (communicator->clique->joined < communicator->size() || !communicator->calls.empty()) {
    return Refuse(ncclInvalidUsage, "the communicator's last call is still in progress");
  }
  const auto new_call = [&] {
    auto kernel = std::make_shared<MeetingKernel>();
    kernel->stream = Resolve(stream);
    kernel->is_aborted = communicator->is_aborted;
    return Call{std::move(kernel), {}};
  };
  Group& group = ThisThreadsGroup();
  if (group.depth > 0) {
    Call& call = group.calls.try_emplace(communicator, new_call()).first->second;
    if (call.kernel->stream != Resolve(stream)) {
      return Refuse(ncclInvalidUsage, "the emulated GPU has one stream for all of a group");
    }
    call.transfers.push_back(transfer);
    return ncclSuccess;
  }
  Call call = new_call();
  call.transfers.push_back(transfer);
  communicator->calls.push_back(std::move(call));
  communicator->asks_left = kAsks;
  return ncclInProgress;
}

ncclResult_t AddCollective(ncclComm_t communicator, cudaStream_t stream, const Task& task,
                           const void* from, void* to) {
  const auto size = static_cast<size_t>(communicator->size());
  const size_t bytes = BytesOf(task);
  const size_t from_bytes = task.deed == Deed::kReduceScatter ? bytes * size : bytes;
  const size_t to_bytes = task.deed == Deed::kAllGather ? bytes * size : bytes;
  const auto* const source = static_cast<const char*>(from);
  const auto* const target = static_cast<const char*>(to);
  const size_t offset = communicator->rank * bytes;
  const char* const in_place = task.deed == Deed::kReduceScatter ? source + offset : source;
  const char* const wanted = task.deed == Deed::kAllGather ? target + offset : target;
  const bool is_apart = source + from_bytes <= target || target + to_bytes <= source;
  if (!is_apart && in_place != wanted) {
    return Refuse(ncclInvalidArgument, "the buffers overlap, and are not in place");
  }
  return Add(communicator, stream,
             {.lane = kCollectives,
              .place = static_cast<size_t>(communicator->rank),
              .ends = size,
              .task = task,
              .from = from,
              .to = to});
}

ncclResult_t AddMessage(ncclComm_t communicator, cudaStream_t stream, size_t count,
                        ncclDataType_t type, int peer, bool sends, const void* from, void* to) {
  if (peer < 0 || peer >= communicator->size()) return Refuse(ncclInvalidArgument, "no such peer");
  return Add(communicator, stream,
             {.lane = sends ? Lane{communicator->rank, peer} : Lane{peer, communicator->rank},
              .place = sends ? size_t{0} : size_t{1},
              .ends = 2,
              .task = {.deed = Deed::kMessage, .count = count, .type = type},
              .from = from,
              .to = to});
}

void Free(ncclComm_t communicator) {
  for (const auto& queued : communicator->queued) {
    const std::shared_ptr<MeetingKernel> kernel = queued.lock();
    if (kernel == nullptr || kernel->hears_aborts) continue;
    if (RunUntil(kernel->stream, kernel->is_there) && Meet(*kernel)) continue;
    // NCCL would wait here for ever.
    Fail("NCCL: an abort waits for an operation on a symmetric window, which hears none");
  }
  TheLibrary().live.erase(communicator);
  delete communicator;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = Version();
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const MutexLock lock(&TheState().mutex);
  const uint64_t number = ++TheLibrary().ids;
  *id = {};
  std::memcpy(id->internal, &number, sizeof(number));
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclInProgress:
      return "in progress";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    default:
      return "unhandled error";
  }
}
const char* ncclGetLastError(ncclComm_t /*communicator*/) { return LastWords().c_str(); }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const MutexLock lock(&TheState().mutex);
  uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof(number));
  if (config->blocking != 0) return Refuse(ncclInvalidUsage, "only non-blocking is emulated");
  if (number == 0 || number > TheLibrary().ids || rank < 0 || rank >= ranks) {
    return Refuse(ncclInvalidArgument, "no such id or rank");
  }
  std::shared_ptr<Clique> clique = TheLibrary().cliques[number].lock();
  if (clique == nullptr) {
    clique = std::make_shared<Clique>();
    clique->devices.assign(ranks, -1);
    clique->windows.resize(ranks);
    clique->windows_made.resize(ranks);
    TheLibrary().cliques[number] = clique;
  }
  const int device = CurrentDevice();
  if (static_cast<int>(clique->devices.size()) != ranks || clique->devices[rank] >= 0) {
    return Refuse(ncclInvalidArgument, "another size, or a rank that is here already");
  }
  if (std::count(clique->devices.begin(), clique->devices.end(), device) > 0) {
    return Refuse(ncclInvalidUsage, "two ranks have one GPU");
  }
  clique->devices[rank] = device;
  ++clique->joined;
  *communicator = new ncclComm{.clique = std::move(clique), .rank = rank, .device = device};
  TheLibrary().live.insert(*communicator);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  const MutexLock lock(&TheState().mutex);
  if (!IsLive(communicator)) return Refuse(ncclInvalidArgument, "no communicator");
  *state = IsInProgress(*communicator) ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
  const MutexLock lock(&TheState().mutex);
  if (!IsLive(communicator) || std::exchange(communicator->is_finalized, true)) {
    return Refuse(ncclInvalidArgument, "the communicator has ended");
  }
  ++communicator->clique->ended;
  communicator->asks_left = kAsks;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  const MutexLock lock(&TheState().mutex);
  if (!IsLive(communicator) || !communicator->is_finalized) {
    return Refuse(ncclInvalidUsage, "the communicator is not finalized");
  }
  Free(communicator);
  return ncclSuccess;
}

// The flag at once; inside a group the communicator is freed at the group's end.
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  const MutexLock lock(&TheState().mutex);
  if (communicator == nullptr) return ncclSuccess;
  if (!IsLive(communicator)) return Refuse(ncclInvalidArgument, "no communicator");
  *communicator->is_aborted = true;
  if (!communicator->is_finalized) ++communicator->clique->ended;
  TheState().changed.SignalAll();
  if (ThisThreadsGroup().depth > 0) {
    ThisThreadsGroup().aborted.push_back(communicator);
  } else {
    Free(communicator);
  }
  return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  const cudaError_t error =
      cudaMalloc(data, (bytes + kGranularity - 1) / kGranularity * kGranularity);
  return error == cudaSuccess ? ncclSuccess : Refuse(ncclUnhandledCudaError, "cudaMalloc");
}

ncclResult_t ncclMemFree(void* data) {
  return FreeNow(data) == cudaSuccess ? ncclSuccess
                                      : Refuse(ncclInvalidArgument, "not from ncclMemAlloc");
}

ncclResult_t ncclCommRegister(const ncclComm_t communicator, void* data, size_t /*bytes*/,
                              void** handle) {
  const MutexLock lock(&TheState().mutex);
  if (!IsLive(communicator)) return Refuse(ncclInvalidArgument, "no communicator");
  communicator->registered.insert(data);
  *handle = data;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t communicator, void* handle) {
  const MutexLock lock(&TheState().mutex);
  if (!IsLive(communicator) || communicator->registered.erase(handle) == 0) {
    return Refuse(ncclInvalidArgument, "it is not registered");
  }
  return ncclSuccess;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t communicator, void* data, size_t bytes,
                                    ncclWindow_t* window, int flags) {
  const MutexLock lock(&TheState().mutex);
  if (!IsLive(communicator) || flags != NCCL_WIN_COLL_SYMMETRIC) {
    return Refuse(ncclInvalidArgument, "no communicator, or no symmetric window");
  }
  communicator->clique->windows[communicator->rank].push_back(
      {.base = static_cast<const char*>(data), .bytes = bytes});
  ++communicator->clique->windows_made[communicator->rank];
  *window = reinterpret_cast<ncclWindow_t>(data);
  communicator->asks_left = kAsks;
  return ncclInProgress;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t communicator, ncclWindow_t window) {
  const MutexLock lock(&TheState().mutex);
  if (!IsLive(communicator)) return Refuse(ncclInvalidArgument, "no communicator");
  const size_t erased = std::erase_if(
      communicator->clique->windows[communicator->rank],
      [&](const Window& mine) { return mine.base == reinterpret_cast<const char*>(window); });
  return erased > 0 ? ncclSuccess : Refuse(ncclInvalidArgument, "it is not registered");
}

ncclResult_t ncclGroupStart() {
  ++ThisThreadsGroup().depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  auto& group = ThisThreadsGroup();
  if (group.depth == 0) return Refuse(ncclInvalidUsage, "no group has begun");
  if (--group.depth > 0) return ncclSuccess;
  const MutexLock lock(&TheState().mutex);
  const bool has_calls = !group.calls.empty();
  for (auto& [communicator, call] : std::exchange(group.calls, {})) {
    communicator->calls.push_back(std::move(call));
    communicator->asks_left = kAsks;
  }
  for (const ncclComm_t communicator : std::exchange(group.aborted, {})) {
    Free(communicator);
  }
  return has_calls ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
  return AddCollective(communicator, stream,
                       {.deed = Deed::kAllReduce, .count = count, .type = type, .op = op}, from,
                       to);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count_of_one, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
  return AddCollective(
      communicator, stream,
      {.deed = Deed::kReduceScatter, .count = count_of_one, .type = type, .op = op}, from, to);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count_of_one, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  return AddCollective(communicator, stream,
                       {.deed = Deed::kAllGather, .count = count_of_one, .type = type}, from, to);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  return AddCollective(communicator, stream,
                       {.deed = Deed::kBroadcast, .count = count, .type = type, .root = root}, from,
                       to);
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return AddMessage(communicator, stream, count, type, peer, true, from, nullptr);
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return AddMessage(communicator, stream, count, type, peer, false, nullptr, to);
}

}  // extern "C"
}  // namespace convene::emulated
