#include "worker_runtime/bench/bench_command.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tools/base/clock.h"
#include "tools/base/environment.h"
#include "tools/base/exit_code.h"
#include "tools/base/files.h"
#include "tools/base/flag_reader.h"
#include "tools/base/logging.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/bench/bench_flags.h"
#include "worker_runtime/bench/compute.h"
#include "worker_runtime/bench/report.h"
#include "worker_runtime/bench/result.h"
#include "worker_runtime/bench/sweep.h"
#include "worker_runtime/comm/connect.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/session/ranks.h"

namespace convene::worker {
namespace {

absl::Status Print(const std::string& text) { return WriteAll(STDOUT_FILENO, text, "stdout"); }

// The text of each rank, on all ranks, at most this many bytes of it.
absl::StatusOr<std::vector<std::string>> GatherTexts(const std::string& text, Collective& host) {
  constexpr size_t kBytesMax = 255;  // HOST_NAME_MAX is 64
  std::vector<float> bytes(kBytesMax * host.size());
  for (size_t i = 0; i < std::min(text.size(), kBytesMax); ++i) {
    bytes[kBytesMax * host.rank() + i] = static_cast<unsigned char>(text[i]);
  }
  Stream stream = Stream::Cpu();
  CONVENE_RETURN_IF_ERROR(host.AllGather(absl::MakeSpan(bytes), stream));
  std::vector<std::string> texts(host.size());
  for (int rank = 0; rank < host.size(); ++rank) {
    for (size_t i = 0; i < kBytesMax && bytes[kBytesMax * rank + i] != 0; ++i) {
      texts[rank].push_back(static_cast<char>(bytes[kBytesMax * rank + i]));
    }
  }
  return texts;
}

// The first rank of each node; all ranks where there is one node. Ranks of a node are neighbours.
std::vector<int> MembersOf(const std::vector<std::string>& nodes) {
  std::vector<int> first, all;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    all.push_back(static_cast<int>(rank));
    if (rank == 0 || nodes[rank] != nodes[rank - 1]) first.push_back(static_cast<int>(rank));
  }
  return first.size() > 1 ? first : all;
}

// The bench of one rank: rank 0 tells, the others only measure.
class Bench {
 public:
  using TimesCompute = absl::FunctionRef<absl::StatusOr<std::vector<ComputeRow>>()>;
  Bench(const BenchFlags& flags, bool tells, Sweep& sweep, TimesCompute times_compute,
        BenchResult result)
      : flags_(flags),
        tells_(tells),
        sweep_(sweep),
        times_compute_(times_compute),
        result_(std::move(result)) {}

  absl::Status Run(const std::vector<int>& members) {
    CONVENE_RETURN_IF_ERROR(Show(BenchHead(result_, flags_)));
    if (TimesOperations(flags_)) CONVENE_RETURN_IF_ERROR(RunRows());
    if (flags_.pairs) CONVENE_RETURN_IF_ERROR(RunPairs(members));
    if (!tells_) return absl::OkStatus();
    if (flags_.json) CONVENE_RETURN_IF_ERROR(Print(BenchJson(result_)));
    if (!flags_.save.empty()) {
      CONVENE_RETURN_IF_ERROR(Annotate(WriteFileAtomic(flags_.save, BenchJson(result_)), "--save"));
    }
    return absl::OkStatus();
  }

  absl::Status Compare(const BenchResult& before) { return Show(ComparisonText(before, result_)); }

  bool is_right() const {
    return std::all_of(result_.rows.begin(), result_.rows.end(),
                       [](const BenchRow& row) { return row.wrong.value_or(0) == 0; });
  }

 private:
  absl::Status Show(const std::string& text) {
    return tells_ && !flags_.json ? Print(text) : absl::OkStatus();
  }

  absl::Status RunRows() {
    const std::vector<std::string> operations =
        flags_.operations.empty() ? OperationNames() : flags_.operations;
    for (const std::string& operation : operations) {
      if (operation == kCompute) {
        CONVENE_ASSIGN_OR_RETURN(result_.compute, times_compute_());
        CONVENE_RETURN_IF_ERROR(Show(ComputeText(result_.compute)));
        continue;
      }
      for (const int64_t bytes : BenchSizes(flags_)) {
        CONVENE_ASSIGN_OR_RETURN(BenchRow row, sweep_.Time(operation, bytes));
        // Small sizes may be cut to the same one.
        if (!result_.rows.empty() && result_.rows.back().operation == operation &&
            result_.rows.back().bytes == row.bytes) {
          continue;
        }
        CONVENE_RETURN_IF_ERROR(Show(BenchLine(row, result_, flags_)));
        result_.rows.push_back(std::move(row));
      }
    }
    return result_.rows.empty() ? absl::OkStatus() : Show(BenchFoot(result_));
  }

