#include "rendezvous/store/wire.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

// A connection keeps the memory of a request up to this size for its next one.
constexpr size_t kKeptBytesMax = 8 << 10;

// An opcode's fields, in order: k key, v value, n 64-bit number, w 32-bit word. `counted`: a 64-bit
// count comes first and the fields repeat that often.
struct Shape {
  const char* name;
  const char* fields;
  bool counted;
};

constexpr Shape kShapes[kOpcodeCount] = {
    {"VALIDATE", "w", false},   {"SET", "kv", false},      {"COMPARE_SET", "kvv", false},
    {"GET", "k", false},        {"ADD", "kn", false},      {"CHECK", "k", true},
    {"WAIT", "k", true},        {"GETNUMKEYS", "", false}, {"DELETE_KEY", "k", false},
    {"APPEND", "kv", false},    {"MULTI_GET", "k", true},  {"MULTI_SET", "kv", true},
    {"CANCEL_WAIT", "", false}, {"PING", "w", false},      {"QUEUE_PUSH", "kv", false},
    {"QUEUE_POP", "k", false},  {"QUEUE_LEN", "k", false}, {"LIST_KEYS", "", false},
    {"BARRIER", "kn", false},
};

const Shape& ShapeOf(Opcode opcode) { return kShapes[static_cast<size_t>(opcode)]; }

// A number as it travels. Valid as long as `number`.
template <typename T>
absl::string_view BytesOf(const T& number) {
  return absl::string_view(reinterpret_cast<const char*>(&number), sizeof(T));
}

void AppendText(const std::string& text, std::string* wire) {
  absl::StrAppend(wire, BytesOf<uint64_t>(text.size()), text);
}

}  // namespace

const char* OpcodeName(Opcode opcode) { return ShapeOf(opcode).name; }

template <typename T>
T RequestParser::Scalar() const {
  T value;
  std::memcpy(&value, scalar_, sizeof(T));
  return value;
}

bool RequestParser::TakeScalar(absl::string_view* input, size_t size) {
  if (scalar_bytes_ == 0 && input->size() >= size) {  // nearly always
    std::memcpy(scalar_, input->data(), size);
    input->remove_prefix(size);
    return true;
  }
  const size_t taken = std::min(size - scalar_bytes_, input->size());
  std::memcpy(scalar_ + scalar_bytes_, input->data(), taken);
  input->remove_prefix(taken);
  scalar_bytes_ += taken;
  if (scalar_bytes_ < size) return false;
  scalar_bytes_ = 0;
  return true;
}

absl::StatusOr<bool> RequestParser::TakeText(absl::string_view* input, size_t limit,
                                             const char* what, std::vector<std::string>* into) {
  if (!in_text_) {
    if (!TakeScalar(input, sizeof(uint64_t))) return false;
    const uint64_t length = Scalar<uint64_t>();
    if (length > limit) {
      return absl::InvalidArgumentError(absl::StrCat(OpcodeName(request_.opcode), " with a ", what,
                                                     " of ", length, " bytes, more than ", limit));
    }
    request_bytes_ += length;
    if (request_bytes_ > request_bytes_max_) {
      return absl::InvalidArgumentError(absl::StrCat(OpcodeName(request_.opcode), " of more than ",
                                                     request_bytes_max_, " bytes in all"));
    }
    if (length <= input->size()) {  // nearly always
      into->emplace_back(input->data(), length);
      input->remove_prefix(length);
      return true;
    }
    in_text_ = true;
    text_bytes_left_ = length;
    into->emplace_back();
    // A page of this memory is taken only when bytes arrive in it.
    into->back().reserve(length);
  }
  const size_t taken = std::min(text_bytes_left_, input->size());
  into->back().append(input->data(), taken);
  input->remove_prefix(taken);
  text_bytes_left_ -= taken;
  in_text_ = text_bytes_left_ > 0;
  return !in_text_;
}

absl::StatusOr<bool> RequestParser::TakeField(char kind, absl::string_view* input) {
  switch (kind) {
    case 'k':
      return TakeText(input, kKeyBytesMax, "key", &request_.keys);
    case 'v':
      return TakeText(input, kValueBytesMax, "value", &request_.values);
    case 'n':
      if (!TakeScalar(input, sizeof(int64_t))) return false;
      request_.number = Scalar<int64_t>();
      return true;
    default:
      CONVENE_CHECK(kind == 'w');
      if (!TakeScalar(input, sizeof(uint32_t))) return false;
      request_.word = Scalar<uint32_t>();
      return true;
  }
}

