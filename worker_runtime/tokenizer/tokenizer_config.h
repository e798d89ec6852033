// The files beside a tokenizer, which say what its own file leaves out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// The text of the folder's tokenizer_config.json; empty where there is none. Special tokens that
// only the folder's special_tokens_map.json names ("eos_token") stand in it as well. A
// tokenizer_config.json that is no JSON object comes as it is, for its reader to say so.
// InvalidArgument: a special_tokens_map.json that is none. Else as tools/base/files.h.
absl::StatusOr<std::string> ReadTokenizerConfig(const std::string& folder);

// Of this file's added_tokens_decoder, or of a tokenizer.json's added_tokens.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // not where a letter or the like stands beside it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and behind it
  bool normalized = true;    // looked for in the normalised text, by its own normalised content
  bool special = false;      // left out of decoded text

  friend bool operator==(const AddedToken&, const AddedToken&) = default;
};

struct VocabularyConfig {
  std::string pattern;                             // pat_str
  std::string tokenizer_class;                     // empty where nothing is said
  std::vector<AddedToken> added_tokens;            // added_tokens_decoder, by ids
  std::string begin_of_document, end_of_document;  // bos_token, eos_token
  std::optional<bool> adds_begin_of_document;      // add_bos_token
  std::optional<bool> adds_end_of_document;        // add_eos_token
  // What transformers gives a chat template: each "..._token", the members of extra_special_tokens
  // and model_specific_special_tokens, and additional_special_tokens.
  std::vector<NamedToken> named_tokens;
};

// `json` may be empty: nothing is said. Members of other kinds than these are left out of account.
// InvalidArgument: no JSON object; an id that is no number from 0 to 2^24.
absl::StatusOr<VocabularyConfig> ReadVocabularyConfig(const std::string& json);

}  // namespace convene::worker
