#include "worker_runtime/gguf/gguf_file.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::worker {
namespace {

constexpr absl::string_view kMagic = "GGUF";
constexpr int kMostAxes = 4;
constexpr int64_t kDefaultAlignment = 32;
constexpr int64_t kLargestAlignment = 1 << 20;
constexpr size_t kShownName = 100;

absl::Status Invalid(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("it is no whole GGUF file: ", why));
}

// Goes through the bytes from the first one on.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : bytes_(bytes) {}

  size_t position() const { return position_; }

  absl::StatusOr<absl::string_view> Take(uint64_t count) {
    if (count > bytes_.size() - position_) {
      return Invalid(absl::StrCat("byte ", position_, " begins ", count, " bytes, and ",
                                  bytes_.size() - position_, " are left"));
    }
    const absl::string_view taken = bytes_.substr(position_, count);
    position_ += count;
    return taken;
  }

  template <typename T>
  absl::StatusOr<T> Number() {
    CONVENE_ASSIGN_OR_RETURN(const absl::string_view taken, Take(sizeof(T)));
    T value;
    std::memcpy(&value, taken.data(), sizeof(value));
    return value;
  }

  absl::StatusOr<absl::string_view> Text() {
    CONVENE_ASSIGN_OR_RETURN(const auto length, Number<uint64_t>());
    return Take(length);
  }

 private:
  absl::string_view bytes_;
  size_t position_ = 0;
};

template <typename Stored, typename Value>
absl::StatusOr<GgufValue> ReadNumber(Reader& reader) {
  CONVENE_ASSIGN_OR_RETURN(const Stored stored, reader.Number<Stored>());
  if constexpr (std::is_same_v<Stored, uint64_t>) {
    if (stored > uint64_t{std::numeric_limits<int64_t>::max()}) return Invalid("a number >= 2^63");
  }
  return GgufValue(static_cast<Value>(stored));
}

// The value of one of the types behind a key, but an array.
absl::StatusOr<GgufValue> ReadScalar(uint32_t type, Reader& reader) {
  switch (type) {
    case 0:
      return ReadNumber<uint8_t, int64_t>(reader);
    case 1:
      return ReadNumber<int8_t, int64_t>(reader);
    case 2:
      return ReadNumber<uint16_t, int64_t>(reader);
    case 3:
      return ReadNumber<int16_t, int64_t>(reader);
    case 4:
      return ReadNumber<uint32_t, int64_t>(reader);
    case 5:
      return ReadNumber<int32_t, int64_t>(reader);
    case 6:
      return ReadNumber<float, double>(reader);
    case 7: {
      CONVENE_ASSIGN_OR_RETURN(const auto byte, reader.Number<uint8_t>());
      return GgufValue(byte != 0);
    }
    case 8: {
      CONVENE_ASSIGN_OR_RETURN(const absl::string_view text, reader.Text());
      return GgufValue(text);
    }
    case 10:
      return ReadNumber<uint64_t, int64_t>(reader);
    case 11:
      return ReadNumber<int64_t, int64_t>(reader);
    case 12:
      return ReadNumber<double, double>(reader);
    default:
      return Invalid(absl::StrCat("byte ", reader.position(), " has a value of type ", type));
  }
}

template <typename T>
absl::StatusOr<GgufValue> ReadItems(uint32_t type, uint64_t count, Reader& reader) {
  std::vector<T> items;  // It grows with what is read: a count may lie.
  for (uint64_t i = 0; i < count; ++i) {
    CONVENE_ASSIGN_OR_RETURN(const GgufValue item, ReadScalar(type, reader));
    if constexpr (std::is_same_v<T, int64_t>) {
      if (const bool* const flag = std::get_if<bool>(&item)) {
        items.push_back(*flag ? 1 : 0);
        continue;
      }
    }
    items.push_back(std::get<T>(item));
  }
  return GgufValue(std::move(items));
}

