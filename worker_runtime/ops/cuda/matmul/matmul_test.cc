// The products of ops/matmul.h on a GPU.
#include <cuda_runtime.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "worker_runtime/device/cuda/testing/cuda_testing.h"
#include "worker_runtime/device/cuda/testing/gpu_testing.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/matmul/matmul_plans.h"
#include "worker_runtime/ops/cuda/testing/kernel_testing.h"
#include "worker_runtime/ops/matmul_choices.h"
#include "worker_runtime/ops/testing/ops_testing.h"
#include "worker_runtime/ops/testing/reference/matmul.h"

namespace convene::worker::cuda {
namespace {

using convene::testing::HasGpuOrSkips;
using testing::TestQueue;
using worker::testing::As;
using worker::testing::Compare;
using worker::testing::kForward;
using worker::testing::Load;
using worker::testing::NumbersOf;
using worker::testing::Outputs;
using worker::testing::Store;

// Sets the mode while it lives.
class ScopedMode {
 public:
  explicit ScopedMode(MatMulMode mode) { SetMatMulMode(mode); }
  ~ScopedMode() { SetMatMulMode(MatMulMode::kTimed); }
  ScopedMode(const ScopedMode&) = delete;
  ScopedMode& operator=(const ScopedMode&) = delete;
};

struct Product {
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  int m = 0;
  int n = 0;
  int k = 0;
  float beta = 0;

