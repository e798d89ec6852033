// Step times of data-parallel ranks (threads of this process) with collectives beside the
// arithmetic and without, in turns. Prints medians.
//
// bazel run //worker_runtime/trainer/testing:overlap_bench -- [ROUNDS [STEPS [DP [TP]]]];
// OMP_NUM_THREADS=1 where there are fewer cores than ranks.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/status_macros.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/testing/test_worlds.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/trainer/engine.h"

namespace convene::worker {
namespace {

using testing::Transport;

constexpr int kSequenceLength = 128;
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

// The ranks of one layout, from one measurement to the next.
class World {
 public:
  World(const Layout& layout, const Network& network, bool overlaps)
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

  // Milliseconds a step.
  double Run(int steps) {
    const MonotonicTime start = Clock::Real().Now();
    std::vector<Thread> threads;
    for (size_t rank = 0; rank < engines_.size(); ++rank) {
      threads.emplace_back(absl::StrCat("rank ", rank),
                           [this, rank, steps] { CONVENE_CHECK(Train(rank, steps).ok()); });
    }
    for (Thread& thread : threads) thread.Join();
    return absl::ToDoubleMilliseconds(Clock::Real().Now() - start) / steps;
  }

 private:
  absl::Status Train(size_t rank, int steps) {
    const std::vector<int32_t> tokens(kSequenceLength, static_cast<int32_t>(65 + rank));
    for (int step = 1; step <= steps; ++step) {
      CONVENE_RETURN_IF_ERROR(engines_[rank]
                                  ->TrainStep({tokens.data(), tokens.data(), 1000},
                                              {.learning_rate = 1e-4, .step = step})
                                  .status());
    }
    return devices_[rank]->Synchronize(absl::Minutes(1));
  }

  std::vector<CommunicatorSet> sets_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Measure(const Layout& layout, const Network& network, int rounds, int steps) {
  World beside(layout, network, /*overlaps=*/true), alone(layout, network, /*overlaps=*/false);
  beside.Run(1);
  alone.Run(1);
  std::vector<double> with, without, ratios;
  for (int round = 0; round < rounds; ++round) {
    with.push_back(beside.Run(steps));
    without.push_back(alone.Run(steps));
    ratios.push_back(with.back() / without.back());
  }
  std::printf("%-18s %-36s %8.1f ms %8.1f ms %6.2f\n", layout.ToString().c_str(), network.name,
              Median(with), Median(without), Median(ratios));
  std::fflush(stdout);
}

// The number at a place of the command line.
int Argument(int argc, char** argv, int place, int otherwise) {
  return argc > place ? std::atoi(argv[place]) : otherwise;
}

int Main(int argc, char** argv) {
  const Layout layout = {.dp = Argument(argc, argv, 3, 4), .tp = Argument(argc, argv, 4, 1)};
  std::printf("%-18s %-36s %11s %11s %6s\n", "layout", "network", "overlap", "none", "ratio");
  const Network networks[] = {
      {"loopback", Transport::kLoopback, {}},
      {"loopback, 1 GB/s, 1 ms", Transport::kLoopback, {absl::Milliseconds(1), 1e9}},
      {"loopback, 200 MB/s, 1 ms", Transport::kLoopback, {absl::Milliseconds(1), 2e8}},
      {"gloo, TCP on this machine", Transport::kGloo, {}},
  };
  for (const Network& network : networks) {
    Measure(layout, network, Argument(argc, argv, 1, 7), Argument(argc, argv, 2, 5));
  }
  return 0;
}

}  // namespace
}  // namespace convene::worker

int main(int argc, char** argv) { return convene::worker::Main(argc, argv); }