absl::StatusOr<GgufValue> ReadValue(Reader& reader) {
  constexpr uint32_t kArray = 9;
  CONVENE_ASSIGN_OR_RETURN(const auto type, reader.Number<uint32_t>());
  if (type != kArray) return ReadScalar(type, reader);
  CONVENE_ASSIGN_OR_RETURN(const auto item, reader.Number<uint32_t>());
  CONVENE_ASSIGN_OR_RETURN(const auto count, reader.Number<uint64_t>());
  if (item == kArray) return absl::UnimplementedError("a GGUF file with an array of arrays");
  if (item == 8) return ReadItems<absl::string_view>(item, count, reader);
  if (item == 6 || item == 12) return ReadItems<double>(item, count, reader);
  return ReadItems<int64_t>(item, count, reader);
}

struct Extent {
  uint64_t begin = 0;  // from the first tensor's place on
  uint64_t size = 0;
};

absl::StatusOr<std::pair<GgufTensor, Extent>> ReadTensor(Reader& reader) {
  GgufTensor tensor;
  CONVENE_ASSIGN_OR_RETURN(tensor.name, reader.Text());
  const auto wrong = [&](absl::string_view why) {
    return Invalid(absl::StrCat("tensor '", Utf8(tensor.name, kShownName), "' ", why));
  };
  CONVENE_ASSIGN_OR_RETURN(const auto axes, reader.Number<uint32_t>());
  if (axes < 1 || axes > kMostAxes) return wrong(absl::StrCat("has ", axes, " axes"));
  int64_t elements = 1;
  for (uint32_t axis = 0; axis < axes; ++axis) {
    CONVENE_ASSIGN_OR_RETURN(const auto size, reader.Number<uint64_t>());
    if (size < 1 ||
        size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / 8 / elements)) {
      return wrong("has a size that no tensor has");
    }
    elements *= static_cast<int64_t>(size);
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
  }
  CONVENE_ASSIGN_OR_RETURN(const auto type, reader.Number<uint32_t>());
  absl::StatusOr<const BlockType*> found = FindBlockType(type);
  if (!found.ok()) {
    return Annotate(found.status(), absl::StrCat("tensor '", Utf8(tensor.name, kShownName), "'"));
  }
  tensor.type = *found;
  if (tensor.shape.back() % tensor.type->elements != 0) {
    return wrong(absl::StrCat("has rows of ", tensor.shape.back(), " elements, no multiple of ",
                              tensor.type->elements, " as ", tensor.type->name, " wants"));
  }
  CONVENE_ASSIGN_OR_RETURN(const auto begin, reader.Number<uint64_t>());
  return std::make_pair(
      tensor,
      Extent{begin, static_cast<uint64_t>(elements / tensor.type->elements * tensor.type->bytes)});
}

// Fills GgufTensor::bytes. `data`: the file from the first tensor's place on.
absl::Status PlaceTensors(absl::string_view data, int64_t alignment,
                          const std::vector<Extent>& extents, std::vector<GgufTensor>* tensors) {
  std::vector<size_t> order(extents.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return extents[a].begin < extents[b].begin; });
  uint64_t end = 0;
  for (const size_t i : order) {
    const Extent& extent = extents[i];
    const absl::string_view name = (*tensors)[i].name;
    const auto wrong = [&](absl::string_view why) {
      return Invalid(absl::StrCat("tensor '", Utf8(name, kShownName), "' ", why));
    };
    if (extent.begin > data.size() || extent.size > data.size() - extent.begin) {
      return wrong("reaches beyond the file's end");
    }
    if (extent.begin % static_cast<uint64_t>(alignment) != 0) return wrong("lies at an odd place");
    if (extent.begin < end) return wrong("lies where another one lies");
    end = extent.begin + extent.size;
    (*tensors)[i].bytes = data.substr(extent.begin, extent.size);
  }
  return absl::OkStatus();
}

}  // namespace

bool GgufFile::LooksLikeOne(absl::string_view start) { return absl::StartsWith(start, kMagic); }

