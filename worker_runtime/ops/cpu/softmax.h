// The loops over a row that attention and cross-entropy share.
#pragma once

#include "worker_runtime/device/dtype.h"

namespace convene::worker::cpu {

// The largest of x[0 .. count). A NaN may be passed over; the sum of exponentials shows it.
// REQUIRES: count > 0.
float Max(int count, const float* x);
float Max(int count, const BFloat16* x);

// The sum of e^(x - shift) (simd.h's Exp).
float ExpSum(int count, float shift, const float* x);
float ExpSum(int count, float shift, const BFloat16* x);

// x becomes e^(x - shift); returns the sum. Fastest when count is a multiple of 16.
float ExpInPlace(int count, float shift, float* x);

// x becomes factor * e^(x - shift).
void ScaledExpInPlace(int count, float shift, float factor, float* x);
void ScaledExpInPlace(int count, float shift, float factor, BFloat16* x);

}  // namespace convene::worker::cpu
