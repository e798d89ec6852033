// PURE. A training, and one way to lay it out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/config.h"

namespace convene::worker {

struct PlanJob {
  ModelConfig model;
  int64_t sequence_length = 4096;
  int64_t global_batch_size = 1024;  // samples a step
  DType dtype = DType::kBFloat16;    // of parameters and activations
  bool float8 = false;               // the products of blocks take 8-bit floats
  DType reduce_dtype = DType::kFloat32;
  int optimizer_states = 2;  // fp32 numbers a parameter, beside the masters
  // Muon, which changes the matrices of blocks as wholes: their elements have optimizer_states
  // numbers, all other elements one more.
  bool whole_matrices = false;
  size_t logits_bytes = size_t{512} << 20;  // LossHeadShape's
  bool splits_rows = true;                  // EngineOptions::sequence_parallel
};

// One layout with all that goes with it. `layout` is world = pp x dp x cp x tp.
struct Strategy {
  Layout layout;
  int zero_stage = 1;  // 0: whole copies (layout.dp_replicate is dp)
  int micro_batch_size = 1;
  Recompute recompute;
  int virtual_stages = 1;    // above 1: the schedule "interleaved", else "1f1b" or "zb-h1"
  bool zero_bubble = false;  // "zb-h1". REQUIRES: virtual_stages is 1
};

}  // namespace convene::worker
