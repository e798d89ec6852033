// Times the collectives over gloo between processes of this machine, in the columns of nccl-tests:
//
//   comm_bench [ranks]        2 when not stated
//
// algbw = bytes / time; busbw = algbw times the least share that the operation has to move per rank
// (all_reduce 2 (n-1)/n, reduce_scatter and all_gather (n-1)/n, a message and its answer 2), so
// that it compares with the link. Times are the slowest rank's mean.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/comm/testing/collective_testing.h"
#include "worker_runtime/comm/testing/directory_store.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/mesh/mesh.h"

namespace convene::worker {
namespace {

using testing::Recv;

constexpr int kRanksMax = 64;
constexpr size_t kLargestBytes = 16 << 20;

struct Operation {
  const char* name;
  double bus_factor;
  std::function<absl::Status(absl::Span<float>)> run;
};

void CheckOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// Seconds a call, on the slowest rank.
double MeanSeconds(Collective& world, Stream& stream, int repetitions,
                   const std::function<absl::Status()>& call) {
  for (int i = 0; i < 2; ++i) CheckOk(call());
  CheckOk(world.Barrier(stream));
  const MonotonicTime start = Clock::Real().Now();
  for (int i = 0; i < repetitions; ++i) CheckOk(call());
  double seconds = absl::ToDoubleSeconds(Clock::Real().Now() - start) / repetitions;
  CheckOk(world.AllReduce(absl::MakeSpan(&seconds, 1), ReduceOp::kMax, stream));
  return seconds;
}

// Even ranks send to the next rank, which answers with as much: a ping and a pong.
absl::Status PingPong(Collective& world, Stream& stream, absl::Span<float> data) {
  const bool pings = world.rank() % 2 == 0;
  const int peer = pings ? world.rank() + 1 : world.rank() - 1;
  if (peer >= world.size()) return absl::OkStatus();
  if (!pings) CONVENE_RETURN_IF_ERROR(Recv(world, data, peer, stream));
  CONVENE_ASSIGN_OR_RETURN(const PendingMessage sent, world.Send(data, peer, stream));
  CONVENE_RETURN_IF_ERROR(world.Wait(sent, stream));
  return pings ? Recv(world, data, peer, stream) : absl::OkStatus();
}

void RunRank(int rank, int ranks, const std::string& directory) {
  DirectoryStore store(directory);
  const MonotonicTime start = Clock::Real().Now();
  auto set = BootstrapGloo({.pp = 1, .dp = ranks, .tp = 1}, rank, store, "bench", {});
  CheckOk(set.status());
  double bootstrap_ms = absl::ToDoubleMilliseconds(Clock::Real().Now() - start);
  Stream stream = Stream::Cpu();
  Collective& world = *set->world;
  CheckOk(world.AllReduce(absl::MakeSpan(&bootstrap_ms, 1), ReduceOp::kMax, stream));
  if (rank == 0) {
    std::printf("%d ranks, bootstrap %.1f ms\n%-15s %10s %12s %12s %12s\n", ranks, bootstrap_ms,
                "operation", "bytes", "time us", "algbw GB/s", "busbw GB/s");
  }
  const Operation operations[] = {
      {"all_reduce", BusFactor("all_reduce", ranks),
       [&](absl::Span<float> data) { return world.AllReduce(data, ReduceOp::kSum, stream); }},
      {"reduce_scatter", BusFactor("reduce_scatter", ranks),
       [&](absl::Span<float> data) { return world.ReduceScatter(data, ReduceOp::kSum, stream); }},
      {"all_gather", BusFactor("all_gather", ranks),
       [&](absl::Span<float> data) { return world.AllGather(data, stream); }},
      {"send/recv x 2", 2, [&](absl::Span<float> data) { return PingPong(world, stream, data); }},
  };
  std::vector<float> memory(kLargestBytes / sizeof(float));
  for (const Operation& operation : operations) {
    for (size_t bytes :
         {size_t{8}, size_t{1} << 10, size_t{8} << 10, size_t{16} << 10, size_t{64} << 10,
          size_t{256} << 10, size_t{1} << 20, size_t{4} << 20, kLargestBytes}) {
      // Equal shards, at least one element each.
      const size_t count = std::max<size_t>(bytes / sizeof(float) / ranks, 1) * ranks;
      const int repetitions = static_cast<int>(std::clamp<size_t>((8 << 20) / bytes, 5, 500));
      const double seconds = MeanSeconds(world, stream, repetitions, [&] {
        return operation.run(absl::MakeSpan(memory).first(count));
      });
      const double algbw = static_cast<double>(count * sizeof(float)) / seconds / 1e9;
      if (rank == 0) {
        std::printf("%-15s %10zu %12.1f %12.3f %12.3f\n", operation.name, count * sizeof(float),
                    seconds * 1e6, algbw, algbw * operation.bus_factor);
        std::fflush(stdout);
      }
    }
  }
}

int Main(int argc, char** argv) {
  int ranks = 2;
  if (argc > 2 ||
      (argc == 2 && (!absl::SimpleAtoi(argv[1], &ranks) || ranks < 2 || ranks > kRanksMax))) {
    std::fprintf(stderr, "usage: comm_bench [ranks, 2 to %d]\n", kRanksMax);
    return 64;
  }
  char directory[] = "/tmp/comm_bench.XXXXXX";
  CONVENE_CHECK(mkdtemp(directory) != nullptr);
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    CONVENE_CHECK(child >= 0);
    if (child == 0) {
      RunRank(rank, ranks, directory);
      std::exit(0);
    }
  }
  int result = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    if (wait(&status) < 0 || status != 0) result = 1;
  }
  RemoveTree(directory).IgnoreError();
  return result;
}

}  // namespace
}  // namespace convene::worker

int main(int argc, char** argv) { return convene::worker::Main(argc, argv); }
