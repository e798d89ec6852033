// Step times of data-parallel ranks (threads of this process) with collectives beside the
// arithmetic and without, in turns. Prints medians, also of the time of all threads on a CPU: over
// the cores it is the least that a step can take, with overlap too.
//
// Where ranks share cores no core waits for the network: another rank computes meanwhile, and there
// is little for a queue to hide. So each network is measured twice: with ranks that train, and with
// ranks whose units wait for the time of their arithmetic, as a CPU does whose GPU computes. These
// show what store and queues hide, whatever the machine.
//
// bazel run //worker_runtime/trainer/testing:overlap_bench -- [ROUNDS [STEPS [DP [TP]]]];
// OMP_NUM_THREADS=1 where there are fewer cores than ranks.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/status_macros.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/testing/test_worlds.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/model/testing/chunks.h"
#include "worker_runtime/optimizer/update_rule.h"
#include "worker_runtime/shard/bucket_store.h"
#include "worker_runtime/shard/sharded_optimizer.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/testing/train_step.h"

namespace convene::worker {
namespace {

using testing::Transport;

constexpr int kSequenceLength = 128;
// The engine's on a CPU.
constexpr int64_t kBucketCountMin = 1'000'000;
// Of all units that wait: the backward pass takes twice as long.
constexpr absl::Duration kForward = absl::Milliseconds(30);
// 5.6 million parameters: a step is tens of milliseconds, not seconds.
const ModelConfig kModel = {.layers = 6,
                            .hidden_size = 256,
                            .ffn_size = 768,
                            .heads = 4,
                            .kv_heads = 4,
                            .head_size = 64,
                            .vocabulary_size = 256};

struct Network {
  const char* name;
  Transport transport;
  LoopbackLink link;
};

// Of a step.
struct StepTime {
  double wall_ms;
  double cpu_ms;  // of all threads
};

// Of ranks that each make `steps`.
StepTime TimeOfRanks(int ranks, int steps, absl::FunctionRef<absl::Status(int rank)> train) {
  const MonotonicTime start = Clock::Real().Now();
  const std::clock_t cpu_start = std::clock();
  std::vector<Thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back(absl::StrCat("rank ", rank), [=] { CONVENE_CHECK(train(rank).ok()); });
  }
  for (Thread& thread : threads) thread.Join();
  return {absl::ToDoubleMilliseconds(Clock::Real().Now() - start) / steps,
          1e3 * static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC / steps};
}

// The ranks of one layout, from one measurement to the next.
class TrainingWorld {
 public:
  TrainingWorld(const Layout& layout, const Network& network, bool overlaps)
      : sets_(testing::MakeSets(network.transport, layout, {.link = network.link})),
        devices_(sets_.size()),
        engines_(sets_.size()) {
    for (size_t rank = 0; rank < sets_.size(); ++rank) {
      devices_[rank] = Device::Cpu();
      auto engine = Engine::Create({.model = kModel,
                                    .layout = layout,
                                    .rank = static_cast<int>(rank),
                                    .overlap_communication = overlaps,
                                    .sequence_length = kSequenceLength},
                                   sets_[rank], *devices_[rank]);
      CONVENE_CHECK(engine.ok());
      engines_[rank] = *std::move(engine);
    }
  }

  StepTime Run(int steps) {
    return TimeOfRanks(static_cast<int>(engines_.size()), steps,
                       [&](int rank) { return Train(rank, steps); });
  }

 private:
  absl::Status Train(size_t rank, int steps) {
    const std::vector<int32_t> tokens(kSequenceLength, static_cast<int32_t>(65 + rank));
    for (int step = 1; step <= steps; ++step) {
      CONVENE_RETURN_IF_ERROR(TrainStep(*engines_[rank], {tokens.data(), tokens.data(), 1000},
                                        {.learning_rate = 1e-4, .step = step})
                                  .status());
    }
    return devices_[rank]->Synchronize(absl::Minutes(1));
  }

  std::vector<CommunicatorSet> sets_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

// The same ranks without arithmetic: each unit waits for its time, by its share of the parameters.
// Gradients are reduced and parameters gathered as in training; no weight changes.
class WaitingWorld {
 public:
  WaitingWorld(const Layout& layout, const Network& network, bool overlaps)
      : sets_(testing::MakeSets(network.transport, layout, {.link = network.link})) {
    for (CommunicatorSet& set : sets_) {
      ranks_.push_back(std::make_unique<Rank>(layout, set, overlaps));
    }
  }

  StepTime Run(int steps) {
    return TimeOfRanks(static_cast<int>(ranks_.size()), steps,
                       [&](int rank) { return ranks_[rank]->Train(steps); });
  }

