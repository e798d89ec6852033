// Prints what each op reaches on a CPU at the shapes of a 15M Llama: ops_bench [rows] (default
// 2048).
//
// GFLOP/s count a multiply-add as two; attention counts the causal half. GB/s count each operand
// once per read and once per write.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/bench_ops.h"

namespace convene::worker {
namespace {

constexpr int kHidden = 384;
constexpr int kFfn = 1024;
constexpr int kHeads = 6;
constexpr int kHeadSize = 64;
constexpr int kSequence = 256;
constexpr int kVocabulary = 4096;
constexpr int64_t kFlat = 15'000'000 / kFlagBlock * kFlagBlock;

// The fastest of many calls, in seconds.
double Time(const std::function<void()>& call) {
  using SteadyClock = std::chrono::steady_clock;
  const auto end = SteadyClock::now() + std::chrono::milliseconds(300);
  double best = 1e9;
  call();
  for (int calls = 0; calls < 5 || SteadyClock::now() < end; ++calls) {
    const auto start = SteadyClock::now();
    call();
    best = std::min(best, std::chrono::duration<double>(SteadyClock::now() - start).count());
  }
  return best;
}

void Bench(const BenchInputs& in, const std::vector<BenchOp>& ops) {
  for (const BenchOp& op : ops) {
    const double seconds = Time([&] {
      Pieces set(in);
      op.run(set);
    });
    const bool computes = op.flops > 0;
    std::printf("%-34s %9.1f us %8.1f %s\n", op.name.c_str(), seconds * 1e6,
                (computes ? op.flops : op.bytes) / seconds * 1e-9, computes ? "GFLOP/s" : "GB/s");
  }
}

template <typename T>
void BenchType(const BenchInputs& in) {
  std::printf("%s, %d rows, %d threads\n", DTypeName(kDTypeOf<T>), in.shape.rows,
              omp_get_max_threads());
  Bench(in, ProductOps<T>(in));
  Bench(in, ExpertOps<T>(in));
  Bench(in, AttentionOps<T>(in));
  Bench(in, RowOps<T>(in));
}

absl::Status BenchAll(int rows) {
  const std::unique_ptr<Device> device = Device::Cpu();
  // Each op has its set alone: a product or loss, AdamW, and attention's scratch, which grows with
  // the threads.
  const size_t arena_bytes = size_t{8} * rows * (kVocabulary + 6 * kFfn) + size_t{20} * kFlat +
                             (size_t{2} << 20) * omp_get_max_threads() + (size_t{32} << 20);
  const BenchShape shape = {.rows = rows,
                            .hidden = kHidden,
                            .ffn = kFfn,
                            .heads = kHeads,
                            .kv_heads = kHeads,
                            .head_size = kHeadSize,
                            .sequence_length = kSequence,
                            .vocabulary = kVocabulary,
                            .activations = kFlat,
                            .parameters = kFlat};
  CONVENE_ASSIGN_OR_RETURN(const BenchInputs inputs, MakeBenchInputs(*device, shape, arena_bytes));
  BenchType<float>(inputs);
  BenchType<BFloat16>(inputs);
  Bench(inputs, FlatOps(inputs));
  return absl::OkStatus();
}

}  // namespace
}  // namespace convene::worker

int main(int argc, char** argv) {
  const int rows = argc > 1 ? std::atoi(argv[1]) : 2048;
  if (rows < 256 || rows % 256 != 0) {
    std::fprintf(stderr, "ops_bench: rows must be a positive multiple of 256, not %s\n", argv[1]);
    return 64;
  }
  const absl::Status status = convene::worker::BenchAll(rows);
  if (status.ok()) return 0;
  std::fprintf(stderr, "ops_bench: %s\n", status.ToString().c_str());
  return 1;
}
