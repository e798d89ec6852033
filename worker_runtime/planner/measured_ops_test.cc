// A plan by measured arithmetic.
#include "worker_runtime/planner/measured_ops.h"

#include "catch2/catch.hpp"
#include "worker_runtime/model/config.h"
#include "worker_runtime/planner/search.h"

namespace convene::worker {
namespace {

// Samples of a machine of this rate, with slower small products, and passes with a constant cost.
MeasuredOps Made(DType dtype, double rate) {
  MeasuredOps ops = {.dtype = dtype};
  for (const double rows : {64, 512, 2048}) {
    for (const double width : {64, 256, 768}) {
      const double flops = 6 * rows * width * width;
      ops.products.push_back({rows, width, flops, flops / rate * (1 + 30 / rows + 100 / width)});
      const double bytes = 28 * rows * width;
      ops.passes.push_back({rows, width, bytes, bytes / 5e9 + 10e-6});
    }
  }
  for (const double length : {128, 1024}) {
    // 128 tokens at half the rate of 1024, and heads of 20 columns at half their own.
    for (const double head : {8, 64}) {
      ops.attention.push_back({length, head, 1e9, (length == 128 ? 0.1 : 0.05) * (1 + 20 / head)});
    }
  }
  return ops;
}

TEST_CASE("a machine is fitted to what it took, by the type of the job") {
  PlanJob job = {.model = *NamedModel("llama-tiny"), .sequence_length = 256};
  const std::vector<MeasuredOps> measured = {Made(DType::kFloat32, 50e9),
                                             Made(DType::kBFloat16, 200e9)};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    job.dtype = dtype;
    const double right = dtype == DType::kFloat32 ? 50e9 : 200e9;
    Gpu gpu = UsualCluster("cpu", 2).gpu;
    Efficiency efficiency = EfficiencyOf(gpu);
    UseMeasured(measured, job, &gpu, &efficiency);
    CHECK((dtype == DType::kFloat32 ? gpu.fp32 : gpu.bf16) == Approx(right).epsilon(0.01));
    CHECK(efficiency.half_rows == Approx(30).epsilon(0.02));
    CHECK(efficiency.half_width == Approx(100).epsilon(0.02));
    CHECK(gpu.memory_bandwidth == Approx(5e9).epsilon(0.01));
    // Eight passes, of which the samples have two.
    CHECK(efficiency.pass_seconds == Approx(40e-6).epsilon(0.01));
    // 256 tokens are nearer to 128 than to 1024.
    CHECK(efficiency.attention_share == Approx(10e9 / right).epsilon(0.02));
    CHECK(efficiency.half_head == Approx(20).epsilon(0.02));
  }
}

TEST_CASE("a measured GPU keeps its data sheet's peaks, and takes a share of them") {
  const PlanJob job = {.model = *NamedModel("llama-tiny"), .sequence_length = 256};
  const Gpu sheet = *FindGpu("h100");
  Gpu gpu = sheet;
  Efficiency efficiency;
  UseMeasured({Made(DType::kBFloat16, 600e12)}, job, &gpu, &efficiency);
  CHECK(gpu.bf16 == sheet.bf16);
  CHECK(gpu.fp8 == sheet.fp8);
  CHECK(gpu.sustained == sheet.sustained);
  CHECK(efficiency.product_share * gpu.sustained * gpu.bf16 == Approx(600e12).epsilon(0.01));
  CHECK(efficiency.attention_share * gpu.sustained * gpu.bf16 == Approx(10e9).epsilon(0.02));
}

TEST_CASE("figures that were not measured stay") {
  const PlanJob job = {.model = *NamedModel("llama-tiny"), .dtype = DType::kBFloat16};
  Gpu gpu = UsualCluster("cpu", 2).gpu;
  Efficiency efficiency = EfficiencyOf(gpu);
  UseMeasured({Made(DType::kFloat32, 50e9)}, job, &gpu, &efficiency);
  CHECK(gpu.bf16 == UsualCluster("cpu", 2).gpu.bf16);
  CHECK(efficiency.half_rows == EfficiencyOf(gpu).half_rows);
}

TEST_CASE("noise makes no rate below zero") {
  const PlanJob job = {.model = *NamedModel("llama-tiny"), .dtype = DType::kFloat32};
  MeasuredOps ops = {.dtype = DType::kFloat32};
  // Large products were slower than small ones: another program was busy.
  for (const double rows : {64, 512, 2048}) ops.products.push_back({rows, rows, 1e9, rows * 1e-4});
  Gpu gpu = UsualCluster("cpu", 2).gpu;
  Efficiency efficiency = EfficiencyOf(gpu);
  UseMeasured({ops}, job, &gpu, &efficiency);
  CHECK(gpu.fp32 > 0);
  CHECK(efficiency.half_rows >= 0);
  CHECK(efficiency.half_width >= 0);
}

}  // namespace
}  // namespace convene::worker
