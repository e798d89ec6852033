#include "worker_runtime/data/store/token_values.h"

#include <cstring>

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

struct Type {
  absl::string_view name;
  int bytes;
  void (*read)(const char* bytes, int64_t count, int32_t* tokens);
};

template <typename T>
constexpr Type TypeOf(absl::string_view name) {
  return {name, sizeof(T), Convert<T>};
}

const Type& OfType(TokenType type) {
  // By TokenType.
  static constexpr Type kTypes[] = {TypeOf<uint8_t>("uint8"),   TypeOf<int8_t>("int8"),
                                    TypeOf<uint16_t>("uint16"), TypeOf<int16_t>("int16"),
                                    TypeOf<uint32_t>("uint32"), TypeOf<int32_t>("int32"),
                                    TypeOf<int64_t>("int64")};
  return kTypes[static_cast<int>(type)];
}

}  // namespace

int TokenBytes(TokenType type) { return OfType(type).bytes; }

absl::string_view NameOf(TokenType type) { return OfType(type).name; }

void ReadTokens(TokenType type, const char* bytes, int64_t count, int32_t* tokens) {
  OfType(type).read(bytes, count, tokens);
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
