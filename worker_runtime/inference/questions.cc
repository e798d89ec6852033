#include "worker_runtime/inference/questions.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace convene::worker {
namespace {

constexpr int32_t kMagic = 20240522;
constexpr int32_t kVersion = 1;
constexpr size_t kHeaderBytes = 256 * sizeof(int32_t);
constexpr uint16_t kBegin = 65535;
constexpr int kMostEndings = 64;

// The 16-bit numbers of a file.
class Numbers {
 public:
  explicit Numbers(absl::string_view bytes) : bytes_(bytes) {}

  bool is_empty() const { return bytes_.size() < sizeof(uint16_t); }
  // False: there are no more.
  bool Take(int* number) {
    if (is_empty()) return false;
    uint16_t value = 0;
    std::memcpy(&value, bytes_.data(), sizeof(value));
    bytes_.remove_prefix(sizeof(value));
    *number = value;
    return true;
  }
  bool TakeTokens(std::vector<int32_t>* tokens) {
    int count = 0;
    if (!Take(&count) || count < 1 ||
        bytes_.size() / sizeof(uint16_t) < static_cast<size_t>(count)) {
      return false;
    }
    for (int i = 0; i < count; ++i) Take(&tokens->emplace_back());
    return true;
  }

 private:
  absl::string_view bytes_;
};

bool TakeQuestion(Numbers& numbers, int number, Question* question) {
  int begin = 0, bytes = 0, its_number = 0, endings = 0;
  const bool has_head = numbers.Take(&begin) && numbers.Take(&bytes) && numbers.Take(&its_number) &&
                        numbers.Take(&question->right) && numbers.Take(&endings);
  // The number has 16 bits in the file.
  if (!has_head || begin != kBegin || its_number != number % 65536) return false;
  if (endings < 1 || endings > kMostEndings || question->right >= endings) return false;
  if (!numbers.TakeTokens(&question->context)) return false;
  question->endings.resize(endings);
  return std::all_of(question->endings.begin(), question->endings.end(),
                     [&](std::vector<int32_t>& ending) { return numbers.TakeTokens(&ending); });
}

}  // namespace

absl::StatusOr<std::vector<Question>> ParseChoices(absl::string_view bytes) {
  int32_t header[4] = {};
  if (bytes.size() >= kHeaderBytes) std::memcpy(header, bytes.data(), sizeof(header));
  if (header[0] != kMagic || header[1] != kVersion || header[2] < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("it is no file of llm.c's questions: it does not begin with ", kMagic,
                     ", version ", kVersion, " and their number"));
  }
  Numbers numbers(bytes.substr(kHeaderBytes));
  std::vector<Question> questions;
  for (int number = 0; number < header[2]; ++number) {
    if (!TakeQuestion(numbers, number, &questions.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat("question ", number, " of ", header[2],
                                                     " is damaged, or the file is cut short"));
    }
  }
  if (numbers.is_empty()) return questions;
  return absl::InvalidArgumentError(
      absl::StrCat("it goes on behind the ", header[2], " questions that it says"));
}

}  // namespace convene::worker
