#include "worker_runtime/gguf/block_type.h"

#include <array>
#include <bit>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
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

// The first half of the numbers are the low halves of the bytes.
void DecodeHalves(const char* bytes, float scale, float offset, int zero, float* x) {
  for (int i = 0; i < kBlock / 2; ++i) {
    const auto byte = Load<uint8_t>(bytes + i);
    x[i] = static_cast<float>((byte & 15) - zero) * scale + offset;
    x[i + kBlock / 2] = static_cast<float>((byte >> 4) - zero) * scale + offset;
  }
}
void DecodeQ40(const char* block, float* x) { DecodeHalves(block + 2, HalfAt(block), 0, 8, x); }
void DecodeQ41(const char* block, float* x) {
  DecodeHalves(block + 4, HalfAt(block), HalfAt(block + 2), 0, x);
}

constexpr BlockType kTypes[] = {
    {0, "F32", 1, 4, DecodeF32},        {1, "F16", 1, 2, DecodeF16},
    {2, "Q4_0", kBlock, 18, DecodeQ40}, {3, "Q4_1", kBlock, 20, DecodeQ41},
    {8, "Q8_0", kBlock, 34, DecodeQ8},  {30, "BF16", 1, 2, DecodeBf16},
};

// By number; null: ggml has taken it back.
constexpr std::array<const char*, 40> kOtherNames = {
    nullptr,   nullptr,  nullptr,   nullptr, nullptr,  nullptr, "Q5_0",  "Q5_1",
    nullptr,   "Q8_1",   "Q2_K",    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",
    "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
    "I8",      "I16",    "I32",     "I64",   "F64",    "IQ1_M", nullptr, nullptr,
    nullptr,   nullptr,  "TQ1_0",   "TQ2_0", nullptr,  nullptr, nullptr, "MXFP4"};

}  // namespace

absl::StatusOr<const BlockType*> FindBlockType(uint32_t number) {
  for (const BlockType& type : kTypes) {
    if (type.number == number) return &type;
  }
  const char* const name = number < kOtherNames.size() ? kOtherNames[number] : nullptr;
  return absl::UnimplementedError(absl::StrCat(
      "elements of type ", name == nullptr ? "" : name, name == nullptr ? "" : " (", number,
      name == nullptr ? "" : ")", " are not read here: F32, F16, BF16, Q8_0, Q4_0 and Q4_1 are"));
}

void DecodeBlocks(const BlockType& type, absl::string_view bytes, float* elements) {
  for (size_t at = 0; at < bytes.size(); at += type.bytes, elements += type.elements) {
    type.decode(bytes.data() + at, elements);
  }
}

}  // namespace convene::worker