 private:
  class Rank {
   public:
    Rank(const Layout& layout, CommunicatorSet& set, bool overlaps)
        : store_(PlaceUnits(UnitsOf(kModel, testing::WholeModel(kModel), layout.tp, 0), layout.dp,
                            kBucketCountMin),
                 {.overlaps = overlaps},
                 {.dp = *set.dp,
                  .dp_gather = *set.dp_gather,
                  .dp_replicate = *set.dp_replicate,
                  .tp = *set.tp},
                 *device_, arena_, arena_),
          optimizer_(store_, {}, *device_, arena_, arena_) {
      CONVENE_CHECK(arena_.Build().ok());
      CONVENE_CHECK(optimizer_.Bind().ok());
    }

    absl::Status Train(int steps) {
      for (int step = 0; step < steps; ++step) CONVENE_RETURN_IF_ERROR(Step());
      return device_->Synchronize(absl::Minutes(1));
    }

   private:
    absl::Status Step() {
      const int units = static_cast<int>(store_.placement().units.size());
      for (int unit = 0; unit < units; ++unit) {
        CONVENE_RETURN_IF_ERROR(Pass(unit, unit + 1, kForward));
      }
      for (int unit = units - 1; unit >= 0; --unit) {
        CONVENE_RETURN_IF_ERROR(Pass(unit, unit - 1, 2 * kForward));
        CONVENE_RETURN_IF_ERROR(store_.GradientsDone(unit, /*is_last=*/true));
      }
      CONVENE_RETURN_IF_ERROR(store_.FinishReducing());
      return optimizer_.Update(&factors_, &skip_);
    }

    // `whole`: the time of such a pass of all units.
    absl::Status Pass(int unit, int next, absl::Duration whole) {
      const Placement& placement = store_.placement();
      CONVENE_RETURN_IF_ERROR(store_.Acquire(unit).status());
      if (next >= 0 && next < static_cast<int>(placement.units.size())) {
        CONVENE_RETURN_IF_ERROR(store_.Prefetch(next));
      }
      int64_t count = 0;
      for (const int tensor : placement.units[unit].tensors) {
        count += placement.tensors[tensor].count;
      }
      Clock::Real().SleepFor(whole * static_cast<double>(count) /
                             static_cast<double>(placement.flat_count));
      store_.Release(unit);
      return absl::OkStatus();
    }

    const std::unique_ptr<Device> device_ = Device::Cpu();
    Arena arena_{"waiting"};
    BucketStore store_;
    ShardedOptimizer optimizer_;
    const UpdateRule::Factors factors_ = {};
    const StepControl skip_ = {.gradient_scale = 0, .skip = SkipReason::kNoNumber};
  };

  std::vector<CommunicatorSet> sets_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One variant's rounds.
struct Rounds {
  void Add(const StepTime& time) {
    wall_ms.push_back(time.wall_ms);
    cpu_ms.push_back(time.cpu_ms);
  }
  std::vector<double> wall_ms, cpu_ms;
};

template <typename World>
void Measure(const char* units, const Layout& layout, const Network& network, int rounds,
             int steps) {
  World beside(layout, network, /*overlaps=*/true), alone(layout, network, /*overlaps=*/false);
  beside.Run(1);
  alone.Run(1);
  Rounds with, without;
  std::vector<double> ratios;
  for (int round = 0; round < rounds; ++round) {
    with.Add(beside.Run(steps));
    without.Add(alone.Run(steps));
    ratios.push_back(with.wall_ms.back() / without.wall_ms.back());
  }
  std::printf("%-18s %-8s %-26s %8.1f ms %8.1f ms %8.1f ms %8.1f ms %6.2f\n",
              layout.ToString().c_str(), units, network.name, Median(with.wall_ms),
              Median(with.cpu_ms), Median(without.wall_ms), Median(without.cpu_ms), Median(ratios));
  std::fflush(stdout);
}

// The number at a place of the command line.
int Argument(int argc, char** argv, int place, int otherwise) {
  return argc > place ? std::atoi(argv[place]) : otherwise;
}

int Main(int argc, char** argv) {
  const Layout layout = {.dp = Argument(argc, argv, 3, 4), .tp = Argument(argc, argv, 4, 1)};
  const int rounds = Argument(argc, argv, 1, 7), steps = Argument(argc, argv, 2, 5);
  std::printf("%-18s %-8s %-26s %11s %11s %11s %11s %6s\n", "layout", "units", "network", "overlap",
              "its CPU", "none", "its CPU", "ratio");
  const Network networks[] = {
      {"loopback", Transport::kLoopback, {}},
      {"loopback, 1 GB/s, 1 ms", Transport::kLoopback, {absl::Milliseconds(1), 1e9}},
      {"loopback, 200 MB/s, 1 ms", Transport::kLoopback, {absl::Milliseconds(1), 2e8}},
      {"gloo, TCP on this machine", Transport::kGloo, {}},
  };
  for (const Network& network : networks) {
    Measure<TrainingWorld>("compute", layout, network, rounds, steps);
    // A sum inside a layer is no part of a unit that waits.
    if (layout.tp == 1) Measure<WaitingWorld>("wait", layout, network, rounds, steps);
  }
  return 0;
}

}  // namespace
}  // namespace convene::worker

int main(int argc, char** argv) { return convene::worker::Main(argc, argv); }
