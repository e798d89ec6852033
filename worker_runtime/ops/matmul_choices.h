// The memory of the algorithms that a clock has chosen for products on a GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace convene::worker {

// A product is named by all that decides which algorithms can compute it: its shape, types, places
// in memory and the part of the GPU that it may use, in one printable line of at most 128 bytes. An
// algorithm is named by a hash of the library's own description of it. Names hold for one kind of
// GPU, one driver and one library (MatMulLibrary). Thread-safe.
class MatMulChoices {
 public:
  virtual ~MatMulChoices() = default;
  // nullopt: the product has to be timed; Land follows.
  virtual std::optional<uint64_t> Find(const std::string& product) = 0;
  // The clock has chosen `algorithm`. Returns the algorithm that counts: another process may have
  // been faster to choose. Replaces a choice that Find gave and the library does not know.
  virtual uint64_t Land(const std::string& product, uint64_t algorithm) = 0;
};

// While it lives, all products of this process on GPUs, which are chosen by the clock, ask
// `choices` (null: nobody), which outlives it. One at a time.
class ScopedMatMulChoices {
 public:
  explicit ScopedMatMulChoices(MatMulChoices* choices);
  ~ScopedMatMulChoices();
  ScopedMatMulChoices(const ScopedMatMulChoices&) = delete;
  ScopedMatMulChoices& operator=(const ScopedMatMulChoices&) = delete;
};

// "cuBLASLt 130101": the library that computes products on this program's GPUs; "" without one.
std::string MatMulLibrary();

}  // namespace convene::worker
