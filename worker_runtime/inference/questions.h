// PURE. Questions with endings, as llm.c keeps HellaSwag.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::worker {

// A question with some endings, of which one is right.
struct Question {
  std::vector<int32_t> context;
  std::vector<std::vector<int32_t>> endings;
  int right = 0;
};

// llm.c's file of questions (dev/data/data_common.py, write_evalfile): 256 int32 with the
// magic 20240522, the version 1, the number of questions and the bytes of the longest; then for
// each uint16: 65535, its bytes, its number, the right ending, the number of endings, the length of
// the context and its tokens, and of each ending its length and tokens. InvalidArgument: anything
// else, with the question.
absl::StatusOr<std::vector<Question>> ParseChoices(absl::string_view bytes);

}  // namespace convene::worker
