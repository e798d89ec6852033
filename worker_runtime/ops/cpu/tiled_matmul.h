// Products of fp32 matrices for a processor without AVX-512, and the tiles into which a product is
// cut where each is one thread's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/ops/cpu/primitive_matmul.h"

namespace convene::worker::cpu {

// A part of a product's result, with the operands' parts that it needs.
template <typename In, typename Out>
struct ProductTile {
  ProductShape shape;
  const In* a;
  const In* b;
  Out* c;
};

// How a product's result is cut. The cut depends on the shape alone.
class ProductTiles {
 public:
  // Tiles of at most so many rows and columns, rows in multiples of `line`, but for the last.
  ProductTiles(const ProductShape& shape, int rows_most, int columns_most, int line);

  int64_t count() const { return count_; }
  template <typename In, typename Out>
  ProductTile<In, Out> At(int64_t index, const In* a, const In* b, Out* c) const {
    const ptrdiff_t i = index % down_ * rows_;
    const ptrdiff_t j = index / down_ * columns_;
    return {.shape = ShapeAt(static_cast<int>(i), static_cast<int>(j)),
            .a = a + i * (shape_.transpose_a == Transpose::kYes ? 1 : shape_.lda),
            .b = b + j * (shape_.transpose_b == Transpose::kYes ? shape_.ldb : 1),
            .c = c + i * shape_.ldc + j};
  }

 private:
  ProductShape ShapeAt(int row, int column) const;

  const ProductShape shape_;
  const int rows_;
  const int columns_;
  const int64_t down_;
  const int64_t count_;
};

// A tile's product, by the calling thread alone; beta is 0 or 1.
void MultiplyTile(const ProductTile<float, float>& tile, float beta);

// Whether products must be cut here. Without AVX-512 the cut that oneDNN 2.6 makes for its threads
// changes the rounding (608 of 960 shapes, 1 to 16 threads, on an AMD EPYC with AVX2).
bool NeedsTiles();

// c = op(a) op(b) + beta c; beta is 0 or 1. The tiles depend on the shape alone, and each is one
// thread's product: the same bits for any number of threads, on any processor. Uses the calling
// thread's OpenMP team, of which each thread keeps memory of its own.
void TiledMatMul(const ProductShape& shape, const float* a, const float* b, float beta, float* c);

}  // namespace convene::worker::cpu
