// The number by which two tokenizers are known to give equal ids.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

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

}  // namespace convene::worker
