// PURE. The algorithm of a library that a clock chose for each product, and the text of a file of
// such choices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::worker {

// Products and algorithms are named as in ops/matmul_choices.h.
class ChoiceTable {
 public:
  // Where one more comes, the choice that was put first goes.
  static constexpr size_t kMost = 4096;
  static constexpr size_t kProductBytesMax = 128;
  // Of Encode.
  static constexpr size_t kTextBytesMax = 1024 + kMost * (kProductBytesMax + 18);

  // `machine`: the GPU, its driver and the library (one line of up to 512 bytes). The choices hold
  // for these alone.
  explicit ChoiceTable(std::string machine) : machine_(std::move(machine)) {}

  // The table whose Encode gave `text`. DataLoss: no table did, as it is torn or changed;
  // FailedPrecondition: a table of another machine, or another version of Convene.
  static absl::StatusOr<ChoiceTable> Decode(absl::string_view text, const std::string& machine);
  // The choices in the order in which they were put, between two lines that say for what they hold
  // and a line with the XXH3 hash of all before it.
  std::string Encode() const;

  std::optional<uint64_t> Find(const std::string& product) const;
  // In the place of an earlier choice. A product that is no printable line of 1 to kProductBytesMax
  // bytes is left out.
  void Put(const std::string& product, uint64_t algorithm);
  // Puts all of `other`, in its order.
  void PutAll(const ChoiceTable& other);
  // Whether PutAll would change no choice.
  bool Contains(const ChoiceTable& other) const;
  size_t size() const { return choices_.size(); }

 private:
  struct Choice {
    uint64_t algorithm = 0;
    uint64_t turn = 0;  // rises with each Put
  };

  std::vector<std::string> InOrder() const;  // the products

  std::string machine_;
  uint64_t turns_ = 0;
  absl::flat_hash_map<std::string, Choice> choices_;
};

}  // namespace convene::worker
