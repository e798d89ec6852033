// PURE. The c10d TCPStore wire: requests from bytes, requests to bytes, replies to bytes (README.md
// of this folder has the table).
//
// Scalars travel in the host's byte order, which is little-endian on every machine this runs on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rendezvous/net/send_queue.h"
#include "rendezvous/store/table.h"

namespace convene::rendezvous {

enum class Opcode : uint8_t {
  kValidate = 0,
  kSet = 1,
  kCompareSet = 2,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kGetNumKeys = 7,
  kDeleteKey = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kCancelWait = 12,
  kPing = 13,
  kQueuePush = 14,
  kQueuePop = 15,
  kQueueLen = 16,
  kListKeys = 17,
  kBarrier = 18,
};
inline constexpr int kOpcodeCount = 19;

// "SET", "COMPARE_SET", ...
const char* OpcodeName(Opcode opcode);

inline constexpr uint32_t kValidateMagic = 0x3C85F7CE;

inline constexpr uint8_t kReady = 0;
inline constexpr uint8_t kNotReady = 1;
inline constexpr uint8_t kStopWaiting = 0;
inline constexpr uint8_t kWaitCanceled = 1;

// One request. The opcode decides which fields it has; the rest are empty.
struct Request {
  Opcode opcode = Opcode::kValidate;
  std::vector<std::string> keys;
  std::vector<std::string> values;  // COMPARE_SET: expected, desired; MULTI_SET: one for each key
  int64_t number = 0;               // ADD: delta; BARRIER: world size
  uint32_t word = 0;                // VALIDATE: magic; PING: nonce
};

// Takes a connection's bytes in pieces of any size. Not thread-safe.
class RequestParser {
 public:
  // `request_bytes_max`: of one request's keys and values together.
  explicit RequestParser(size_t request_bytes_max = size_t{512} << 20)
      : request_bytes_max_(request_bytes_max) {}

  // Reads from the front of `*input`, which then begins after the bytes that were read. True:
  // request() is whole. False: all of the input was taken and more is needed. InvalidArgument for
  // an unknown opcode or a broken bound (the text names it); the parser is useless then.
  absl::StatusOr<bool> Next(absl::string_view* input);
  // The request that Next() completed; the caller may move from it. Valid until the next call of
  // Next().
  Request& request() { return request_; }
  // The memory of the request that is not whole yet or was answered last, about.
  size_t held_bytes() const;
  // The first key of that request; "" when there is none yet.
  absl::string_view first_key() const;
  // After the last request was answered: gives up the memory of a large one.
  void Forget();

 private:
  bool TakeScalar(absl::string_view* input, size_t size);
  absl::StatusOr<bool> TakeText(absl::string_view* input, size_t limit, const char* what,
                                std::vector<std::string>* into);
  absl::StatusOr<bool> TakeField(char kind, absl::string_view* input);
  absl::StatusOr<bool> Begin(absl::string_view* input);
  absl::StatusOr<bool> TakeCount(absl::string_view* input);
  template <typename T>
  T Scalar() const;

  const size_t request_bytes_max_;
  Request request_;
  bool in_request_ = false;
  bool count_known_ = false;
  uint64_t repetitions_left_ = 0;  // of the opcode's fields
  size_t field_ = 0;               // the next one
  size_t request_bytes_ = 0;

  char scalar_[8] = {};  // the number that is being read
  size_t scalar_bytes_ = 0;
  bool in_text_ = false;  // its length is known, its bytes are being read
  size_t text_bytes_left_ = 0;
};

// Appends a request's bytes to `*wire`. REQUIRES: the request has exactly its opcode's fields.
void EncodeRequest(const Request& request, std::string* wire);

void EncodeByte(uint8_t byte, SendQueue* send_queue);
void EncodeWord(uint32_t word, SendQueue* send_queue);
void EncodeNumber(int64_t number, SendQueue* send_queue);
void EncodeBytes(absl::string_view bytes, SendQueue* send_queue);
// nullptr is sent as no bytes.
void EncodeValue(const Value& value, SendQueue* send_queue);

}  // namespace convene::rendezvous
