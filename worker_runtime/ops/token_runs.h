// PURE. The tokens of a whole row that stand side by side in an array.
#pragma once

namespace convene::worker {

// The tokens from first[0] on, and after `run` of them the tokens from first[1] on
// (parallel/context_cut.h).
struct TokenRuns {
  int run = 0;
  int first[2] = {};
  // In the list of documents' begins, (batch, begin_stride), a row's first token of the array has
  // the place begin_offset, and the others follow.
  int begin_stride = 0;
  int begin_offset = 0;
};

}  // namespace convene::worker
