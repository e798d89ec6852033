#include "worker_runtime/tuning/choice_table.h"

#include <xxhash.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// Another number where older choices would no longer be understood.
constexpr absl::string_view kHead = "tuned products of Convene, version 1\n";
constexpr absl::string_view kEnd = "end ";
constexpr size_t kHexBytes = 16;

std::string Hex(uint64_t number) { return absl::StrCat(absl::Hex(number, absl::kZeroPad16)); }

std::string EndLine(absl::string_view before) {
  return absl::StrCat(kEnd, Hex(XXH3_64bits(before.data(), before.size())), "\n");
}

bool IsProduct(absl::string_view text) {
  return !text.empty() && text.size() <= ChoiceTable::kProductBytesMax &&
         std::all_of(text.begin(), text.end(),
                     [](char letter) { return absl::ascii_isprint(letter); });
}

absl::Status Damaged(absl::string_view why) {
  return absl::DataLossError(absl::StrCat("it is no whole file of tuned products (", why, ")"));
}

}  // namespace

absl::StatusOr<ChoiceTable> ChoiceTable::Decode(absl::string_view text,
                                                const std::string& machine) {
  if (text.size() > kTextBytesMax) return Damaged("it is too long");
  absl::string_view rest = text;
  const size_t end_bytes = kEnd.size() + kHexBytes + 1;
  if (rest.size() < end_bytes) return Damaged("it is too short");
  const absl::string_view end = rest.substr(rest.size() - end_bytes);
  rest.remove_suffix(end_bytes);
  if (end != EndLine(rest)) return Damaged("its last line is missing or does not fit");
  if (!absl::ConsumePrefix(&rest, kHead)) {
    return absl::FailedPreconditionError("another version of Convene wrote it");
  }
  if (!absl::ConsumePrefix(&rest, absl::StrCat(machine, "\n"))) {
    return absl::FailedPreconditionError("it is of another GPU, driver or library");
  }
  ChoiceTable table(machine);
  if (rest.empty()) return table;
  if (!absl::ConsumeSuffix(&rest, "\n")) return Damaged("a line has no end");
  for (const absl::string_view line : absl::StrSplit(rest, '\n')) {
    uint64_t algorithm = 0;
    if (line.size() <= kHexBytes || line[kHexBytes] != ' ' ||
        !absl::SimpleHexAtoi(line.substr(0, kHexBytes), &algorithm) ||
        !IsProduct(line.substr(kHexBytes + 1))) {
      return Damaged("a line is no choice");
    }
    table.Put(std::string(line.substr(kHexBytes + 1)), algorithm);
  }
  return table;
}

std::vector<std::string> ChoiceTable::InOrder() const {
  std::vector<std::string> products;
  for (const auto& [product, choice] : choices_) products.push_back(product);
  std::sort(products.begin(), products.end(), [&](const auto& one, const auto& other) {
    return choices_.at(one).turn < choices_.at(other).turn;
  });
  return products;
}

std::string ChoiceTable::Encode() const {
  std::string text = absl::StrCat(kHead, machine_, "\n");
  for (const std::string& product : InOrder()) {
    absl::StrAppend(&text, Hex(choices_.at(product).algorithm), " ", product, "\n");
  }
  return text + EndLine(text);
}

std::optional<uint64_t> ChoiceTable::Find(const std::string& product) const {
  const auto found = choices_.find(product);
  if (found == choices_.end()) return std::nullopt;
  return found->second.algorithm;
}

void ChoiceTable::Put(const std::string& product, uint64_t algorithm) {
  if (!IsProduct(product)) return;
  choices_[product] = {algorithm, turns_++};
  if (choices_.size() <= kMost) return;
  choices_.erase(std::min_element(
      choices_.begin(), choices_.end(),
      [](const auto& one, const auto& other) { return one.second.turn < other.second.turn; }));
}

void ChoiceTable::PutAll(const ChoiceTable& other) {
  for (const std::string& product : other.InOrder()) {
    Put(product, other.choices_.at(product).algorithm);
  }
}

bool ChoiceTable::Contains(const ChoiceTable& other) const {
  return std::all_of(other.choices_.begin(), other.choices_.end(), [&](const auto& choice) {
    return Find(choice.first) == choice.second.algorithm;
  });
}

}  // namespace convene::worker
