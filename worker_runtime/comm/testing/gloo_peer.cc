// The peer of tests/bench/collective_bench.py: all-reduces of float32 by Debian's Gloo itself,
// between processes of this machine over the loopback interface, as Gloo's own benchmark times
// them. Usage: gloo_peer new_ring|ring_chunked|halving_doubling RANKS ITERATIONS BYTES; prints the
// slowest rank's mean, in seconds.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gloo/allreduce.h"
#include "gloo/allreduce_halving_doubling.h"
#include "gloo/allreduce_ring_chunked.h"
#include "gloo/barrier.h"
#include "gloo/math.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/file_store.h"
#include "gloo/transport/tcp/device.h"

namespace {

constexpr int kWarmUps = 5;

struct Wanted {
  std::string algorithm;
  int ranks;
  int iterations;
  size_t elements;
};

std::function<void()> CallOf(const Wanted& wanted, const std::shared_ptr<gloo::Context>& context,
                             float* data) {
  const auto elements = static_cast<int>(wanted.elements);
  if (wanted.algorithm == "ring_chunked") {
    const auto algorithm = std::make_shared<gloo::AllreduceRingChunked<float>>(
        context, std::vector<float*>{data}, elements);
    return [algorithm] { algorithm->run(); };
  }
  if (wanted.algorithm == "halving_doubling") {
    const auto algorithm = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(
        context, std::vector<float*>{data}, elements);
    return [algorithm] { algorithm->run(); };
  }
  return [context, data, count = wanted.elements] {
    gloo::AllreduceOptions options(context);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setReduceFunction([](void* sum, const void* a, const void* b, size_t n) {
      gloo::sum<float>(static_cast<float*>(sum), static_cast<const float*>(a),
                       static_cast<const float*>(b), n);
    });
    options.setOutput(data, count);
    gloo::allreduce(options);
  };
}

void RunRank(const Wanted& wanted, int rank, const std::string& directory) {
  gloo::transport::tcp::attr attributes;
  attributes.iface = "lo";
  const auto context = std::make_shared<gloo::rendezvous::Context>(rank, wanted.ranks);
  gloo::rendezvous::FileStore store(directory);
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
  context->connectFullMesh(store, device);
  std::vector<float> data(wanted.elements, 1);
  const std::function<void()> call = CallOf(wanted, context, data.data());
  for (int i = 0; i < kWarmUps; ++i) call();
  gloo::BarrierOptions barrier(context);
  gloo::barrier(barrier);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < wanted.iterations; ++i) call();
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() /
                   wanted.iterations;
  gloo::AllreduceOptions slowest(context);
  slowest.setReduceFunction([](void* most, const void* a, const void* b, size_t n) {
    gloo::max<double>(static_cast<double*>(most), static_cast<const double*>(a),
                      static_cast<const double*>(b), n);
  });
  slowest.setOutput(&seconds, 1);
  gloo::allreduce(slowest);
  gloo::barrier(barrier);
  if (rank == 0) std::printf("%.9f\n", seconds);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("usage: gloo_peer new_ring|ring_chunked|halving_doubling RANKS ITERATIONS BYTES\n",
               stderr);
    return 64;
  }
  const Wanted wanted = {argv[1], std::atoi(argv[2]), std::atoi(argv[3]),
                         static_cast<size_t>(std::atoll(argv[4])) / sizeof(float)};
  char directory[] = "/tmp/gloo_peer.XXXXXX";
  if (mkdtemp(directory) == nullptr) return 1;
  for (int rank = 1; rank < wanted.ranks; ++rank) {
    if (fork() == 0) {
      RunRank(wanted, rank, directory);
      return 0;
    }
  }
  RunRank(wanted, 0, directory);
  while (wait(nullptr) > 0) {
  }
  return std::system(("rm -r " + std::string(directory)).c_str());
}