absl::StatusOr<bool> RequestParser::Begin(absl::string_view* input) {
  if (!TakeScalar(input, sizeof(uint8_t))) return false;
  const uint8_t code = Scalar<uint8_t>();
  if (code >= kOpcodeCount) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown opcode ", code, "; is the peer a TCPStore client?"));
  }
  request_.opcode = static_cast<Opcode>(code);
  request_.keys.clear();
  request_.values.clear();
  request_.number = 0;
  request_.word = 0;
  request_bytes_ = 0;
  field_ = 0;
  count_known_ = !kShapes[code].counted;
  repetitions_left_ = 1;
  in_request_ = true;
  return true;
}

absl::StatusOr<bool> RequestParser::TakeCount(absl::string_view* input) {
  if (!TakeScalar(input, sizeof(uint64_t))) return false;
  repetitions_left_ = Scalar<uint64_t>();
  if (repetitions_left_ > kKeysPerRequestMax) {
    return absl::InvalidArgumentError(absl::StrCat(OpcodeName(request_.opcode), " with ",
                                                   repetitions_left_, " keys, more than ",
                                                   kKeysPerRequestMax));
  }
  count_known_ = true;
  return true;
}

absl::StatusOr<bool> RequestParser::Next(absl::string_view* input) {
  if (!in_request_) {
    CONVENE_ASSIGN_OR_RETURN(const bool begun, Begin(input));
    if (!begun) return false;
  }
  if (!count_known_) {
    CONVENE_ASSIGN_OR_RETURN(const bool known, TakeCount(input));
    if (!known) return false;
  }
  const char* const fields = ShapeOf(request_.opcode).fields;
  while (repetitions_left_ > 0) {
    while (fields[field_] != '\0') {
      CONVENE_ASSIGN_OR_RETURN(const bool taken, TakeField(fields[field_], input));
      if (!taken) return false;
      ++field_;
    }
    field_ = 0;
    --repetitions_left_;
  }
  in_request_ = false;
  return true;
}

size_t RequestParser::held_bytes() const {
  return request_bytes_ - text_bytes_left_ +
         (request_.keys.size() + request_.values.size()) * sizeof(std::string);
}

absl::string_view RequestParser::first_key() const {
  const bool is_partial = in_text_ && request_.keys.size() == 1 && request_.values.empty();
  return request_.keys.empty() || is_partial ? absl::string_view() : request_.keys.front();
}

void RequestParser::Forget() {
  if (held_bytes() <= kKeptBytesMax) return;
  request_ = Request();
  request_bytes_ = 0;
}

void EncodeRequest(const Request& request, std::string* wire) {
  const Shape& shape = ShapeOf(request.opcode);
  wire->push_back(static_cast<char>(request.opcode));
  if (shape.counted) absl::StrAppend(wire, BytesOf<uint64_t>(request.keys.size()));
  const size_t repetitions = shape.counted ? request.keys.size() : 1;
  size_t keys = 0;
  size_t values = 0;
  for (size_t i = 0; i < repetitions; ++i) {
    for (const char* field = shape.fields; *field != '\0'; ++field) {
      if (*field == 'k') AppendText(request.keys.at(keys++), wire);
      if (*field == 'v') AppendText(request.values.at(values++), wire);
      if (*field == 'n') absl::StrAppend(wire, BytesOf(request.number));
      if (*field == 'w') absl::StrAppend(wire, BytesOf(request.word));
    }
  }
}

void EncodeByte(uint8_t byte, SendQueue* send_queue) { send_queue->Append(BytesOf(byte)); }
void EncodeWord(uint32_t word, SendQueue* send_queue) { send_queue->Append(BytesOf(word)); }
void EncodeNumber(int64_t number, SendQueue* send_queue) { send_queue->Append(BytesOf(number)); }

void EncodeBytes(absl::string_view bytes, SendQueue* send_queue) {
  send_queue->Append(BytesOf<uint64_t>(bytes.size()));
  send_queue->Append(bytes);
}

void EncodeValue(const Value& value, SendQueue* send_queue) {
  if (value == nullptr) return EncodeBytes("", send_queue);
  send_queue->Append(BytesOf<uint64_t>(value->size()));
  send_queue->Append(value);
}

}  // namespace convene::rendezvous
