#include "worker_runtime/gguf/block_type.h"

#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker_runtime/device/float16.h"

namespace convene::worker {
namespace {

template <typename T>
T Load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

float HalfAt(const char* bytes) { return static_cast<float>(Load<Float16>(bytes)); }

void DecodeF32(const char* block, float* x) { *x = Load<float>(block); }
void DecodeF16(const char* block, float* x) { *x = HalfAt(block); }
void DecodeBf16(const char* block, float* x) {
  *x = std::bit_cast<float>(uint32_t{Load<uint16_t>(block)} << 16);
}

constexpr int kBlock = 32;

void DecodeQ8(const char* block, float* x) {
  const float scale = HalfAt(block);
  for (int i = 0; i < kBlock; ++i) x[i] = scale * static_cast<float>(Load<int8_t>(block + 2 + i));
}

// The first half of the numbers are the low halves of the bytes. Bit i of `fifths` is the fifth bit
// of number i.
void DecodeHalves(const char* bytes, uint32_t fifths, float scale, float offset, int zero,
                  float* x) {
  for (int i = 0; i < kBlock / 2; ++i) {
    const auto byte = Load<uint8_t>(bytes + i);
    const int low = (byte & 15) | static_cast<int>(fifths >> i & 1) << 4;
    const int high = byte >> 4 | static_cast<int>(fifths >> (i + kBlock / 2) & 1) << 4;
    x[i] = static_cast<float>(low - zero) * scale + offset;
    x[i + kBlock / 2] = static_cast<float>(high - zero) * scale + offset;
  }
}
void DecodeQ40(const char* block, float* x) { DecodeHalves(block + 2, 0, HalfAt(block), 0, 8, x); }
void DecodeQ41(const char* block, float* x) {
  DecodeHalves(block + 4, 0, HalfAt(block), HalfAt(block + 2), 0, x);
}
void DecodeQ50(const char* block, float* x) {
  DecodeHalves(block + 6, Load<uint32_t>(block + 2), HalfAt(block), 0, 16, x);
}
void DecodeQ51(const char* block, float* x) {
  DecodeHalves(block + 8, Load<uint32_t>(block + 4), HalfAt(block), HalfAt(block + 2), 0, x);
}

// Of the types K. Parts of a block have a scale each, which is a small number under the block's.
constexpr int kLongBlock = 256;

struct Scale {
  int scale;
  int offset;
};

// Of a part of 32 elements: twelve bytes hold six bits of each (ggml's get_scale_min_k4).
Scale ScaleOfPart(const char* bytes, int part) {
  const auto byte = [&](int i) -> int { return Load<uint8_t>(bytes + i); };
  if (part < 4) return {byte(part) & 63, byte(part + 4) & 63};
  const int low = byte(part + 4);
  return {(low & 15) | byte(part - 4) >> 6 << 4, low >> 4 | byte(part) >> 6 << 4};
}

// `fifths`: a byte has the fifth bits of one place in all parts. Null: there are none.
void DecodeParts(const char* block, const char* fifths, const char* halves, float* x) {
  for (int part = 0; part < kLongBlock / kBlock; ++part) {
    const Scale small = ScaleOfPart(block + 4, part);
    const float scale = HalfAt(block) * static_cast<float>(small.scale);
    const float offset = HalfAt(block + 2) * static_cast<float>(small.offset);
    for (int i = 0; i < kBlock; ++i) {
      int number = Load<uint8_t>(halves + part / 2 * kBlock + i) >> part % 2 * 4 & 15;
      if (fifths != nullptr) number |= (Load<uint8_t>(fifths + i) >> part & 1) << 4;
      x[part * kBlock + i] = scale * static_cast<float>(number) - offset;
    }
  }
}
void DecodeQ4K(const char* block, float* x) { DecodeParts(block, nullptr, block + 16, x); }
void DecodeQ5K(const char* block, float* x) { DecodeParts(block, block + 16, block + 48, x); }

// Half of the block after the other, in quarters of 32 elements: four bits each, then two.
void DecodeQ6K(const char* block, float* x) {
  const float scale = HalfAt(block + 208);
  for (int i = 0; i < kLongBlock; ++i) {
    const int half = i / 128, quarter = i / 32 % 4, place = i % 32;
    const int low = Load<uint8_t>(block + 64 * half + 32 * (quarter % 2) + place);
    const int high = Load<uint8_t>(block + 128 + 32 * half + place);
    const int number = (low >> quarter / 2 * 4 & 15) | (high >> 2 * quarter & 3) << 4;
    x[i] = scale * static_cast<float>(Load<int8_t>(block + 192 + i / 16)) *
           static_cast<float>(number - 32);
  }
}

constexpr BlockType kTypes[] = {
    {0, "F32", 1, 4, DecodeF32},
    {1, "F16", 1, 2, DecodeF16},
    {30, "BF16", 1, 2, DecodeBf16},
    {2, "Q4_0", kBlock, 18, DecodeQ40},
    {3, "Q4_1", kBlock, 20, DecodeQ41},
    {6, "Q5_0", kBlock, 22, DecodeQ50},
    {7, "Q5_1", kBlock, 24, DecodeQ51},
    {8, "Q8_0", kBlock, 34, DecodeQ8},
    {12, "Q4_K", kLongBlock, 144, DecodeQ4K},
    {13, "Q5_K", kLongBlock, 176, DecodeQ5K},
    {14, "Q6_K", kLongBlock, 210, DecodeQ6K},
};

// By number; null: it is read here, or ggml has taken it back.
constexpr std::array<const char*, 40> kOtherNames = {
    nullptr,   nullptr,  nullptr,   nullptr, nullptr,  nullptr, nullptr, nullptr,
    nullptr,   "Q8_1",   "Q2_K",    "Q3_K",  nullptr,  nullptr, nullptr, "Q8_K",
    "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
    "I8",      "I16",    "I32",     "I64",   "F64",    "IQ1_M", nullptr, nullptr,
    nullptr,   nullptr,  "TQ1_0",   "TQ2_0", nullptr,  nullptr, nullptr, "MXFP4"};

}  // namespace

absl::StatusOr<const BlockType*> FindBlockType(uint32_t number) {
  for (const BlockType& type : kTypes) {
    if (type.number == number) return &type;
  }
  const char* const name = number < kOtherNames.size() ? kOtherNames[number] : nullptr;
  const auto name_of = [](std::string* text, const BlockType& type) { *text += type.name; };
  return absl::UnimplementedError(
      absl::StrCat("elements of type ", name == nullptr ? "" : name, name == nullptr ? "" : " (",
                   number, name == nullptr ? "" : ")",
                   " are not read here, but these are: ", absl::StrJoin(kTypes, ", ", name_of)));
}

void DecodeBlocks(const BlockType& type, absl::string_view bytes, float* elements) {
  for (size_t at = 0; at < bytes.size(); at += type.bytes, elements += type.elements) {
    type.decode(bytes.data() + at, elements);
  }
}

}  // namespace convene::worker
