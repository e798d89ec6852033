// A linear layer's sizes on this rank, and the place of a gradient.
#pragma once

namespace convene::worker {

// One rank's slice; column-parallel = the out rows are split, row-parallel = the in columns are
// split.
struct LinearShape {
  int rows = 0;  // tokens
  int out = 0;   // of this rank's slice
  int in = 0;    // of this rank's slice
};

// Where a weight's gradient goes. A step's first microbatch overwrites it, so that gradients need
// not be zeroed first (4 bytes written and 4 read a parameter and step).
struct WeightGradient {
  float* data = nullptr;  // null: this pass makes none
  bool adds = true;       // to `data`; else overwrites it, and never reads it
};

}  // namespace convene::worker
