#include "worker_runtime/data/store/token_values.h"

#include <cstring>
#include <limits>
#include <utility>

namespace convene::worker {
namespace {

template <typename T>
void Convert(const char* bytes, int64_t count, int32_t* tokens) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    const bool fits = std::in_range<int32_t>(value) && std::cmp_greater_equal(value, 0);
    tokens[i] = fits ? static_cast<int32_t>(value) : -1;
  }
}

template <typename T>
void Narrow(absl::Span<const int32_t> ids, char* bytes) {
  for (const int32_t id : ids) {
    const T value = static_cast<T>(id);
    std::memcpy(bytes, &value, sizeof(T));
    bytes += sizeof(T);
  }
}

}  // namespace

int TokenBytes(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8:
      return 1;
    case TokenType::kU16:
    case TokenType::kI16:
      return 2;
    case TokenType::kU32:
    case TokenType::kI32:
      return 4;
    case TokenType::kI64:
      break;
  }
  return 8;
}

absl::string_view NameOf(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return "uint8";
    case TokenType::kI8:
      return "int8";
    case TokenType::kU16:
      return "uint16";
    case TokenType::kI16:
      return "int16";
    case TokenType::kU32:
      return "uint32";
    case TokenType::kI32:
      return "int32";
    case TokenType::kI64:
      break;
  }
  return "int64";
}

void ReadTokens(TokenType type, const char* bytes, int64_t count, int32_t* tokens) {
  switch (type) {
    case TokenType::kU8:
      return Convert<uint8_t>(bytes, count, tokens);
    case TokenType::kI8:
      return Convert<int8_t>(bytes, count, tokens);
    case TokenType::kU16:
      return Convert<uint16_t>(bytes, count, tokens);
    case TokenType::kI16:
      return Convert<int16_t>(bytes, count, tokens);
    case TokenType::kU32:
      return Convert<uint32_t>(bytes, count, tokens);
    case TokenType::kI32:
      return Convert<int32_t>(bytes, count, tokens);
    case TokenType::kI64:
      return Convert<int64_t>(bytes, count, tokens);
  }
}

void AppendTokens(TokenType type, absl::Span<const int32_t> ids, std::string* bytes) {
  if (TokenBytes(type) == 4) {
    bytes->append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
    return;
  }
  const size_t begin = bytes->size();
  bytes->resize(begin + ids.size() * TokenBytes(type));
  char* const target = bytes->data() + begin;
  switch (TokenBytes(type)) {
    case 1:
      return Narrow<uint8_t>(ids, target);
    case 2:
      return Narrow<uint16_t>(ids, target);
    default:
      return Narrow<int64_t>(ids, target);
  }
}

void ReadBits(const char* bytes, int64_t first, int64_t count, uint8_t* counted) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t bit = first + i;
    counted[i] = (static_cast<uint8_t>(bytes[bit / 8]) >> (bit % 8)) & 1;
  }
}

}  // namespace convene::worker
