// The two loops over a row that attention and cross-entropy share.
#pragma once

namespace convene::worker::cpu {

// The largest of x[0 .. count). A NaN may be passed over; ExpInPlace's sum shows it. REQUIRES:
// count > 0.
float Max(int count, const float* x);

// x becomes e^(x - shift) (simd.h's Exp); returns the sum. Fastest when count is a multiple of 16.
float ExpInPlace(int count, float shift, float* x);

}  // namespace convene::worker::cpu
