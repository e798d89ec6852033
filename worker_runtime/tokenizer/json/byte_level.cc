#include "worker_runtime/tokenizer/json/byte_level.h"
#include "worker_runtime/tokenizer/unicode.h"

#include <array>
#include <cstdint>

namespace convene::worker {
namespace {

struct Spelling {
  std::array<std::string, 256> of_byte;
  std::array<int16_t, 0x180> byte_of = {};  // -1: no byte

  Spelling() {
    byte_of.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool is_itself = ('!' <= byte && byte <= '~') || (0xA1 <= byte && byte != 0xAD);
      const char32_t code = is_itself ? static_cast<char32_t>(byte) : next++;
      AppendCharacter(code, &of_byte[byte]);
      byte_of[code] = static_cast<int16_t>(byte);
    }
  }
};

const Spelling& GetSpelling() {
  static const Spelling* const spelling = new Spelling();
  return *spelling;
}

}  // namespace

void AppendSpelled(absl::string_view bytes, std::string* result) {
  const Spelling& spelling = GetSpelling();
  for (const char c : bytes) result->append(spelling.of_byte[static_cast<unsigned char>(c)]);
}

std::optional<std::string> Unspelled(absl::string_view spelled) {
  const Spelling& spelling = GetSpelling();
  std::string bytes;
  for (size_t at = 0; at < spelled.size();) {
    const Character character = CharacterAt(spelled, at);
    if (character.code >= spelling.byte_of.size()) return std::nullopt;
    const int byte = spelling.byte_of[character.code];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    at += character.bytes;
  }
  return bytes;
}

}  // namespace convene::worker