  size_t a_count() const { return static_cast<size_t>(m) * k; }
  size_t b_count() const { return static_cast<size_t>(k) * n; }
  size_t c_count() const { return static_cast<size_t>(m) * n; }
};

template <typename In, typename Out>
std::vector<Out> MultiplyOnGpu(TestQueue& queue, const Product& product,
                               const std::vector<float>& a, const std::vector<float>& b,
                               const std::vector<float>& c) {
  OnGpu<In> gpu_a(Store<In>(a));
  OnGpu<In> gpu_b(Store<In>(b));
  // With beta 0 the old content of c must not matter: it is poison.
  auto gpu_c = product.beta == 0 ? OnGpu<Out>(c.size()) : OnGpu<Out>(Store<Out>(c));
  Stream stream = queue.stream();
  cuda::MatMul(product.transpose_a, product.transpose_b, product.m, product.n, product.k,
               gpu_a.data(), gpu_b.data(), product.beta, gpu_c.data(), stream);
  queue.Finish();
  return gpu_c.Read();
}

template <typename In, typename Out>
void CheckProduct(TestQueue& queue, const Product& product) {
  CAPTURE(product.m, product.n, product.k, product.transpose_a, product.transpose_b, product.beta);
  const auto a = NumbersOf<In>(product.a_count(), 1);
  const auto b = NumbersOf<In>(product.b_count(), 2);
  const auto c = NumbersOf<Out>(product.c_count(), 3);
  Compare<Out>(
      kForward,
      [&] { return Outputs<float>{Load(MultiplyOnGpu<In, Out>(queue, product, a, b, c))}; },
      [&](auto zero) {
        using Real = decltype(zero);
        auto y = As<Real>(c);
        reference::MatMul<Real>(product.transpose_a, product.transpose_b, product.m, product.n,
                                product.k, As<Real>(a).data(), As<Real>(b).data(),
                                Real{product.beta}, y.data());
        return Outputs<Real>{y};
      });
}

std::vector<Product> EveryTransposeAndBeta(int m, int n, int k) {
  std::vector<Product> products;
  for (const Transpose transpose_a : {Transpose::kNo, Transpose::kYes}) {
    for (const Transpose transpose_b : {Transpose::kNo, Transpose::kYes}) {
      for (const float beta : {0.0f, 1.0f}) {
        products.push_back({transpose_a, transpose_b, m, n, k, beta});
      }
    }
  }
  return products;
}

TEST_CASE(
    "products on the GPU agree with the reference for every type, transpose, beta and shape") {
  if (!HasGpuOrSkips()) return;
  TestQueue queue;
  for (const MatMulMode mode :
       {MatMulMode::kDeterministic, MatMulMode::kFirst, MatMulMode::kTimed}) {
    const ScopedMode scoped_mode(mode);
    CAPTURE(static_cast<int>(mode));
    for (const auto& [m, n, k] : std::vector<std::array<int, 3>>{{1, 1, 1},
                                                                 {1, 17, 5},
                                                                 {7, 1, 33},
                                                                 {5, 19, 3},
                                                                 {33, 65, 129},
                                                                 {128, 96, 64},
                                                                 {48, 40, 1500},
                                                                 {256, 64, 192}}) {
      for (const Product& product : EveryTransposeAndBeta(m, n, k)) {
        CheckProduct<float, float>(queue, product);
        CheckProduct<BFloat16, BFloat16>(queue, product);
        CheckProduct<BFloat16, float>(queue, product);
      }
    }
  }
}

TEST_CASE("fp32 products are not rounded to TF32") {
  if (!HasGpuOrSkips()) return;
  TestQueue queue;
  // 1 + 2^-20 needs more bits than TF32's 10.
  const float value = 1.0f + 0x1p-20f;
  const Product product{.m = 64, .n = 64, .k = 64};
  std::vector<float> identity(product.b_count(), 0.0f);
  for (int i = 0; i < product.k; ++i) identity[i * product.n + i] = 1.0f;
  const std::vector<float> a(product.a_count(), value);
  CHECK(MultiplyOnGpu<float, float>(queue, product, a, identity, a) == a);
}

TEST_CASE("an empty sum over k leaves beta times c") {
  if (!HasGpuOrSkips()) return;
  TestQueue queue;
  const std::vector<float> c = {1, 2, 3, 4, 5, 6};
  CHECK(MultiplyOnGpu<float, float>(queue, {.m = 2, .n = 3, .k = 0, .beta = 1}, {}, {}, c) == c);
  CHECK(MultiplyOnGpu<float, float>(queue, {.m = 2, .n = 3, .k = 0, .beta = 0}, {}, {}, c) ==
        std::vector<float>(6, 0.0f));
  CHECK(MultiplyOnGpu<float, float>(queue, {.m = 0, .n = 3, .k = 2}, {}, std::vector<float>(6), {})
            .empty());
}

TEST_CASE("choosing an algorithm by the clock adds to c once") {
  if (!HasGpuOrSkips()) return;
  TestQueue queue;
  const ScopedMode mode(MatMulMode::kTimed);
  const Product product{.m = 512, .n = 256, .k = 128, .beta = 1};
  const std::vector<float> ones_a(product.a_count(), 1.0f);
  const std::vector<float> ones_b(product.b_count(), 1.0f);
  const std::vector<float> c(product.c_count(), 0.5f);
  CHECK(MultiplyOnGpu<BFloat16, float>(queue, product, ones_a, ones_b, c) ==
        std::vector<float>(product.c_count(), 128.5f));
}

TEST_CASE("choosing an algorithm by the clock keeps no memory of the GPU") {
  if (!HasGpuOrSkips()) return;
  const auto free_bytes = [] {
    size_t free = 0;
    size_t total = 0;
    REQUIRE_CUDA(cudaMemGetInfo(&free, &total));
    return free;
  };
  TestQueue queue;
  const ScopedMode mode(MatMulMode::kTimed);
  REQUIRE(queue.queue().cublaslt() != nullptr);
  REQUIRE(queue.queue().matmul_workspace() != nullptr);
  constexpr int kWidth = 4096;
  OnGpu<BFloat16> a(kWidth);
  OnGpu<BFloat16> b(kWidth);
  OnGpu<float> c(size_t{kWidth} * kWidth);
  Stream stream = queue.stream();
  const auto add = [&](int width) {
    cuda::MatMul(Transpose::kNo, Transpose::kNo, width, width, 1, a.data(), b.data(), 1.0f,
                 c.data(), stream);
    queue.Finish();
  };
  // A GPU's driver keeps memory for kernels that it loads at a first use. The scratch of this
  // product takes 16 MiB, that of the next one 64.
  add(kWidth / 2);
  const size_t before = free_bytes();
  add(kWidth);
  CHECK(free_bytes() + (size_t{40} << 20) > before);
}

TEST_CASE("a deterministic product has the same bits in another queue") {
  if (!HasGpuOrSkips()) return;
  const ScopedMode mode(MatMulMode::kDeterministic);
  // Few outputs and a long sum: where algorithms split k.
  const Product product{Transpose::kYes, Transpose::kNo, 64, 64, 16384, 1};
  const auto a = NumbersOf<BFloat16>(product.a_count(), 1);
  const auto b = NumbersOf<BFloat16>(product.b_count(), 2);
  const auto c = NumbersOf<float>(product.c_count(), 3);
  TestQueue first;
  TestQueue second;
  const auto expected = MultiplyOnGpu<BFloat16, float>(first, product, a, b, c);
  for (int run = 0; run < 3; ++run) {
    CHECK(MultiplyOnGpu<BFloat16, float>(first, product, a, b, c) == expected);
    CHECK(MultiplyOnGpu<BFloat16, float>(second, product, a, b, c) == expected);
  }
}

TEST_CASE("products of ever other rows ask the library a few times") {
  if (!HasGpuOrSkips()) return;
  const ScopedMode mode(GENERATE(MatMulMode::kTimed, MatMulMode::kDeterministic));
  constexpr int kWidth = 16;
  constexpr int kMost = 1100;
  OnGpu<BFloat16> ones(Store<BFloat16>(std::vector<float>(size_t{kMost} * kWidth, 1.0f)));
  OnGpu<float> c(size_t{kWidth} * kWidth);
  TestQueue queue;
  auto& plans = queue.queue().plans<MatMulPlans>();
  for (int k = 1000; k < kMost; ++k) {
    plans.RunRows({.transpose_a = true,
                   .m = kWidth,
                   .n = kWidth,
                   .k = k,
                   .in_a = DType::kBFloat16,
                   .in_b = DType::kBFloat16,
                   .alignment_a = 16,
                   .alignment_b = 16,
                   .alignment_c = 16},
                  &MatMulKey::k, {.a = ones.data(), .b = ones.data(), .c = c.data()});
    queue.Finish();
    CHECK(c.Read() == std::vector<float>(size_t{kWidth} * kWidth, static_cast<float>(k)));
  }
  // Once for either power of two, and for products that its algorithm does not do.
  CHECK(plans.asked() <= 10);
}

TEST_CASE("a product can be captured, even one that was not seen before") {
  if (!HasGpuOrSkips()) return;
  TestQueue queue;
  const ScopedMode mode(MatMulMode::kTimed);
  const Product product{.m = 32, .n = 32, .k = 32};
  const auto a = NumbersOf<BFloat16>(product.a_count(), 1);
  const auto b = NumbersOf<BFloat16>(product.b_count(), 2);
  OnGpu<BFloat16> gpu_a(Store<BFloat16>(a));
  OnGpu<BFloat16> gpu_b(Store<BFloat16>(b));
  OnGpu<float> gpu_c(product.c_count());
  // The handle and its scratch are made before.
  REQUIRE(queue.queue().cublaslt() != nullptr);
  REQUIRE(queue.queue().matmul_workspace() != nullptr);
  const cudaStream_t cuda_stream = queue.queue().stream();
  Stream stream = queue.stream();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  REQUIRE_CUDA(cudaStreamBeginCapture(cuda_stream, cudaStreamCaptureModeThreadLocal));
  cuda::MatMul(Transpose::kNo, Transpose::kNo, 32, 32, 32, gpu_a.data(), gpu_b.data(), 0.0f,
               gpu_c.data(), stream);
  REQUIRE_CUDA(cudaStreamEndCapture(cuda_stream, &graph));
  REQUIRE_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  REQUIRE_CUDA(cudaGraphLaunch(executable, cuda_stream));
  queue.Finish();
  const ScopedMode first(MatMulMode::kFirst);
  CHECK(gpu_c.Read() == MultiplyOnGpu<BFloat16, float>(queue, product, a, b,
                                                       std::vector<float>(product.c_count())));
  REQUIRE_CUDA(cudaGraphExecDestroy(executable));
  REQUIRE_CUDA(cudaGraphDestroy(graph));
}

// As a file keeps them, and what was asked of it.
class KeptChoices final : public MatMulChoices {
 public:
  std::optional<uint64_t> Find(const std::string& product) override {
    finds.push_back(product);
    const auto found = kept.find(product);
    if (found == kept.end()) return std::nullopt;
    return found->second;
  }
  uint64_t Land(const std::string& product, uint64_t algorithm) override {
    landed.push_back(product);
    return kept.try_emplace(product, algorithm).first->second;
  }

