#include "worker_runtime/comm/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tools/base/check.h"

namespace convene::worker {
namespace {

// A block's running result stays in the first-level cache while the sources stream by.
constexpr size_t kBlock = 1024;

// `Sum` is the type in which elements of type `T` are added.
template <typename T, typename Sum>
void Add(const T* __restrict source, size_t count, Sum* __restrict sum) {
  for (size_t i = 0; i < count; ++i) sum[i] += static_cast<Sum>(source[i]);
}

// Keeps a NaN on either side: a comparison with NaN is false. An `|`, not `||`: no branch.
template <typename T, typename Sum>
void Max(const T* __restrict source, size_t count, Sum* __restrict largest) {
  for (size_t i = 0; i < count; ++i) {
    const Sum value = static_cast<Sum>(source[i]);
    const bool keep = (largest[i] >= value) | std::isnan(largest[i]);
    largest[i] = keep ? largest[i] : value;
  }
}

template <typename From, typename To>
void Convert(const From* __restrict from, size_t count, To* __restrict to) {
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(to, from, count * sizeof(To));
  } else {
    for (size_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]);
  }
}

template <typename T, typename Sum>
void Reduce(absl::Span<const void* const> sources, size_t count, ReduceOp op, T* result) {
  CONVENE_CHECK(!sources.empty());
  alignas(64) Sum block[kBlock];
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t length = std::min(kBlock, count - start);
    const auto source = [&](size_t rank) { return static_cast<const T*>(sources[rank]) + start; };
    Convert(source(0), length, block);
    for (size_t rank = 1; rank < sources.size(); ++rank) {
      if (op == ReduceOp::kSum) {
        Add(source(rank), length, block);
      } else {
        Max(source(rank), length, block);
      }
    }
    Convert(block, length, result + start);
  }
}

}  // namespace

void ReduceInOrder(absl::Span<const void* const> sources, size_t count, DType dtype, ReduceOp op,
                   void* result) {
  switch (dtype) {
    case DType::kFloat32:
      return Reduce<float, float>(sources, count, op, static_cast<float*>(result));
    case DType::kBFloat16:
      return Reduce<BFloat16, float>(sources, count, op, static_cast<BFloat16*>(result));
    case DType::kFloat64:
      return Reduce<double, double>(sources, count, op, static_cast<double*>(result));
    case DType::kInt32:
      return Reduce<int32_t, int32_t>(sources, count, op, static_cast<int32_t*>(result));
    case DType::kUInt8:
      return Reduce<uint8_t, uint8_t>(sources, count, op, static_cast<uint8_t*>(result));
    case DType::kE4M3:
    case DType::kE5M2:
      break;
  }
  CONVENE_CHECK(false);
}

}  // namespace convene::worker
