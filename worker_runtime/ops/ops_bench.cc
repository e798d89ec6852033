// Prints what each op reaches at the shapes of a 15M Llama: ops_bench [rows] (default 2048).
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
#include <vector>

#include "worker_runtime/ops/adamw.h"
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/cross_entropy.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/embedding.h"
#include "worker_runtime/ops/matmul.h"
#include "worker_runtime/ops/rms_norm.h"
#include "worker_runtime/ops/rope.h"
#include "worker_runtime/ops/skewed_tokens.h"
#include "worker_runtime/ops/swiglu.h"

namespace convene::worker {
namespace {

constexpr int kHidden = 384;
constexpr int kFfn = 1024;
constexpr int kHeads = 6;
constexpr int kHeadSize = 64;
constexpr int kSequence = 256;
constexpr int kDocument = 32;  // of packed rows
constexpr int kVocabulary = 4096;

std::vector<float> Numbers(size_t count) {
  std::vector<float> result(count);
  uint32_t state = 1;
  for (float& value : result) {
    state = state * 1664525 + 1013904223;
    value = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
  }
  return result;
}

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
std::vector<T> NumbersOf(size_t count) {
  const std::vector<float> numbers = Numbers(count);
  return {numbers.begin(), numbers.end()};
}

template <typename T>
void BenchMatMul(int rows, Stream& stream) {
  struct Product {
    const char* name;
    Transpose a, b;
    int m, n, k;
  };
  const Product products[] = {
      {"matmul qkv forward", Transpose::kNo, Transpose::kYes, rows, 3 * kHidden, kHidden},
      {"matmul gate_up forward", Transpose::kNo, Transpose::kYes, rows, 2 * kFfn, kHidden},
      {"matmul down forward", Transpose::kNo, Transpose::kYes, rows, kHidden, kFfn},
      {"matmul gate_up input gradient", Transpose::kNo, Transpose::kNo, rows, kHidden, 2 * kFfn},
      {"matmul gate_up weight gradient", Transpose::kYes, Transpose::kNo, 2 * kFfn, kHidden, rows},
      {"matmul head forward", Transpose::kNo, Transpose::kYes, rows, kVocabulary, kHidden},
  };
  for (const Product& p : products) {
    const auto a = NumbersOf<T>(static_cast<size_t>(p.m) * p.k);
    const auto b = NumbersOf<T>(static_cast<size_t>(p.k) * p.n);
    std::vector<T> c(static_cast<size_t>(p.m) * p.n);
    Print(p.name, 2.0 * p.m * p.n * p.k, "GFLOP/s",
          [&] { MatMul(p.a, p.b, p.m, p.n, p.k, a.data(), b.data(), 0.0f, c.data(), stream); });
  }
}

template <typename T>
void BenchAttention(int rows, Stream& stream) {
  AttentionShape shape = {rows / kSequence, kSequence, kHeads, kHeads, kHeadSize};
  const auto qkv = NumbersOf<T>(static_cast<size_t>(rows) * shape.qkv_width());
  const auto dout = NumbersOf<T>(static_cast<size_t>(rows) * kHidden);
  std::vector<T> out(dout.size()), dqkv(qkv.size());
  std::vector<float> log_sum_exp(rows * kHeads);
  std::vector<char> memory(AttentionWorkspaceBytes<T>(shape, DeviceKind::kCpu));
  const Workspace workspace = {memory.data(), memory.size()};
  const double product = 2.0 * rows * (kSequence + 1) / 2 * kHidden;
  const auto print = [&](const char* forward, const char* backward, double product,
                         const Documents& documents) {
    Print(forward, 2 * product, "GFLOP/s", [&] {
      AttentionForward(shape, documents, qkv.data(), out.data(), log_sum_exp.data(), workspace,
                       stream);
    });
    Print(backward, 5 * product, "GFLOP/s", [&] {
      AttentionBackward(shape, documents, qkv.data(), out.data(), log_sum_exp.data(), dout.data(),
                        dqkv.data(), workspace, stream);
    });
  };
  print("attention forward", "attention backward", product, {});
  shape.packed = true;
  std::vector<int32_t> begins(rows);
  for (int row = 0; row < rows; ++row) begins[row] = row % kSequence / kDocument * kDocument;
  print("attention forward, packed", "attention backward, packed",
        2.0 * rows * (kDocument + 1) / 2 * kHidden, {.begin = begins.data()});
}

template <typename T>
void BenchRows(int rows, Stream& stream) {
  const double floats = sizeof(T) * static_cast<double>(rows);
  const size_t size = static_cast<size_t>(rows) * kHidden;
  const auto x = NumbersOf<T>(size);
  const auto weight = NumbersOf<T>(kHidden);
  std::vector<T> y(size);
  std::vector<float> inverse_rms(rows), dweight(kHidden);
  Print("rms_norm forward", 2 * kHidden * floats, "GB/s", [&] {
    RmsNormForward(rows, kHidden, x.data(), weight.data(), 1e-5f, y.data(), inverse_rms.data(),
                   stream);
  });
  Print("rms_norm backward", 4 * kHidden * floats, "GB/s", [&] {
    RmsNormBackward(rows, kHidden, x.data(), weight.data(), inverse_rms.data(), x.data(), true,
                    y.data(), true, dweight.data(), {}, stream);
  });

  const int width = 3 * kHidden;
  auto qkv = NumbersOf<T>(static_cast<size_t>(rows) * width);
  std::vector<float> cosines(kSequence * kHeadSize / 2), sines(cosines.size());
  RopeTable(kSequence, kHeadSize, 10000.0, cosines.data(), sines.data());
  Print("rope", 2 * 2 * kHidden * floats, "GB/s", [&] {
    RopeApply(rows / kSequence, kSequence, 2 * kHeads, kHeadSize, width, cosines.data(),
              sines.data(), nullptr, false, qkv.data(), stream);
  });

  const auto gate_up = NumbersOf<T>(static_cast<size_t>(rows) * 2 * kFfn);
  const auto dy = NumbersOf<T>(static_cast<size_t>(rows) * kFfn);
  std::vector<T> activation(dy.size()), dgate_up(gate_up.size());
  Print("swiglu forward", 3 * kFfn * floats, "GB/s",
        [&] { SwigluForward(rows, kFfn, gate_up.data(), activation.data(), stream); });
  Print("swiglu backward", 5 * kFfn * floats, "GB/s",
        [&] { SwigluBackward(rows, kFfn, gate_up.data(), dy.data(), dgate_up.data(), stream); });
}

template <typename T>
void BenchVocabulary(int rows, Stream& stream) {
  const double floats = sizeof(T) * static_cast<double>(rows);
  std::vector<int32_t> tokens(rows);
  uint32_t random = 1;
  for (int32_t& token : tokens) {
    random = random * 1664525 + 1013904223;
    token = SkewedToken(random * 0x1p-32, kVocabulary);
  }
  auto table = NumbersOf<T>(static_cast<size_t>(kVocabulary) * kHidden);
  std::vector<T> y(static_cast<size_t>(rows) * kHidden);
  std::vector<float> dtable(table.size());
  Print("embedding forward", 2 * kHidden * floats, "GB/s", [&] {
    EmbeddingForward(rows, kHidden, 0, kVocabulary, tokens.data(), table.data(), y.data(), stream);
  });
  Print("embedding backward", 3 * kHidden * floats, "GB/s", [&] {
    EmbeddingBackward(rows, kHidden, 0, kVocabulary, tokens.data(), y.data(), dtable.data(), {},
                      stream);
  });
  const auto logits = NumbersOf<T>(static_cast<size_t>(rows) * kVocabulary);
  auto work = logits;
  std::vector<float> row_max(rows), sums(2 * rows);
  Print("cross_entropy statistics", kVocabulary * floats, "GB/s", [&] {
    CrossEntropyStatistics(rows, 0, kVocabulary, tokens.data(), logits.data(), row_max.data(),
                           sums.data(), stream);
  });
  const float scale = 1.0f;
  Print("cross_entropy gradient", 2 * kVocabulary * floats, "GB/s", [&] {
    CrossEntropyGradient(rows, 0, kVocabulary, tokens.data(), row_max.data(), sums.data(), &scale,
                         work.data(), stream);
  });
}

void BenchFlat(Stream& stream) {
  constexpr int64_t kCount = 15'000'000 / kFlagBlock * kFlagBlock;
  const double floats = sizeof(float) * static_cast<double>(kCount);
  const auto x = Numbers(kCount);
  std::vector<float> y(kCount), first(kCount), second(kCount);
  const std::vector<uint8_t> flags(kCount / kFlagBlock, kOwned | kDecayed);
  const AdamWFactors factors = MakeAdamWFactors({.learning_rate = 1e-3});
  const StepControl control = {1.0f, 0};
  Print("adamw", 7 * floats, "GB/s", [&] {
    AdamW(kCount, &factors, &control, flags.data(), x.data(), y.data(), y.data(), first.data(),
          second.data(), stream);
  });
  Print("add", 3 * floats, "GB/s", [&] { AddInPlace(kCount, x.data(), y.data(), stream); });
  double sum = 0;
  Print("sum of squares", floats, "GB/s",
        [&] { SumOfSquares(kCount, x.data(), flags.data(), &sum, {}, stream); });
}

template <typename T>
void BenchAll(int rows, Stream& stream) {
  std::printf("%s, %d rows, %d threads\n", DTypeName(kDTypeOf<T>), rows, omp_get_max_threads());
  BenchMatMul<T>(rows, stream);
  BenchAttention<T>(rows, stream);
  BenchRows<T>(rows, stream);
  BenchVocabulary<T>(rows, stream);
}

}  // namespace
}  // namespace convene::worker

int main(int argc, char** argv) {
  const int rows = argc > 1 ? std::atoi(argv[1]) : 2048;
  if (rows < 256 || rows % 256 != 0) {
    std::fprintf(stderr, "ops_bench: rows must be a positive multiple of 256, not %s\n", argv[1]);
    return 64;
  }
  convene::worker::Stream stream = convene::worker::Stream::Cpu();
  convene::worker::BenchAll<float>(rows, stream);
  convene::worker::BenchAll<convene::worker::BFloat16>(rows, stream);
  convene::worker::BenchFlat(stream);
  return 0;
}
