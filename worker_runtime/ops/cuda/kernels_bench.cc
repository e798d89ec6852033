// How near the memory-bound kernels come to the GPU's own copy: kernels_bench [--json FILE] [--only
// BEGINNING].
//
// Shapes of a 1B Llama, bfloat16. Bytes count each input once and each output once; time is the
// median by CUDA events, over buffers that together outgrow the L2 cache. The yardstick is a
// device-to-device copy in the same run, counted as bytes read plus bytes written.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/bench_ops.h"
#include "worker_runtime/ops/cuda/bench_support.h"

namespace convene::worker::cuda {
namespace {

constexpr BenchShape kShape = {.rows = 8192,
                               .hidden = 2048,
                               .ffn = 8192,
                               .heads = 32,
                               .kv_heads = 8,
                               .head_size = 64,
                               .sequence_length = 2048,
                               .vocabulary = 128256,
                               .activations = int64_t{64} << 20,
                               .parameters = int64_t{256} << 20};
constexpr size_t kArenaBytes = size_t{6} << 30;
constexpr size_t kRotatedBytes = size_t{2} << 30;  // many times the cache

BenchOp DeviceCopy(const BenchInputs& in) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  return {"copy (the yardstick)", 2.0 * kBytes, [=](Pieces& set) {
            Queue& queue = in.stream.queue();
            queue.Report(cudaMemcpyAsync(set.Take<char>(kBytes), set.Take<char>(kBytes), kBytes,
                                         cudaMemcpyDeviceToDevice, queue.stream()),
                         "copy");
          }};
}

absl::StatusOr<double> Milliseconds(const BenchInputs& inputs, const BenchOp& op) {
  Pieces first_set(inputs);
  op.run(first_set);
  const size_t set_bytes = static_cast<size_t>(first_set.next() - inputs.arena);
  const size_t sets = std::max<size_t>(1, kRotatedBytes / set_bytes);
  return MedianMilliseconds(inputs.stream.queue(), [&](int call) {
    Pieces set(inputs, set_bytes * (static_cast<size_t>(call) % sets));
    op.run(set);
  });
}

absl::Status RunAll(Figures& figures) {
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, Device::Cuda(0));
  CONVENE_ASSIGN_OR_RETURN(const BenchInputs inputs, MakeBenchInputs(*device, kShape, kArenaBytes));
  std::vector<BenchOp> ops = {DeviceCopy(inputs)};
  for (const std::vector<BenchOp>& more : {RowOps<BFloat16>(inputs), FlatOps(inputs)}) {
    ops.insert(ops.end(), more.begin(), more.end());
  }
  std::printf("%s\n%-36s %10s %10s %9s %7s\n", device->description().c_str(), "kernel", "MB", "us",
              "GB/s", "of copy");
  double copy_speed = 0;  // the first op's
  for (const BenchOp& op : ops) {
    if (copy_speed != 0 && !figures.Wants(op.name)) continue;
    const absl::StatusOr<double> milliseconds = Milliseconds(inputs, op);
    if (!milliseconds.ok()) return Annotate(milliseconds.status(), op.name);
    const double speed = op.bytes / *milliseconds * 1e-6;
    if (copy_speed == 0) copy_speed = speed;
    const double of_copy = speed / copy_speed;
    std::printf("%-36s %10.1f %10.1f %9.0f %6.1f%%\n", op.name.c_str(), op.bytes * 1e-6,
                *milliseconds * 1e3, speed, 100 * of_copy);
    std::fflush(stdout);
    figures.Add(op.name, absl::StrFormat(", \"bytes\": %.0f, \"microseconds\": %.3f, "
                                         "\"gigabytes_per_second\": %.1f, "
                                         "\"fraction_of_copy\": %.4f",
                                         op.bytes, *milliseconds * 1e3, speed, of_copy));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace convene::worker::cuda

int main(int argc, char** argv) {
  return convene::worker::cuda::BenchMain(argc, argv, "kernels_bench",
                                          convene::worker::cuda::RunAll);
}
