// Products of fp32 matrices for a processor without AVX-512.
#pragma once

#include "worker_runtime/ops/cpu/primitive_matmul.h"

namespace convene::worker::cpu {

// Whether products must be cut here. Without AVX-512 the cut that oneDNN 2.6 makes for its threads
// changes the rounding (608 of 960 shapes, 1 to 16 threads, on an AMD EPYC with AVX2).
bool NeedsTiles();

// c = op(a) op(b) + beta c; beta is 0 or 1. The tiles depend on the shape alone, and each is one
// thread's product: the same bits for any number of threads, on any processor. Uses the calling
// thread's OpenMP team, of which each thread keeps memory of its own.
void TiledMatMul(const ProductShape& shape, const float* a, const float* b, float beta, float* c);

}  // namespace convene::worker::cpu