  absl::Status RunPairs(const std::vector<int>& members) {
    std::vector<std::string> names;
    const bool are_ranks = static_cast<int>(members.size()) == result_.ranks;
    for (const int rank : members) {
      names.push_back(are_ranks ? absl::StrCat(result_.hosts[rank], " rank ", rank)
                                : result_.hosts[rank]);
    }
    CONVENE_ASSIGN_OR_RETURN(result_.pairs, sweep_.TimePairs(members, names));
    return Show(PairsText(*result_.pairs));
  }

  const BenchFlags& flags_;
  const bool tells_;
  Sweep& sweep_;
  const TimesCompute times_compute_;
  BenchResult result_;
};

absl::StatusOr<BenchResult> ReadSaved(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return Annotate(text.status(), "--compare");
  auto result = ParseBenchJson(*text);
  if (result.ok()) return result;
  return absl::InvalidArgumentError(absl::StrCat(
      "--compare ", path,
      ": it is no result that --save wrote: ", std::string(result.status().message())));
}

// Before hours of measuring.
absl::Status CheckSave(const std::string& path) {
  const std::string folder = ParentDirectory(path);
  if (IsDirectory(folder)) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("--save ", path, ": ", folder, " is no folder of this machine; make it first"));
}

}  // namespace

absl::StatusOr<int> BenchCommand(const std::vector<std::string>& arguments) {
  BenchFlags flags;
  FlagReader reader("convene bench", kBenchHelp);
  AddFlags(&reader, &flags);
  CONVENE_ASSIGN_OR_RETURN(const auto text, reader.Read(arguments, ProcessEnvironment()));
  if (text.has_value()) {
    CONVENE_RETURN_IF_ERROR(Print(*text));
    return static_cast<int>(ExitCode::kOk);
  }
  CONVENE_ASSIGN_OR_RETURN(const auto ranks, Ranks::JoinAll());
  // Other nodes may not have the files.
  std::optional<BenchResult> saved;
  if (ranks->speaks() && !flags.compare.empty()) {
    CONVENE_ASSIGN_OR_RETURN(saved, ReadSaved(flags.compare));
  }
  if (ranks->speaks() && !flags.save.empty()) CONVENE_RETURN_IF_ERROR(CheckSave(flags.save));
  const int size = ranks->layout().world_size();
  if (flags.root >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat("--root ", flags.root, ": the last rank is ", size - 1));
  }
  CONVENE_ASSIGN_OR_RETURN(const auto device, ranks->OpenDevice(flags.device));
  CONVENE_ASSIGN_OR_RETURN(const CommunicatorSet communicators,
                           ranks->Connect(*device, flags.timeout));
  BenchResult result;
  result.ranks = size;
  CONVENE_ASSIGN_OR_RETURN(result.hosts, GatherTexts(HostName(), *communicators.host));
  result.transport = device->kind() == DeviceKind::kCuda ? "NCCL" : "Gloo";
  result.device = device->description();
  result.memory_bytes = static_cast<double>(device->memory_bytes());
  result.dtype = flags.dtype == DType::kFloat32 ? "float" : "bfloat16";
  result.op = flags.op == ReduceOp::kSum ? "sum" : "max";
  CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> nodes,
                           GatherTexts(absl::StrCat(ranks->node()), *communicators.host));
  const std::unique_ptr<Memory> own_memory = CollectiveMemory(communicators, *device);
  Memory& memory = own_memory == nullptr ? device->memory() : *own_memory;
  CONVENE_ASSIGN_OR_RETURN(const auto sweep,
                           Sweep::Make(flags, communicators, *device, memory, Clock::Real()));
  const auto times_compute = [&] {
    return TimeCompute(flags, communicators, *device, Clock::Real());
  };
  Bench bench(flags, ranks->speaks(), *sweep, times_compute, std::move(result));
  CONVENE_RETURN_IF_ERROR(bench.Run(MembersOf(nodes)));
  if (saved.has_value()) CONVENE_RETURN_IF_ERROR(bench.Compare(*saved));
  // A rank that ends breaks its connections, and others may still wait for its last answer.
  Stream host = Stream::Cpu();
  CONVENE_RETURN_IF_ERROR(communicators.host->Barrier(host));
  return static_cast<int>(bench.is_right() ? ExitCode::kOk : ExitCode::kTrainingFailed);
}

}  // namespace convene::worker
