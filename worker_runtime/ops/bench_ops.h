// The ops at a model's shapes, ready to be timed: for the benches of both devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/base/check.h"
#include "tools/base/rounding.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/workspace.h"
#include "worker_runtime/ops/adamw.h"

namespace convene::worker {

struct BenchShape {
  int rows;  // a multiple of sequence_length
  int hidden;
  int ffn;
  int heads;
  int kv_heads;
  int head_size;
  int sequence_length;
  int vocabulary;
  int64_t activations;  // elements of the flat ops on activations
  int64_t parameters;   // and of those on parameters: a multiple of kFlagBlock
};

// The ops' operands, in the memory of the device that `stream` belongs to.
struct BenchInputs {
  BenchShape shape;
  Stream& stream;
  char* arena;  // random numbers between 2^-8 and 2, as bfloat16 and, two by two, as float
  size_t arena_bytes;
  int64_t distinct_tokens = 0;
  const int32_t* tokens = nullptr;
  const float* cosines = nullptr;
  const float* sines = nullptr;
  const uint8_t* flags = nullptr;
  const AdamWFactors* factors = nullptr;
  const StepControl* control = nullptr;
  const float* scale = nullptr;
};

// All of it stays allocated until the program ends. Errors: the memory's and the device's.
absl::StatusOr<BenchInputs> MakeBenchInputs(Device& device, const BenchShape& shape,
                                            size_t arena_bytes);

// Hands out the arena, from `begin` on.
class Pieces {
 public:
  explicit Pieces(const BenchInputs& inputs, size_t begin = 0)
      : next_(inputs.arena + begin), end_(inputs.arena + inputs.arena_bytes) {}

  // REQUIRES: there is room.
  template <typename T>
  T* Take(int64_t count) {
    T* const piece = reinterpret_cast<T*>(next_);
    const size_t bytes = RoundUp(static_cast<size_t>(count) * sizeof(T), 256);
    CONVENE_CHECK(bytes <= static_cast<size_t>(end_ - next_));
    next_ += bytes;
    return piece;
  }
  Workspace Scratch(size_t bytes) {
    if (bytes > 0) scratch_ = next_;
    return {Take<char>(static_cast<int64_t>(bytes)), bytes};
  }
  const char* next() const { return next_; }
  // On a CPU, where only attention has scratch, and takes it last: the end of all operands.
  const char* operands_end() const { return scratch_ != nullptr ? scratch_ : next_; }

 private:
  char* next_;
  char* const end_;
  const char* scratch_ = nullptr;
};

struct BenchOp {
  std::string name;
  double bytes;  // each input once and each output once
  std::function<void(Pieces& set)> run;
  double flops = 0;  // of products and attention: a multiply-add is two, a masked score none
};

// T: float or BFloat16. The products of a block and of the head: forward, the input's gradient and
// the weight's.
template <typename T>
std::vector<BenchOp> ProductOps(const BenchInputs& inputs);
// A product by one matrix, and the same work by the matrices of 8 experts, which share the rows
// unevenly; and the rows' ways to experts and back.
template <typename T>
std::vector<BenchOp> ExpertOps(const BenchInputs& inputs);
// Causal, and over packed documents of 32 tokens.
template <typename T>
std::vector<BenchOp> AttentionOps(const BenchInputs& inputs);
// Memory-bound, as FlatOps.
template <typename T>
std::vector<BenchOp> RowOps(const BenchInputs& inputs);
std::vector<BenchOp> FlatOps(const BenchInputs& inputs);

}  // namespace convene::worker
