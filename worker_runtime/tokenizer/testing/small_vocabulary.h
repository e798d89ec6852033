// Small vocabularies of our own making, as files.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace convene::worker::testing {

// All bytes, then `more`.
inline std::vector<std::string> TokensOf(const std::vector<std::string>& more) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

// The lines of a tiktoken file.
inline std::string TiktokenFile(const std::vector<std::string>& tokens) {
  std::string file;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    absl::StrAppend(&file, absl::Base64Escape(tokens[rank]), " ", rank, "\n");
  }
  return file;
}

// A tekken.json; `specials` is the text of its "special_tokens", "null" for none.
inline std::string TekkenFile(const std::vector<std::string>& tokens, int special_count,
                              absl::string_view specials) {
  std::string file = absl::StrCat(
      R"({"config": {"pattern": "\\s+|\\S+", "num_vocab_tokens": )", tokens.size(),
      R"(, "default_vocab_size": )", tokens.size() + static_cast<size_t>(special_count),
      R"(, "default_num_special_tokens": )", special_count,
      R"(, "version": "v3"}, "special_tokens": )", specials, R"(, "vocab": [)");
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    absl::StrAppend(&file, rank == 0 ? "" : ",", R"({"rank": )", rank, R"(, "token_bytes": ")",
                    absl::Base64Escape(tokens[rank]), R"(", "token_str": null})");
  }
  return file + "]}";
}

}  // namespace convene::worker::testing
