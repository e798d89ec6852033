#include "worker_runtime/bench/compute.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tools/base/check.h"
#include "tools/base/rounding.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/ops/activation.h"
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/matmul.h"
#include "worker_runtime/ops/rms_norm.h"

namespace convene::worker {
namespace {

struct Sizes {
  std::vector<int> rows, widths, sequences, heads;
  int attention_rows;
};
// A CPU's are those of models that a CPU trains.
Sizes SizesOf(DeviceKind kind) {
  if (kind == DeviceKind::kCpu) return {{64, 512, 2048}, {64, 256, 768}, {128, 512}, {8, 64}, 512};
  return {{1024, 4096, 16384}, {1024, 2048, 4096}, {2048, 8192}, {64, 128}, 8192};
}
constexpr int kHeads = 4;
// On a CPU an iteration of --iters stands for so long, and some calls at least are timed: other
// programs take their turns of milliseconds, of which a few short calls would see none.
constexpr absl::Duration kIteration = absl::Milliseconds(5);
constexpr int kCallsLeast = 2;

// Operands in one piece of the device's memory, full of random numbers between 2^-8 and 2: as
// bfloat16, and two by two as float.
class Operands {
 public:
  Operands(Device& device, char* data, size_t bytes) : data_(data), bytes_(bytes) {
    std::vector<uint16_t> numbers(size_t{1} << 20);
    uint32_t random = 1;
    for (uint16_t& number : numbers) {
      random = random * 1664525 + 1013904223;
      number = static_cast<uint16_t>(0x3b80 + (random >> 16) % 0x480);
    }
    const size_t piece = numbers.size() * sizeof(uint16_t);
    for (size_t begin = 0; begin < bytes; begin += piece) {
      device.Copy(numbers.data(), data + begin, std::min(piece, bytes - begin), device.compute());
    }
  }
  // The next so many elements. REQUIRES: there is room.
  template <typename T>
  T* Take(int64_t count) {
    T* const taken = reinterpret_cast<T*>(data_ + next_);
    next_ += RoundUp(static_cast<size_t>(count) * sizeof(T), 256);
    CONVENE_CHECK(next_ <= bytes_);
    return taken;
  }
  void Rewind() { next_ = 0; }

 private:
  char* const data_;
  const size_t bytes_;
  size_t next_ = 0;
};

class ComputeSweep {
 public:
  ComputeSweep(const BenchFlags& flags, const CommunicatorSet& communicators, Device& device,
               Clock& clock, Operands& operands)
      : flags_(flags),
        communicators_(communicators),
        device_(device),
        clock_(clock),
        stream_(device.compute()),
        operands_(operands) {}

  template <typename T>
  absl::Status Run(std::vector<ComputeRow>* rows) {
    const Sizes sizes = SizesOf(device_.kind());
    for (const int count : sizes.rows) {
      for (const int width : sizes.widths) {
        CONVENE_ASSIGN_OR_RETURN(rows->emplace_back(), Product<T>(count, width));
        CONVENE_ASSIGN_OR_RETURN(rows->emplace_back(), Pass<T>(count, width));
      }
    }
    for (const int sequence : sizes.sequences) {
      for (const int head : sizes.heads) {
        CONVENE_ASSIGN_OR_RETURN(rows->emplace_back(),
                                 Attention<T>(sizes.attention_rows, sequence, head));
      }
    }
    return absl::OkStatus();
  }

 private:
  template <typename T>
  absl::StatusOr<ComputeRow> Product(int rows, int width) {
    operands_.Rewind();
    const int64_t size = int64_t{rows} * width, square = int64_t{width} * width;
    T* const x = operands_.Take<T>(size);
    T* const y = operands_.Take<T>(size);
    T* const weight = operands_.Take<T>(square);
    float* const gradient = operands_.Take<float>(square);
    const auto run = [&] {
      MatMul(Transpose::kNo, Transpose::kYes, rows, width, width, x, weight, 0.0f, y, stream_);
      MatMul(Transpose::kNo, Transpose::kNo, rows, width, width, x, weight, 0.0f, y, stream_);
      MatMul(Transpose::kYes, Transpose::kNo, width, width, rows, x, y, 0.0f, gradient, stream_);
    };
    const double bytes = sizeof(T) * 3.0 * static_cast<double>(2 * size + square);
    return Time({.operation = kProduct,
                 .dtype = kDTypeOf<T>,
                 .rows = rows,
                 .width = width,
                 .flops = 6.0 * static_cast<double>(size) * width,
                 .bytes = bytes},
                run);
  }

