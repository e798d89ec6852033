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
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/bench_ops.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/matmul.h"

namespace convene::worker {
namespace {

constexpr int kHidden = 384;
constexpr int kFfn = 1024;
constexpr int kHeads = 6;
constexpr int kHeadSize = 64;
constexpr int kSequence = 256;
constexpr int kDocument = 32;  // of packed rows
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

void Print(const char* name, double amount, const char* unit, const std::function<void()>& call) {
  const double seconds = Time(call);
  std::printf("%-34s %9.1f us %8.1f %s\n", name, seconds * 1e6, amount / seconds * 1e-9, unit);
}

template <typename T>
void BenchMatMul(const BenchInputs& in) {
  struct Product {
    const char* name;
    Transpose a, b;
    int m, n, k;
  };
  const int rows = in.shape.rows;
  const Product products[] = {
      {"matmul qkv forward", Transpose::kNo, Transpose::kYes, rows, 3 * kHidden, kHidden},
      {"matmul gate_up forward", Transpose::kNo, Transpose::kYes, rows, 2 * kFfn, kHidden},
      {"matmul down forward", Transpose::kNo, Transpose::kYes, rows, kHidden, kFfn},
      {"matmul gate_up input gradient", Transpose::kNo, Transpose::kNo, rows, kHidden, 2 * kFfn},
      {"matmul gate_up weight gradient", Transpose::kYes, Transpose::kNo, 2 * kFfn, kHidden, rows},
      {"matmul head forward", Transpose::kNo, Transpose::kYes, rows, kVocabulary, kHidden},
  };
  for (const Product& p : products) {
    Pieces set(in);
    const T* a = set.Take<T>(int64_t{p.m} * p.k);
    const T* b = set.Take<T>(int64_t{p.k} * p.n);
    T* c = set.Take<T>(int64_t{p.m} * p.n);
    Print(p.name, 2.0 * p.m * p.n * p.k, "GFLOP/s",
          [&] { MatMul(p.a, p.b, p.m, p.n, p.k, a, b, 0.0f, c, in.stream); });
  }
}

template <typename T>
void BenchAttention(const BenchInputs& in) {
  const int rows = in.shape.rows;
  AttentionShape shape = {rows / kSequence, kSequence, kHeads, kHeads, kHeadSize};
  const int64_t qkv_size = int64_t{rows} * shape.qkv_width();
  const int64_t out_size = int64_t{rows} * kHidden;
  Pieces set(in);
  const T* qkv = set.Take<T>(qkv_size);
  const T* dout = set.Take<T>(out_size);
  T* out = set.Take<T>(out_size);
  T* dqkv = set.Take<T>(qkv_size);
  auto* log_sum_exp = set.Take<float>(int64_t{rows} * kHeads);
  const Workspace workspace = set.Scratch(AttentionWorkspaceBytes<T>(shape, DeviceKind::kCpu));
  const double product = 2.0 * rows * (kSequence + 1) / 2 * kHidden;
  const auto print = [&](const char* forward, const char* backward, double product,
                         const Documents& documents) {
    Print(forward, 2 * product, "GFLOP/s", [&] {
      AttentionForward(shape, documents, {}, Fused(shape, qkv), out, log_sum_exp, workspace,
                       in.stream);
    });
    Print(backward, 5 * product, "GFLOP/s", [&] {
      AttentionBackward(shape, documents, {}, Fused(shape, qkv), out, log_sum_exp, dout,
                        /*adds=*/false, Fused(shape, dqkv), workspace, in.stream);
    });
  };
  print("attention forward", "attention backward", product, {});
  shape.packed = true;
  std::vector<int32_t> begins(rows);
  for (int row = 0; row < rows; ++row) begins[row] = row % kSequence / kDocument * kDocument;
  print("attention forward, packed", "attention backward, packed",
        2.0 * rows * (kDocument + 1) / 2 * kHidden, {.begin = begins.data()});
}

void BenchBytes(const BenchInputs& in, const std::vector<BenchOp>& ops) {
  for (const BenchOp& op : ops) {
    Print(op.name.c_str(), op.bytes, "GB/s", [&] {
      Pieces set(in);
      op.run(set);
    });
  }
}

template <typename T>
void BenchType(const BenchInputs& in) {
  std::printf("%s, %d rows, %d threads\n", DTypeName(kDTypeOf<T>), in.shape.rows,
              omp_get_max_threads());
  BenchMatMul<T>(in);
  BenchAttention<T>(in);
  BenchBytes(in, RowOps<T>(in));
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
  BenchBytes(inputs, FlatOps(inputs));
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
