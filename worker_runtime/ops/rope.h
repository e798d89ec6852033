// Rotary position embedding (Su et al. 2021), half-split (NeoX) layout as in Hugging Face
// checkpoints: element i of a head turns with element i + head_size/2 by the angle position *
// frequency i.
#pragma once

#include <cstdint>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/rope_scaling.h"

namespace convene::worker {

// YaRN's scale of a magnitude, 1 without YaRN: 0.1 mscale ln(factor) + 1 (Peng et al. 2023,
// equation 22, with DeepSeek's mscale).
double YarnScale(const RopeScaling& scaling, double mscale);
// By which cosines and sines are multiplied: 1 without YaRN.
double RopeAmplitude(const RopeScaling& scaling);

// cosines, sines: (sequence_length, head_size / 2) in host memory, computed in double, by
// RopeAmplitude. head_size: of a head's turned elements.
void RopeTable(int sequence_length, int head_size, double theta, float* cosines, float* sines,
               const RopeScaling& scaling = {});

// Turns in place the heads of x: (batch, sequence_length, row_stride) where each row begins with
// `heads` heads of head_size elements, of which the first `turned` are turned, and the others stay.
// The tables are those of heads of `turned` elements. `positions`: (sequence_length), of the tokens
// in every row; null: 0, 1, 2, ... `document_begin`: (batch, sequence_length), subtracted from each
// position (ops/documents.h); null: nothing. The tables reach to the last difference. `inverse`
// turns back: the backward pass. (With an amplitude it is the transpose, no inverse.) T: float or
// BFloat16; arithmetic in float.
template <typename T>
void RopeApply(int batch, int sequence_length, int heads, int head_size, int turned, int row_stride,
               const float* cosines, const float* sines, const int32_t* positions,
               const int32_t* document_begin, bool inverse, T* x, Stream& stream);

}  // namespace convene::worker