  template <typename T>
  absl::StatusOr<ComputeRow> Pass(int rows, int width) {
    operands_.Rewind();
    const int64_t size = int64_t{rows} * width;
    T* const x = operands_.Take<T>(size);
    T* const delta = operands_.Take<T>(size);
    T* const inputs = operands_.Take<T>(2 * size);
    T* const y = operands_.Take<T>(size);
    T* const weight = operands_.Take<T>(width);
    float* const inverse_rms = operands_.Take<float>(rows);
    const auto run = [&] {
      RmsNormForward<T>(rows, width, x, delta, weight, 0, 1e-5f, delta, y, inverse_rms, stream_);
      ActivationForward(Activation::kSwiglu, rows, width, inputs, y, stream_);
    };
    return Time({.operation = kPass,
                 .dtype = kDTypeOf<T>,
                 .rows = rows,
                 .width = width,
                 .bytes = sizeof(T) * 7.0 * static_cast<double>(size)},
                run);
  }

  template <typename T>
  absl::StatusOr<ComputeRow> Attention(int rows, int sequence, int head) {
    operands_.Rewind();
    const AttentionShape shape = {.batch = std::max(1, rows / sequence),
                                  .sequence_length = sequence,
                                  .heads = kHeads,
                                  .kv_heads = kHeads,
                                  .head_size = head};
    const int64_t tokens = int64_t{shape.batch} * sequence;
    const int64_t fused = tokens * shape.qkv_width(), wide = tokens * kHeads * head;
    T* const qkv = operands_.Take<T>(fused);
    T* const dqkv = operands_.Take<T>(fused);
    T* const out = operands_.Take<T>(wide);
    T* const dout = operands_.Take<T>(wide);
    float* const log_sum_exp = operands_.Take<float>(tokens * kHeads);
    const size_t scratch = AttentionWorkspaceBytes<T>(shape, stream_.kind());
    const Workspace workspace = {operands_.Take<char>(static_cast<int64_t>(scratch)), scratch};
    const auto run = [&] {
      const auto heads = Fused(shape, static_cast<const T*>(qkv));
      AttentionForward<T>(shape, {}, {}, heads, out, log_sum_exp, workspace, stream_);
      AttentionBackward<T, T>(shape, {}, {}, heads, out, log_sum_exp, dout, /*adds=*/false,
                              Fused(shape, dqkv), workspace, stream_);
    };
    // Two products of the scores below the diagonal, and five more backward.
    const double scores = static_cast<double>(tokens) * (sequence + 1) / 2;
    return Time({.operation = kAttention,
                 .dtype = kDTypeOf<T>,
                 .rows = sequence,
                 .width = head,
                 .flops = 7.0 * 2 * scores * kHeads * head,
                 .bytes = sizeof(T) * static_cast<double>(3 * fused + 3 * wide)},
                run);
  }

  absl::StatusOr<ComputeRow> Time(ComputeRow row, absl::FunctionRef<void()> run) {
    Stream host = Stream::Cpu();
    run();
    CONVENE_RETURN_IF_ERROR(device_.Synchronize(flags_.timeout));
    CONVENE_RETURN_IF_ERROR(communicators_.host->Barrier(host));
    const bool is_cpu = device_.kind() == DeviceKind::kCpu;
    const MonotonicTime begin = clock_.Now();
    int calls = 0;
    const auto goes_on = [&] {
      return is_cpu ? calls < kCallsLeast || clock_.Now() - begin < flags_.iterations * kIteration
                    : calls < flags_.iterations;
    };
    for (; goes_on(); ++calls) run();
    CONVENE_RETURN_IF_ERROR(device_.Synchronize(flags_.timeout));
    row.seconds = absl::ToDoubleSeconds(clock_.Now() - begin) / calls;
    CONVENE_RETURN_IF_ERROR(
        communicators_.host->AllReduce(absl::MakeSpan(&row.seconds, 1), ReduceOp::kMax, host));
    return row;
  }

  const BenchFlags& flags_;
  const CommunicatorSet& communicators_;
  Device& device_;
  Clock& clock_;
  Stream& stream_;
  Operands& operands_;
};

}  // namespace

absl::StatusOr<std::vector<ComputeRow>> TimeCompute(const BenchFlags& flags,
                                                    const CommunicatorSet& communicators,
                                                    Device& device, Clock& clock) {
  const Sizes sizes = SizesOf(device.kind());
  // Passes take the most: five arrays in fp32. Attention's scratch is the rest.
  const size_t bytes =
      size_t{5} * sizeof(float) * sizes.rows.back() * sizes.widths.back() + (size_t{256} << 20);
  CONVENE_ASSIGN_OR_RETURN(void* const memory, device.memory().Allocate(bytes));
  Operands operands(device, static_cast<char*>(memory), bytes);
  ComputeSweep sweep(flags, communicators, device, clock, operands);
  std::vector<ComputeRow> rows;
  absl::Status status = sweep.Run<float>(&rows);
  if (status.ok()) status = sweep.Run<BFloat16>(&rows);
  device.Synchronize(flags.timeout).IgnoreError();
  device.memory().Free(memory, bytes);
  CONVENE_RETURN_IF_ERROR(status);
  return rows;
}

}  // namespace convene::worker
