// Runs of a tiny model on text with structure to learn: the parts that layout_test and
// layout_bits_test share.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/base/rounding.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/testing/training_run.h"

namespace convene::worker::testing {

inline constexpr int kSteps = 12;
// Where two runs must agree to the bit: a bit that differs shows in the first steps.
inline int StepsOfBits() { return OnGpus() ? 3 : 4; }
inline constexpr int kSequenceLength = 16;
// llama-tiny has eight blocks of 49 thousand elements: five buckets, none of them one group. The
// other one has a bucket for each block.
inline int64_t SeveralBuckets() { return OnGpus() ? 1 : 60'000; }

// Larger than the rounding of a gradient. With 1e-8 a weight whose gradient is 0 but for rounding
// moves as far as any other, and which way depends on the processor.
inline constexpr double kEpsilon = 1e-5;

struct TinyRun {
  ModelConfig model;
  Layout layout;
  int global_batch_size = 8;
  int micro_batch_size = 1;
  DType dtype = DType::kFloat32;
  DType reduce_dtype = DType::kFloat32;
  Recompute recompute = Recompute::kNone;
  int zero_stage = 1;
  bool reshard_after_forward = true;
  bool offload_optimizer = false;
  bool offload_parameters = false;
  bool packed = false;
  bool overlap_communication = true;
  int row_chunks = 0;
  const char* schedule = "1f1b";
  ContextMethod context_method = ContextMethod::kRing;
  Transport transport = TestedTransports().front();
  int steps = kSteps;
  bool reproducible = false;
  bool float8 = false;
  int bf16_end_blocks = 0;
  const UpdateRule* update_rule = &AdamWRule();
  SampleRoom samples;
  std::function<absl::Status(int rank, int step, Engine& engine)> between;  // TrainingRun's

  BatchCut cut() const {
    if (reproducible) return {global_batch_size, micro_batch_size, layout.dp, true};
    return EvenCut(global_batch_size, micro_batch_size, layout.dp);
  }
};

// llama-tiny; for emulated GPUs a smaller one.
inline ModelConfig Tiny(bool tied = false) {
  ModelConfig config = *NamedModel("llama-tiny");
  if (OnGpus()) config = {4, 16, 16, /*heads=*/4, /*kv_heads=*/4, /*head_size=*/4, 122};
  config.tied_embeddings = tied;
  return config;
}

// Text with structure to learn: token t depends on the one before it and on its place.
inline int32_t TokenAt(int64_t sample, int place) {
  uint64_t x = static_cast<uint64_t>(sample) * 0x9E3779B97F4A7C15 + 12345;
  x ^= x >> 29;
  const int start = static_cast<int>(x % 97);
  return 32 + (start + place * (1 + static_cast<int>(x >> 40) % 3)) % 90;
}

// Ends a document where rows are packed: one of 90 tokens, so most rows have two or none.
inline constexpr int32_t kEndOfDocument = 60;

inline Sample TextSample(int64_t position) {
  Sample sample;
  for (int t = 0; t < kSequenceLength; ++t) {
    sample.inputs.push_back(TokenAt(position, t));
    sample.targets.push_back(TokenAt(position, t + 1));
  }
  return sample;
}

inline Curve CurveOf(const TinyRun& run) {
  const BatchCut cut = run.cut();
  const int microbatches = static_cast<int>(MicrobatchCount(cut));
  const auto schedule =
      MakeSchedule(run.schedule, run.layout.pp, /*virtual_stages=*/0, microbatches);
  REQUIRE_OK(schedule);
  absl::StatusOr<Curve> curve = Train(
      {.engine = {.model = run.model,
                  .update_rule = run.update_rule,
                  .layout = run.layout,
                  .seed = 11,
                  .dtype = run.dtype,
                  .float8 = run.float8,
                  .bf16_end_blocks = run.bf16_end_blocks,
                  .reduce_dtype = run.reduce_dtype,
                  .reproducible = run.reproducible,
                  .global_microbatches = CeilDivide(run.global_batch_size, run.micro_batch_size),
                  .recompute = run.recompute,
                  .sequence_parallel = run.layout.tp > 1,
                  .row_chunks = run.row_chunks,
                  .overlap_communication = run.overlap_communication,
                  .packed_documents = run.packed,
                  .micro_batch_size = cut.micro_batch_size,
                  .sequence_length = kSequenceLength,
                  .context_method = run.context_method,
                  .microbatches = microbatches,
                  .schedule = *schedule,
                  .bucket_count_min = SeveralBuckets(),
                  .zero_stage = run.zero_stage,
                  .reshard_after_forward = run.reshard_after_forward,
                  .offload_optimizer = run.offload_optimizer,
                  .offload_parameters = run.offload_parameters,
                  .samples = run.samples},
       .cut = cut,
       .steps = run.steps,
       .sample = TextSample,
       .end_of_document = kEndOfDocument,
       .adam =
           [](int step) {
             return UpdateParameters{.learning_rate = 1e-3 * std::min(1.0, step / 4.0),
                                     .epsilon = kEpsilon,
                                     .weight_decay = 0.1};
           },
       .between = run.between,
       .transport = run.transport});
  REQUIRE_OK(curve);
  return *std::move(curve);
}

inline void CheckSameCurve(const Curve& curve, const Curve& expected) {
  CHECK_THAT(CurveDifference(curve, expected), Catch::Equals(""));
}

inline void CheckSameTensors(const Curve& curve, const Curve& expected) {
  CHECK_THAT(TensorDifference(curve, expected), Catch::Equals(""));
  CHECK_THAT(curve.unequal, Catch::Equals(std::vector<std::string>()));
}

inline void CheckSameBits(const Curve& curve, const Curve& expected) {
  CHECK(curve.losses == expected.losses);
  CHECK(curve.grad_norms == expected.grad_norms);
  CHECK(curve.parameters == expected.parameters);
}

}  // namespace convene::worker::testing
