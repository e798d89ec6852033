#include "worker_runtime/planner/utilization.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "worker_runtime/model/parameters.h"

namespace convene::worker {
namespace {

TEST_CASE("a driver's name means the table's card, or none") {
  for (const auto& [name, card] :
       {std::pair<const char*, const char*>{"NVIDIA H100 80GB HBM3", "h100"},
        {"NVIDIA H200, 139 GiB, compute capability 9.0", "h200"},
        {"NVIDIA A100-SXM4-80GB", "a100"},
        {"NVIDIA GB200", "gb200"},
        {"NVIDIA B200", "b200"},
        {"NVIDIA L40S", "l40s"},
        {"NVIDIA GeForce RTX 4090", "rtx-4090"}}) {
    INFO(name);
    REQUIRE(GpuOfDevice(name).has_value());
    CHECK(GpuOfDevice(name)->name == card);
  }
  for (const char* name : {"CPU", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA V100-SXM2-16GB",
                           "NVIDIA GeForce RTX 4090 Laptop GPU", ""}) {
    INFO(name);
    CHECK_FALSE(GpuOfDevice(name).has_value());
  }
}

TEST_CASE("frozen matrices have no product for a weight gradient") {
  ModelConfig model = *NamedModel("llama-3.2-1b");
  ModelCounts counts(model);
  const TokenFlops whole = FlopsOf(model, 1024, counts);
  ModelConfig tuned = model;
  tuned.adapter = {.rank = 8, .alpha = 16};
  ModelCounts tuned_counts(tuned);
  const TokenFlops of_adapters = FlopsOf(tuned, 1024, tuned_counts);
  const auto learned = static_cast<double>(TrainedCount(tuned));
  CHECK(of_adapters.products == Approx(whole.products * 4 / 6 + 6 * learned));
  CHECK(of_adapters.full_attention == whole.full_attention);
}

TEST_CASE("what is computed again counts by its products: norms and SwiGLU have none") {
  const ModelConfig model = *NamedModel("llama-3-8b");
  ModelCounts counts(model);
  const TokenFlops flops = FlopsOf(model, 8192, counts);
  CHECK(RecomputedFlops(model, Recompute::kNone, flops, counts) == 0);
  CHECK(RecomputedFlops(model, Recompute::kSelective, flops, counts) == 0);
  // Of 32 layers query, key and value; attention's output; gate and up; and all scores.
  const double products = 4096.0 * (6144 + 4096 + 2 * 14336);
  const double attention = 2.0 * 4096 * 8192;
  CHECK(RecomputedFlops(model, Recompute::kFull, flops, counts) ==
        Approx(2 * 32 * (products + attention)));
}

TEST_CASE("utilization counts FLOPs against the peak of the products' type") {
  const Gpu gpu = *GpuOfDevice("NVIDIA H100 80GB HBM3");
  CHECK(PeakOf(gpu, DType::kBFloat16, false) == 989e12);
  CHECK(PeakOf(gpu, DType::kBFloat16, true) == 1979e12);
  CHECK(PeakOf(gpu, DType::kFloat32, false) == 67e12);
  const TokenFlops flops = {.products = 40e9, .full_attention = 8e9, .causal_attention = 4e9};
  const Utilization utilization = UtilizationOf(flops, 10000, 1e15);
  CHECK(utilization.full_attention == Approx(0.48));
  CHECK(utilization.causal_attention == Approx(0.44));
}

}  // namespace
}  // namespace convene::worker
