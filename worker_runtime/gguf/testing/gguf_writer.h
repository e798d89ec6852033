// Makes GGUF files for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace convene::worker::testing {

class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3) : version_(version) {}

  GgufWriter& Count(absl::string_view key, uint32_t value) { return Fact(key, 4, Bytes(value)); }
  GgufWriter& Real(absl::string_view key, float value) { return Fact(key, 6, Bytes(value)); }
  GgufWriter& Bool(absl::string_view key, bool value) { return Fact(key, 7, Bytes(value)); }
  GgufWriter& Text(absl::string_view key, absl::string_view value) {
    return Fact(key, 8, TextBytes(value));
  }
  GgufWriter& Texts(absl::string_view key, const std::vector<std::string>& values) {
    std::string items;
    for (const std::string& value : values) items += TextBytes(value);
    return Fact(key, 9, Bytes(uint32_t{8}) + Bytes(uint64_t{values.size()}) + items);
  }
  GgufWriter& Numbers(absl::string_view key, const std::vector<int32_t>& values) {
    std::string items;
    for (const int32_t value : values) items += Bytes(value);
    return Fact(key, 9, Bytes(uint32_t{5}) + Bytes(uint64_t{values.size()}) + items);
  }
  GgufWriter& Reals(absl::string_view key, const std::vector<float>& values) {
    std::string items;
    for (const float value : values) items += Bytes(value);
    return Fact(key, 9, Bytes(uint32_t{6}) + Bytes(uint64_t{values.size()}) + items);
  }
  // A value of any type, by its bytes.
  GgufWriter& Fact(absl::string_view key, uint32_t type, const std::string& value) {
    facts_ += TextBytes(key) + Bytes(type) + value;
    ++fact_count_;
    return *this;
  }

  // `shape` as GGUF has it: the axis whose elements are neighbours is the first one. `begin`: among
  // the tensors' bytes; -1: behind the last tensor.
  GgufWriter& Tensor(absl::string_view name, const std::vector<uint64_t>& shape, uint32_t type,
                     const std::string& data, int64_t begin = -1) {
    tensors_ += TextBytes(name) + Bytes(static_cast<uint32_t>(shape.size()));
    for (const uint64_t size : shape) tensors_ += Bytes(size);
    tensors_ +=
        Bytes(type) + Bytes(begin < 0 ? uint64_t{data_.size()} : static_cast<uint64_t>(begin));
    data_ += data;
    data_.resize((data_.size() + 31) / 32 * 32);
    ++tensor_count_;
    return *this;
  }
  GgufWriter& Floats(absl::string_view name, const std::vector<uint64_t>& shape,
                     const std::vector<float>& values) {
    std::string data(values.size() * sizeof(float), '\0');
    std::memcpy(data.data(), values.data(), data.size());
    return Tensor(name, shape, 0, data);
  }

  std::string File() const {
    std::string file =
        "GGUF" + Bytes(version_) + Bytes(tensor_count_) + Bytes(fact_count_) + facts_ + tensors_;
    file.resize((file.size() + 31) / 32 * 32);
    return file + data_;
  }

 private:
  template <typename T>
  static std::string Bytes(T value) {
    std::string bytes(sizeof(value), '\0');
    std::memcpy(bytes.data(), &value, sizeof(value));
    return bytes;
  }
  static std::string TextBytes(absl::string_view text) {
    return Bytes(uint64_t{text.size()}) + std::string(text);
  }

  const uint32_t version_;
  uint64_t fact_count_ = 0;
  uint64_t tensor_count_ = 0;
  std::string facts_;
  std::string tensors_;
  std::string data_;
};

}  // namespace convene::worker::testing
