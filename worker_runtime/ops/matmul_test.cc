#include <omp.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "worker_runtime/ops/cpu/bf16_matmul.h"
#include "worker_runtime/ops/cpu/few_rows_matmul.h"
#include "worker_runtime/ops/cpu/float_matmul.h"
#include "worker_runtime/ops/cpu/primitive_matmul.h"
#include "worker_runtime/ops/cpu/tiled_matmul.h"
#include "worker_runtime/ops/matmul.h"
#include "worker_runtime/ops/testing/ops_testing.h"
#include "worker_runtime/ops/testing/reference/matmul.h"

namespace convene::worker {
namespace {

using testing::As;
using testing::Compare;
using testing::kForward;
using testing::Load;
using testing::NumbersOf;
using testing::Outputs;
using testing::Store;

Stream& AnyStream() {
  static Stream stream = Stream::Cpu();
  return stream;
}

TEMPLATE_TEST_CASE("matrix products agree with the reference for every transpose, shape and beta",
                   "", float, BFloat16) {
  struct Shape {
    int m, n, k;
  };
  for (const Shape& shape : std::vector<Shape>{{1, 1, 1},
                                               {1, 17, 5},
                                               {7, 1, 33},
                                               {5, 19, 3},
                                               {33, 65, 129},
                                               {128, 96, 64},
                                               {48, 40, 1500}}) {
    for (const Transpose transpose_a : {Transpose::kNo, Transpose::kYes}) {
      for (const Transpose transpose_b : {Transpose::kNo, Transpose::kYes}) {
        for (const float beta : {0.0f, 1.0f}) {
          const int m = shape.m;
          const int n = shape.n;
          const int k = shape.k;
          CAPTURE(m, n, k, transpose_a, transpose_b, beta);
          const size_t size = static_cast<size_t>(m) * n;
          const auto a = NumbersOf<TestType>(static_cast<size_t>(m) * k, 1);
          const auto b = NumbersOf<TestType>(static_cast<size_t>(k) * n, 2);
          // With beta 0 the old content of c must not matter.
          const auto c =
              beta == 0 ? std::vector<float>(size, std::nanf("")) : NumbersOf<TestType>(size, 3);
          const auto product = [&](auto multiply, auto y) {
            multiply(transpose_a, transpose_b, m, n, k, Store<TestType>(a).data(),
                     Store<TestType>(b).data(), beta, y.data());
            return Outputs<float>{Load(y)};
          };
          const auto on_stream = [](Transpose ta, Transpose tb, int rows, int columns, int inner,
                                    auto* x, auto* w, float add, auto* y) {
            MatMul(ta, tb, rows, columns, inner, x, w, add, y, AnyStream());
          };
          const auto reference = [&](auto zero) {
            using Real = decltype(zero);
            auto y = As<Real>(c);
            reference::MatMul<Real>(transpose_a, transpose_b, m, n, k, As<Real>(a).data(),
                                    As<Real>(b).data(), Real{beta}, y.data());
            return Outputs<Real>{y};
          };
          Compare<TestType>(
              kForward, [&] { return product(on_stream, Store<TestType>(c)); }, reference);
          // Main gradients: fp32 out.
          Compare<float>(
              kForward, [&] { return product(on_stream, c); }, reference);
          if constexpr (std::is_same_v<TestType, BFloat16>) {
            // The product that this processor does not use must agree too, where it has that
            // product; its bits may depend on the number of threads.
            const auto other = [](Transpose ta, Transpose tb, int rows, int columns, int inner,
                                  auto... operands) {
              omp_set_num_threads(1);
              const auto shape = cpu::DenseProduct(ta, tb, rows, columns, inner);
              if (cpu::HasBFloat16Products() || cpu::NeedsTiles()) {
                cpu::WidenedMatMul(shape, operands...);
              } else {
                cpu::BFloat16MatMul(shape, operands...);
              }
            };
            Compare<float>(
                kForward, [&] { return product(other, c); }, reference);
          }
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("a product has the same bits for any number of threads", "", float, BFloat16) {
  struct Shape {
    Transpose transpose_a, transpose_b;
    int m, n, k;
  };
  constexpr auto kNo = Transpose::kNo;
  constexpr auto kYes = Transpose::kYes;
  const int threads_before = omp_get_max_threads();
  for (const Shape& shape : std::vector<Shape>{{kNo, kYes, 64, 96, 300},
                                               {kNo, kYes, 260, 64, 2100},
                                               {kYes, kNo, 256, 48, 1024},
                                               {kNo, kNo, 192, 64, 1100},
                                               {kYes, kNo, 200, 64, 2100},
                                               {kYes, kNo, 256, 64, 2100},
                                               {kYes, kNo, 64, 64, 4200},
                                               {kNo, kYes, 64, 768, 2048},
                                               {kNo, kNo, 64, 768, 3000},
                                               {kYes, kNo, 512, 96, 1030},
                                               {kNo, kYes, 5, 1001, 600}}) {
    CAPTURE(shape.transpose_a, shape.transpose_b, shape.m, shape.n, shape.k);
    const auto a = Store<TestType>(NumbersOf<TestType>(static_cast<size_t>(shape.m) * shape.k, 1));
    const auto b = Store<TestType>(NumbersOf<TestType>(static_cast<size_t>(shape.n) * shape.k, 2));
    std::vector<float> expected;
    for (const int threads : {1, 2, 8, 64}) {
      omp_set_num_threads(threads);
      std::vector<float> c = NumbersOf<float>(static_cast<size_t>(shape.m) * shape.n, 3);
      MatMul(shape.transpose_a, shape.transpose_b, shape.m, shape.n, shape.k, a.data(), b.data(), 1,
             c.data(), AnyStream());
      if (expected.empty()) expected = c;
      CHECK((c == expected));  // thousands of numbers: not to be printed
    }
  }
  omp_set_num_threads(threads_before);
}

TEMPLATE_TEST_CASE("of few rows each has the bits that it has alone", "", float, BFloat16) {
  using cpu::DenseProduct;
  CHECK(cpu::HasFewRows(DenseProduct(Transpose::kNo, Transpose::kYes, 16, 8, 8)));
  CHECK_FALSE(cpu::HasFewRows(DenseProduct(Transpose::kNo, Transpose::kYes, 65, 8, 8)));
  CHECK_FALSE(cpu::HasFewRows(DenseProduct(Transpose::kNo, Transpose::kNo, 1, 8, 8)));
  CHECK_FALSE(cpu::HasFewRows(DenseProduct(Transpose::kYes, Transpose::kYes, 1, 8, 8)));
  const int n = 53;  // a whole piece of columns, and one that ends within a tile
  const auto multiply = [&](int rows, int k, float beta, const TestType* a, const TestType* b,
                            auto* c) {
    MatMul(Transpose::kNo, Transpose::kYes, rows, n, k, a, b, beta, c, AnyStream());
  };
  const bool has_avx512 = cpu::HasFewRows(DenseProduct(Transpose::kNo, Transpose::kYes, 64, n, 8));
  // A rest alone; whole lines; a line, a vector and a rest; rows that are copied apart.
  for (const int k : {3, 64, 109, 2048}) {
    const int most = has_avx512 ? 48 : 16;
    CHECK(cpu::HasFewRows(DenseProduct(Transpose::kNo, Transpose::kYes, most, n, k)));
    const auto a = Store<TestType>(NumbersOf<TestType>(static_cast<size_t>(most) * k, 1));
    const auto b = Store<TestType>(NumbersOf<TestType>(static_cast<size_t>(n) * k, 2));
    for (const float beta : {0.0f, 1.0f}) {
      const auto before = NumbersOf<float>(static_cast<size_t>(most) * n, 3);
      auto alone = before;
      auto alone_rounded = Store<TestType>(before);
      for (int row = 0; row < most; ++row) {
        multiply(1, k, beta, &a[static_cast<size_t>(row) * k], b.data(), &alone[row * n]);
        multiply(1, k, beta, &a[static_cast<size_t>(row) * k], b.data(), &alone_rounded[row * n]);
      }
      for (int rows = 2; rows <= most; rows += rows < 16 ? 1 : 32) {
        CAPTURE(k, beta, rows);
        auto together = before;
        auto together_rounded = Store<TestType>(before);
        multiply(rows, k, beta, a.data(), b.data(), together.data());
        multiply(rows, k, beta, a.data(), b.data(), together_rounded.data());
        const auto size = static_cast<ptrdiff_t>(rows) * n;
        CHECK(std::equal(together.begin(), together.begin() + size, alone.begin()));
        CHECK(Load(together_rounded) == [&] {
          auto expected = Store<TestType>(before);
          std::copy_n(alone_rounded.begin(), size, expected.begin());
          return Load(expected);
        }());
      }
    }
  }
}

TEST_CASE("a product goes to the primitive where sgemm is slow, and equals sgemm's") {
  const auto weight_gradient = [](int m, int n, int k) {
    return cpu::DenseProduct(Transpose::kYes, Transpose::kNo, m, n, k);
  };
  CHECK(cpu::PrefersPrimitive(weight_gradient(2048, 384, 2048)));
  CHECK_FALSE(cpu::PrefersPrimitive(weight_gradient(2048, 768, 2048)));
  CHECK_FALSE(cpu::PrefersPrimitive(weight_gradient(1152, 384, 2048)));
  const auto forward = [](int m, int n, int k) {
    return cpu::DenseProduct(Transpose::kNo, Transpose::kYes, m, n, k);
  };
  CHECK(cpu::PrefersPrimitive(forward(2048, 384, 1024)));
  CHECK(cpu::PrefersPrimitive(forward(1024, 1024, 768)));
  CHECK_FALSE(cpu::PrefersPrimitive(forward(1024, 3072, 768)));
  CHECK(cpu::PrefersPrimitive(forward(64, 384, 768)));
  CHECK_FALSE(cpu::PrefersPrimitive(forward(63, 384, 768)));
  CHECK(cpu::PrefersPrimitive(forward(512, 50304, 512)));
  CHECK_FALSE(cpu::PrefersPrimitive(forward(512, 50304, 255)));
  // One column more than the stride that sgemm is slow for, so that sgemm computes the same rows.
  const int m = 256;
  const int n = 48;
  const int k = 2050;
  const auto narrow = NumbersOf<float>(static_cast<size_t>(m) * k, 1);
  const auto b = NumbersOf<float>(static_cast<size_t>(n) * k, 2);
  std::vector<float> wide(static_cast<size_t>(m + 1) * k);
  for (int i = 0; i < k; ++i) std::copy_n(&narrow[i * m], m, &wide[i * (m + 1)]);
  for (const float beta : {0.0f, 1.0f}) {
    auto by_primitive = NumbersOf<float>(static_cast<size_t>(m) * n, 3);
    auto by_sgemm = by_primitive;
    cpu::ProductShape shape = weight_gradient(m, n, k);
    REQUIRE(cpu::PrefersPrimitive(shape));
    cpu::FloatMatMul(shape, narrow.data(), b.data(), beta, by_primitive.data());
    shape.lda = m + 1;
    REQUIRE_FALSE(cpu::PrefersPrimitive(shape));
    cpu::FloatMatMul(shape, wide.data(), b.data(), beta, by_sgemm.data());
    CHECK(testing::Distance(by_primitive, As<double>(by_sgemm)) <=
          1e-5 * testing::Distance(std::vector<float>(by_sgemm.size()), As<double>(by_sgemm)));
  }
}

TEST_CASE("a product of several tiles equals sgemm's, for every transpose and beta") {
  const int m = 260;  // 3 tiles of rows, 3 of columns, 2 slices of a copied a
  const int n = 530;
  const int k = 600;
  const auto a = NumbersOf<float>(static_cast<size_t>(m) * k, 1);
  const auto b = NumbersOf<float>(static_cast<size_t>(n) * k, 2);
  const int threads_before = omp_get_max_threads();
  for (const Transpose transpose_a : {Transpose::kNo, Transpose::kYes}) {
    for (const Transpose transpose_b : {Transpose::kNo, Transpose::kYes}) {
      for (const float beta : {0.0f, 1.0f}) {
        CAPTURE(transpose_a, transpose_b, beta);
        cpu::ProductShape shape = cpu::DenseProduct(transpose_a, transpose_b, m, n, k);
        shape.ldc = n + 3;
        const std::vector<float> before = NumbersOf<float>(static_cast<size_t>(m) * shape.ldc, 3);
        std::vector<float> expected = before;
        cpu::Sgemm(shape, a.data(), b.data(), beta, expected.data());
        std::vector<float> first;
        for (const int threads : {1, 2, 5}) {
          omp_set_num_threads(threads);
          std::vector<float> actual = before;
          cpu::TiledMatMul(shape, a.data(), b.data(), beta, actual.data());
          CHECK(testing::Distance(actual, As<double>(expected)) <=
                1e-6 * testing::Distance(std::vector<float>(before.size()), As<double>(expected)));
          if (first.empty()) first = actual;
          CHECK((actual == first));  // thousands of numbers: not to be printed
        }
        omp_set_num_threads(threads_before);
      }
    }
  }
}

TEST_CASE("a product without rows or columns touches nothing") {
  const std::vector<float> numbers = {1, 2, 3, 4, 5, 6};
  std::vector<float> c = numbers;
  for (const Transpose transpose : {Transpose::kNo, Transpose::kYes}) {
    for (const auto& [m, n] : std::vector<std::pair<int, int>>{{0, 3}, {3, 0}}) {
      cpu::TiledMatMul(cpu::DenseProduct(transpose, Transpose::kNo, m, n, 2), numbers.data(),
                       numbers.data(), 0, c.data());
      CHECK(c == numbers);
    }
  }
}

TEST_CASE("a bf16 product of several blocks equals the same product in fp32") {
  const int m = 3;
  const int n = 700;
  const int k = 40000;  // a block is 52 columns, then the rest
  const auto a = NumbersOf<BFloat16>(static_cast<size_t>(m) * k, 1);
  const auto b = NumbersOf<BFloat16>(static_cast<size_t>(n) * k, 2);
  std::vector<float> expected(m * n);
  MatMul(Transpose::kNo, Transpose::kYes, m, n, k, a.data(), b.data(), 0, expected.data(),
         AnyStream());
  for (const Transpose transpose_b : {Transpose::kNo, Transpose::kYes}) {
    std::vector<float> right = b;
    if (transpose_b == Transpose::kNo) {
      for (size_t i = 0; i < b.size(); ++i) right[i % k * n + i / k] = b[i];
    }
    std::vector<float> actual(m * n);
    cpu::WidenedMatMul(cpu::DenseProduct(Transpose::kNo, transpose_b, m, n, k),
                       Store<BFloat16>(a).data(), Store<BFloat16>(right).data(), 0, actual.data());
    CHECK(testing::Distance(actual, As<double>(expected)) <=
          1e-5 * testing::Distance(std::vector<float>(expected.size()), As<double>(expected)));
  }
}

}  // namespace
}  // namespace convene::worker
