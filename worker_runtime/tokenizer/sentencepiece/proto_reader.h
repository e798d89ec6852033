// Reads the fields of one protobuf message, one after the other.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace convene::worker {

// PURE. Copies nothing: `bytes` must outlive it and the fields. Not thread-safe.
// https://protobuf.dev/programming-guides/encoding
class ProtoReader {
 public:
  explicit ProtoReader(absl::string_view message) : rest_(message) {}

  struct Field {
    uint32_t number = 0;
    enum class Kind { kVarint, kFixed64, kBytes, kFixed32 } kind = Kind::kVarint;
    uint64_t value = 0;       // of the kinds with a number
    absl::string_view bytes;  // of kBytes: a string or a message
  };

  // The next field; false at the end, and at what is no field (then ok() is false too). Groups,
  // which proto2 gave up and this format never had, are no fields.
  bool Next(Field* field);

  bool ok() const { return ok_; }

 private:
  bool ReadVarint(uint64_t* value);
  bool ReadFixed(size_t bytes, uint64_t* value);

  absl::string_view rest_;
  bool ok_ = true;
};

}  // namespace convene::worker
