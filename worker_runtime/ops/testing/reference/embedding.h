// Plain embedding; the contract is ops/embedding.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace convene::worker::reference {

template <typename Real>
void EmbeddingForward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                      const int32_t* tokens, const Real* table, bool adds, Real* y) {
  for (ptrdiff_t row = 0; row < rows; ++row) {
    const bool is_here = tokens[row] >= vocabulary_begin && tokens[row] < vocabulary_end;
    for (ptrdiff_t i = 0; i < columns; ++i) {
      const Real before = adds ? y[row * columns + i] : Real{0};
      y[row * columns + i] =
          before +
          (is_here ? table[(ptrdiff_t{tokens[row]} - vocabulary_begin) * columns + i] : Real{0});
    }
  }
}

template <typename Real>
void EmbeddingBackward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                       const int32_t* tokens, const Real* dy, Real* dtable) {
  for (ptrdiff_t row = 0; row < rows; ++row) {
    if (tokens[row] < vocabulary_begin || tokens[row] >= vocabulary_end) continue;
    for (ptrdiff_t i = 0; i < columns; ++i) {
      dtable[(ptrdiff_t{tokens[row]} - vocabulary_begin) * columns + i] += dy[row * columns + i];
    }
  }
}

}  // namespace convene::worker::reference
