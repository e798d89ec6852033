// The loops over a row that attention and cross-entropy share. T: float or BFloat16.
#pragma once

namespace convene::worker::cpu {

// The largest of x[0 .. count). A NaN may be passed over; the sum of exponentials shows it.
// REQUIRES: count > 0.
template <typename T>
float Max(int count, const T* x);

// The sum of e^(x - shift) (simd.h's Exp).
template <typename T>
float ExpSum(int count, float shift, const T* x);

// x becomes e^(x - shift); returns the sum. Fastest when count is a multiple of 16.
float ExpInPlace(int count, float shift, float* x);

// x becomes factor * e^(x - shift).
template <typename T>
void ScaledExpInPlace(int count, float shift, float factor, T* x);

}  // namespace convene::worker::cpu