absl::StatusOr<GgufFile> GgufFile::Parse(absl::string_view bytes) {
  if (!LooksLikeOne(bytes)) return Invalid("it does not begin with GGUF");
  Reader reader(bytes);
  CONVENE_RETURN_IF_ERROR(reader.Take(kMagic.size()).status());
  CONVENE_ASSIGN_OR_RETURN(const auto version, reader.Number<uint32_t>());
  if (version != 2 && version != 3) {
    return absl::UnimplementedError(
        absl::StrCat("GGUF version ", version, " is not read here: versions 2 and 3 are"));
  }
  CONVENE_ASSIGN_OR_RETURN(const auto tensor_count, reader.Number<uint64_t>());
  CONVENE_ASSIGN_OR_RETURN(const auto fact_count, reader.Number<uint64_t>());
  GgufFile file;
  for (uint64_t i = 0; i < fact_count; ++i) {
    CONVENE_ASSIGN_OR_RETURN(const absl::string_view key, reader.Text());
    absl::StatusOr<GgufValue> value = ReadValue(reader);
    if (!value.ok())
      return Annotate(value.status(), absl::StrCat("key '", Utf8(key, kShownName), "'"));
    if (!file.facts_.emplace(key, *std::move(value)).second) {
      return Invalid(absl::StrCat("it has the key '", Utf8(key, kShownName), "' twice"));
    }
  }
  int64_t alignment = kDefaultAlignment;
  if (file.Has("general.alignment")) {
    CONVENE_ASSIGN_OR_RETURN(alignment, file.Count("general.alignment"));
  }
  if (alignment < 1 || alignment > kLargestAlignment) {
    return Invalid(absl::StrCat("its general.alignment is ", alignment));
  }
  std::vector<Extent> extents;
  absl::flat_hash_set<absl::string_view> names;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    CONVENE_ASSIGN_OR_RETURN(const auto read, ReadTensor(reader));
    if (!names.insert(read.first.name).second) {
      return Invalid(
          absl::StrCat("it has the tensor '", Utf8(read.first.name, kShownName), "' twice"));
    }
    file.tensors_.push_back(read.first);
    extents.push_back(read.second);
  }
  const size_t data = (reader.position() + alignment - 1) / alignment * alignment;
  CONVENE_RETURN_IF_ERROR(
      PlaceTensors(bytes.substr(std::min(data, bytes.size())), alignment, extents, &file.tensors_));
  return file;
}

template <typename T>
absl::StatusOr<const T*> GgufFile::Get(absl::string_view key, const char* kind) const {
  const auto found = facts_.find(key);
  if (found == facts_.end()) {
    return absl::NotFoundError(absl::StrCat("the GGUF file has no key '", key, "'"));
  }
  if (const T* const value = std::get_if<T>(&found->second)) return value;
  return absl::InvalidArgumentError(absl::StrCat("the GGUF file's '", key, "' is no ", kind));
}

absl::StatusOr<int> GgufFile::Count(absl::string_view key) const {
  CONVENE_ASSIGN_OR_RETURN(const int64_t* const value, Get<int64_t>(key, "whole number"));
  if (*value >= 0 && *value <= std::numeric_limits<int>::max()) return static_cast<int>(*value);
  return absl::InvalidArgumentError(
      absl::StrCat("the GGUF file's '", key, "' is ", *value, ", not from 0 to 2^31"));
}

absl::StatusOr<double> GgufFile::Real(absl::string_view key) const {
  const auto found = facts_.find(key);
  if (found != facts_.end()) {
    if (const auto* const whole = std::get_if<int64_t>(&found->second)) {
      return static_cast<double>(*whole);
    }
  }
  CONVENE_ASSIGN_OR_RETURN(const double* const value, Get<double>(key, "number"));
  return *value;
}

absl::StatusOr<bool> GgufFile::Bool(absl::string_view key) const {
  CONVENE_ASSIGN_OR_RETURN(const bool* const value, Get<bool>(key, "yes or no"));
  return *value;
}

absl::StatusOr<absl::string_view> GgufFile::Text(absl::string_view key) const {
  CONVENE_ASSIGN_OR_RETURN(const absl::string_view* const value,
                           Get<absl::string_view>(key, "text"));
  return *value;
}

absl::StatusOr<const std::vector<absl::string_view>*> GgufFile::Texts(absl::string_view key) const {
  return Get<std::vector<absl::string_view>>(key, "list of texts");
}

absl::StatusOr<const std::vector<int64_t>*> GgufFile::Numbers(absl::string_view key) const {
  return Get<std::vector<int64_t>>(key, "list of whole numbers");
}

absl::StatusOr<const std::vector<double>*> GgufFile::Reals(absl::string_view key) const {
  return Get<std::vector<double>>(key, "list of numbers");
}

}  // namespace convene::worker
