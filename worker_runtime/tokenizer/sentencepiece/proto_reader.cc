#include "worker_runtime/tokenizer/sentencepiece/proto_reader.h"

#include <cstddef>

namespace convene::worker {

bool ProtoReader::ReadVarint(uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 70 && !rest_.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    if (shift < 64) *value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

bool ProtoReader::ReadFixed(size_t bytes, uint64_t* value) {
  if (rest_.size() < bytes) return false;
  *value = 0;
  for (size_t i = 0; i < bytes; ++i) {
    *value |= static_cast<uint64_t>(static_cast<unsigned char>(rest_[i])) << (8 * i);
  }
  rest_.remove_prefix(bytes);
  return true;
}

bool ProtoReader::Next(Field* field) {
  if (!ok_ || rest_.empty()) return false;
  *field = Field();
  uint64_t tag = 0;
  ok_ = ReadVarint(&tag) && tag >> 3 != 0 && tag <= 0xFFFFFFFF;
  if (!ok_) return false;
  field->number = static_cast<uint32_t>(tag >> 3);
  switch (tag & 7) {
    case 0:
      field->kind = Field::Kind::kVarint;
      ok_ = ReadVarint(&field->value);
      break;
    case 1:
      field->kind = Field::Kind::kFixed64;
      ok_ = ReadFixed(8, &field->value);
      break;
    case 2: {
      field->kind = Field::Kind::kBytes;
      uint64_t length = 0;
      ok_ = ReadVarint(&length) && length <= rest_.size();
      if (!ok_) break;
      field->bytes = rest_.substr(0, length);
      rest_.remove_prefix(length);
      break;
    }
    case 5:
      field->kind = Field::Kind::kFixed32;
      ok_ = ReadFixed(4, &field->value);
      break;
    default:
      ok_ = false;
  }
  return ok_;
}

}  // namespace convene::worker
