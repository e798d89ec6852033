#include "worker_runtime/tokenizer/fingerprint.h"

#include <xxhash.h>

#include "tools/base/check.h"

namespace convene::worker {

Fingerprint::Fingerprint() : state_(XXH3_createState()) {
  CONVENE_CHECK(state_ != nullptr && XXH3_64bits_reset(state_) == XXH_OK);
}

Fingerprint::~Fingerprint() { XXH3_freeState(state_); }

void Fingerprint::Add(absl::string_view text) {
  Add(static_cast<int64_t>(text.size()));
  CONVENE_CHECK(XXH3_64bits_update(state_, text.data(), text.size()) == XXH_OK);
}

void Fingerprint::Add(int64_t number) {
  CONVENE_CHECK(XXH3_64bits_update(state_, &number, sizeof(number)) == XXH_OK);
}

uint64_t Fingerprint::value() const { return XXH3_64bits_digest(state_); }

uint64_t CompactFingerprint(uint64_t whole_fingerprint, absl::Span<const int32_t> original_ids) {
  Fingerprint fingerprint;
  fingerprint.Add("compact");
  fingerprint.Add(static_cast<int64_t>(whole_fingerprint));
  for (const int32_t id : original_ids) fingerprint.Add(int64_t{id});
  return fingerprint.value();
}

}  // namespace convene::worker
