// The number by which two tokenizers are known to give equal ids.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

struct XXH3_state_s;

namespace convene::worker {

// XXH3-64 of a sequence of texts and numbers. Each text goes in with its length, so that no two
// different sequences are the same bytes.
class Fingerprint {
 public:
  Fingerprint();
  ~Fingerprint();
  Fingerprint(const Fingerprint&) = delete;
  Fingerprint& operator=(const Fingerprint&) = delete;

  void Add(absl::string_view text);
  void Add(int64_t number);
  uint64_t value() const;

 private:
  XXH3_state_s* state_;
};

// Of the tokenizer with the fingerprint `whole_fingerprint`, cut to the tokens `original_ids`
// (compact_tokenizer.h).
uint64_t CompactFingerprint(uint64_t whole_fingerprint, absl::Span<const int32_t> original_ids);

}  // namespace convene::worker
