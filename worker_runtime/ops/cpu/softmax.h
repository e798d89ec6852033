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

// scores become cap tanh(score / cap).
void CapRow(int count, float cap, float* scores);

// One step of the online softmax, over `padded` scores of which one is above -infinity: raises the
// row's maximum, rescales what was summed under the old one, and leaves the scores' exponentials.
// out: (head_size). Fastest when `padded` is a multiple of 16.
void SoftmaxRow(int padded, int head_size, float* scores, float* row_max, float* row_sum,
                float* out);

}  // namespace convene::worker::cpu
