// Rows on their way to experts and back, and the gate of shared experts. T: float or BFloat16;
// arithmetic in float. No overlap between x and y.
#pragma once

#include <cstdint>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// y: (rows, columns): y[i] = x[from[i]], or zeros where from[i] < 0. from: (rows).
template <typename T>
void GatherRows(int64_t rows, int columns, const int32_t* from, const T* x, T* y, Stream& stream);

// y: (rows, columns): y[i] = the sum over j of weights[i][j] * x[places[i][j]], in float, in the
// order of j, rounded once; where `adds`, the sum begins with y[i] as it is. places: (rows, terms),
// below 0: no term. weights: (rows, terms), or null: ones.
template <typename T>
void CombineRows(int64_t rows, int columns, int terms, const int32_t* places, const float* weights,
                 const T* x, bool adds, T* y, Stream& stream);

// Weights of the rows y, where dy is the gradient of the weighted rows: dweights[i] = <y[i],
// dy[i]>; then y[i] *= weights[i] and dy[i] *= weights[i]. y, dy: (rows, columns); weights,
// dweights: (rows).
template <typename T>
void WeighRows(int64_t rows, int columns, const float* weights, T* y, T* dy, float* dweights,
               Stream& stream);

// A gate of each row, sigmoid(logits[i]): y[i] *= gate[i]. y: (rows, columns); logits: (rows).
template <typename T>
void GateRows(int64_t rows, int columns, const float* logits, T* y, Stream& stream);

// dlogits[i] = (1 - gate[i]) <y[i], dy[i]>, where y is what GateRows made and dy its gradient; then
// dy[i] *= gate[i]. dlogits: (rows).
template <typename T>
void GateRowsBackward(int64_t rows, int columns, const float* logits, const T* y, T* dy, T* dlogits,
                      Stream& stream);

}  // namespace convene::worker
