// Sums, conversions and norms over flat arrays.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"

namespace convene::worker {

// y += x. T: float or BFloat16.
template <typename T>
void AddInPlace(int64_t count, const T* x, T* y, Stream& stream);

// x *= factor. T: float or BFloat16.
template <typename T>
void ScaleInPlace(int64_t count, float factor, T* x, Stream& stream);

// x becomes cap tanh(x / cap), and the gradient of that, by what x became, the gradient of x. T:
// float or BFloat16.
template <typename T>
void SoftCap(int64_t count, float cap, T* x, Stream& stream);
template <typename T>
void SoftCapBackward(int64_t count, float cap, const T* capped, T* dx, Stream& stream);

// `rows` rows of x, x_stride elements apart, to those of y. No overlap.
template <typename T>
void CopyRows(int64_t rows, int columns, const T* x, int64_t x_stride, T* y, int64_t y_stride,
              Stream& stream);

// The same, from float; rounds to nearest, ties to even.
template <typename T>
void RoundRows(int64_t rows, int columns, const float* x, int64_t x_stride, T* y, int64_t y_stride,
               Stream& stream);

// y = x. No overlap.
void Copy(int64_t count, const float* x, float* y, Stream& stream);

// Rounds to nearest, ties to even.
void ToBFloat16(int64_t count, const float* x, BFloat16* y, Stream& stream);
void ToFloat(int64_t count, const BFloat16* x, float* y, Stream& stream);

// Flags of a parameter, one byte for each 64 elements of a flat buffer (parameters start at
// multiples of 64; the elements between them are zero).
inline constexpr int kFlagBlock = 64;
enum ParameterFlag : uint8_t {
  kDecayed = 1,  // weight decay applies
  kOwned = 2,    // counted in the global gradient norm by this rank
};

// Scratch of SumOfSquares.
size_t SumOfSquaresWorkspaceBytes(int64_t count, DeviceKind device);

// *sum (one double in the device's memory) += the sum of x^2 over the blocks whose flag has kOwned,
// accumulated in double in a fixed order: the same bits for the same input. flags: (count / 64). x
// at a multiple of 64 bytes. REQUIRES: count is a multiple of kFlagBlock.
void SumOfSquares(int64_t count, const float* x, const uint8_t* flags, double* sum,
                  const Workspace& workspace, Stream& stream);

// *sum += x[0], then x[1], and so on: the same bits on every device. For few numbers. x: (count),
// like sum in the device's memory.
void AddInOrder(int64_t count, const double* x, double* sum, Stream& stream);

}  // namespace convene::worker