  std::map<std::string, uint64_t> kept;
  std::vector<std::string> finds, landed;
};

class ScopedChoices {
 public:
  explicit ScopedChoices(MatMulChoices& choices) { SetMatMulChoices(&choices); }
  ~ScopedChoices() { SetMatMulChoices(nullptr); }
  ScopedChoices(const ScopedChoices&) = delete;
  ScopedChoices& operator=(const ScopedChoices&) = delete;
};

TEST_CASE("a choice that is kept is not timed again, in any queue") {
  if (!HasGpuOrSkips()) return;
  const ScopedMode mode(MatMulMode::kTimed);
  KeptChoices choices;
  const ScopedChoices scoped(choices);
  const Product product{.m = 64, .n = 32, .k = 256};
  const auto a = NumbersOf<BFloat16>(product.a_count(), 1);
  const auto b = NumbersOf<BFloat16>(product.b_count(), 2);
  const std::vector<float> c(product.c_count());
  TestQueue first;
  const auto expected = MultiplyOnGpu<BFloat16, float>(first, product, a, b, c);
  CHECK(MultiplyOnGpu<BFloat16, float>(first, product, a, b, c) == expected);
  REQUIRE(choices.landed.size() == 1);
  CHECK(choices.landed == choices.finds);
  CHECK_THAT(choices.landed[0], Catch::StartsWith("a,b m64 n32 k256 bf16,bf16>fp32 align "));
  TestQueue second;
  CHECK(MultiplyOnGpu<BFloat16, float>(second, product, a, b, c) == expected);
  CHECK(choices.finds.size() == 2);
  CHECK(choices.landed.size() == 1);
  SECTION("a choice that the library does not know is timed anew") {
    const uint64_t known = choices.kept.begin()->second;
    choices.kept.begin()->second = known + 1;
    TestQueue third;
    CHECK(MultiplyOnGpu<BFloat16, float>(third, product, a, b, c).size() == c.size());
    CHECK(choices.landed.size() == 2);
  }
  SECTION("where the clock chooses nothing, nobody is asked") {
    for (const MatMulMode other : {MatMulMode::kFirst, MatMulMode::kDeterministic}) {
      const ScopedMode scoped_mode(other);
      TestQueue third;
      CHECK(MultiplyOnGpu<BFloat16, float>(third, product, a, b, c).size() == c.size());
    }
    CHECK(choices.finds.size() == 2);
  }
}

}  // namespace
}  // namespace convene::worker::cuda
