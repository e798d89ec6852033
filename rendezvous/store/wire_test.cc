#include "rendezvous/store/wire.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "rendezvous/store/conversation.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

std::string Encoded(const Request& request) {
  std::string wire;
  EncodeRequest(request, &wire);
  return wire;
}

std::string Drain(SendQueue* send_queue) {
  std::string bytes;
  while (!send_queue->empty()) {
    iovec vectors[2];
    const int count = send_queue->Peek(vectors, 2);
    size_t taken = 0;
    for (int i = 0; i < count; ++i) {
      bytes.append(static_cast<const char*>(vectors[i].iov_base), vectors[i].iov_len);
      taken += vectors[i].iov_len;
    }
    send_queue->Consume(taken);
  }
  return bytes;
}

std::string Hex(const std::string& bytes) { return absl::BytesToHexString(bytes); }

// One request of each opcode, with every field it has.
std::vector<Request> OneOfEach() {
  return {{Opcode::kValidate, {}, {}, 0, kValidateMagic},
          {Opcode::kSet, {"/key"}, {"value"}, 0, 0},
          {Opcode::kCompareSet, {"/key"}, {"old", "new"}, 0, 0},
          {Opcode::kGet, {"/key"}, {}, 0, 0},
          {Opcode::kAdd, {"/n"}, {}, -3, 0},
          {Opcode::kCheck, {"/a", "", "/c"}, {}, 0, 0},
          {Opcode::kWait, {"/a", "/b"}, {}, 0, 0},
          {Opcode::kGetNumKeys, {}, {}, 0, 0},
          {Opcode::kDeleteKey, {"/key"}, {}, 0, 0},
          {Opcode::kAppend, {"/key"}, {""}, 0, 0},
          {Opcode::kMultiGet, {}, {}, 0, 0},
          {Opcode::kMultiSet, {"/a", "/b"}, {"1", "22"}, 0, 0},
          {Opcode::kCancelWait, {}, {}, 0, 0},
          {Opcode::kPing, {}, {}, 0, 0x1234},
          {Opcode::kQueuePush, {"/q"}, {"item"}, 0, 0},
          {Opcode::kQueuePop, {"/q"}, {}, 0, 0},
          {Opcode::kQueueLen, {"/q"}, {}, 0, 0},
          {Opcode::kListKeys, {}, {}, 0, 0},
          {Opcode::kBarrier, {"/b"}, {}, 8, 0}};
}

void CheckEqual(const Request& got, const Request& want) {
  INFO(OpcodeName(want.opcode));
  CHECK(got.opcode == want.opcode);
  CHECK(got.keys == want.keys);
  CHECK(got.values == want.values);
  CHECK(got.number == want.number);
  CHECK(got.word == want.word);
}

absl::Status ParseError(const std::string& bytes) {
  RequestParser parser;
  absl::string_view input = bytes;
  return parser.Next(&input).status();
}

TEST_CASE("the bytes are those of PyTorch's client") {
  CHECK(Hex(Encoded({Opcode::kValidate, {}, {}, 0, kValidateMagic})) == "00cef7853c");
  CHECK(Hex(Encoded({Opcode::kPing, {}, {}, 0, 0x1234})) == "0d34120000");
  CHECK(Hex(Encoded({Opcode::kSet, {"/k"}, {"v"}, 0, 0})) ==
        "010200000000000000"
        "2f6b010000000000000076");
  CHECK(Hex(Encoded({Opcode::kWait, {"/k"}, {}, 0, 0})) ==
        "060100000000000000"
        "02000000000000002f6b");
  CHECK(Hex(Encoded({Opcode::kAdd, {"k"}, {}, -1, 0})) == "0401000000000000006bffffffffffffffff");
}

TEST_CASE("every request is read the same wherever the stream cuts it") {
  for (const Request& want : OneOfEach()) {
    const std::string wire = Encoded(want);
    for (size_t cut = 0; cut <= wire.size(); ++cut) {
      RequestParser parser;
      absl::string_view head = absl::string_view(wire).substr(0, cut);
      const auto early = parser.Next(&head);
      REQUIRE_OK(early);
      REQUIRE(*early == (cut == wire.size()));
      CHECK(head.empty());
      if (!*early) {
        absl::string_view tail = absl::string_view(wire).substr(cut);
        const auto complete = parser.Next(&tail);
        REQUIRE_OK(complete);
        REQUIRE(*complete);
        CHECK(tail.empty());
      }
      CheckEqual(parser.request(), want);
    }
  }
}

TEST_CASE("a pipeline of all requests comes out in order, byte by byte or at once") {
  std::string wire;
  for (const Request& request : OneOfEach()) wire += Encoded(request);
  for (const size_t step : {size_t{1}, size_t{3}, wire.size()}) {
    const std::vector<Request> wanted = OneOfEach();
    RequestParser parser;
    size_t seen = 0;
    for (size_t begin = 0; begin < wire.size(); begin += step) {
      absl::string_view input = absl::string_view(wire).substr(begin, step);
      while (!input.empty()) {
        const auto complete = parser.Next(&input);
        REQUIRE_OK(complete);
        if (!*complete) break;
        REQUIRE(seen < wanted.size());
        CheckEqual(parser.request(), wanted[seen++]);
      }
    }
    CHECK(seen == wanted.size());
  }
}

TEST_CASE("an unknown opcode and every broken bound are named") {
  const auto number = [](uint64_t value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  CHECK_STATUS(ParseError("\x13"), absl::StatusCode::kInvalidArgument, "unknown opcode 19");
  CHECK_STATUS(ParseError("GET / HTTP/1.1"), absl::StatusCode::kInvalidArgument, "opcode 71");
  CHECK_STATUS(ParseError("\x03" + number(kKeyBytesMax + 1)), absl::StatusCode::kInvalidArgument,
               "GET with a key of 8193 bytes, more than 8192");
  CHECK_STATUS(ParseError("\x01" + number(1) + "k" + number(kValueBytesMax + 1)),
               absl::StatusCode::kInvalidArgument, "SET with a value of 8388609 bytes");
  CHECK_STATUS(ParseError("\x06" + number(kKeysPerRequestMax + 1)),
               absl::StatusCode::kInvalidArgument, "WAIT with 131073 keys");
  CHECK_STATUS(ParseError("\x0b" + number(~uint64_t{0})), absl::StatusCode::kInvalidArgument,
               "MULTI_SET with");
  CHECK_OK(ParseError("\x03" + number(kKeyBytesMax)));
}

TEST_CASE("a send queue gives its bytes in order through any window and shares large values") {
  const auto large = std::make_shared<const std::string>(std::string(5000, 'x'));
  SendQueue send_queue;
  EncodeByte(7, &send_queue);
  EncodeValue(large, &send_queue);
  EncodeBytes("tail", &send_queue);
  CHECK(large.use_count() == 2);
  std::string bytes;
  while (!send_queue.empty()) {
    iovec vector;
    REQUIRE(send_queue.Peek(&vector, 1) == 1);
    const size_t taken = std::min<size_t>(vector.iov_len, 3);
    bytes.append(static_cast<const char*>(vector.iov_base), taken);
    send_queue.Consume(taken);
  }
  CHECK(bytes.size() == 1 + 8 + 5000 + 8 + 4);
  CHECK(bytes.substr(0, 3) == "\x07\x88\x13");
  CHECK(bytes.substr(bytes.size() - 4) == "tail");
  CHECK(large.use_count() == 1);
}

// Two connections that talk to one table.
struct Talk {
  Table table;
  Table::Woken woken;
  Conversation first{1, true};
  Conversation second{2, true};
  SendQueue send_queue;

  std::string Say(Conversation* who, Request request) {
    REQUIRE_OK(Answer(request, who, &table, &send_queue, &woken));
    return Hex(Drain(&send_queue));
  }
  absl::Status Refused(Conversation* who, Request request) {
    return Answer(request, who, &table, &send_queue, &woken);
  }
};

TEST_CASE_METHOD(Talk, "replies have the shapes of the protocol") {
  CHECK(Say(&first, {Opcode::kPing, {}, {}, 0, 0x1234}) == "34120000");
  CHECK(Say(&first, {Opcode::kSet, {"/k"}, {"v"}, 0, 0}) == "");
  CHECK(Say(&first, {Opcode::kGet, {"/k"}, {}, 0, 0}) == "010000000000000076");
  CHECK(Say(&first, {Opcode::kGet, {"/none"}, {}, 0, 0}) == "0000000000000000");
  CHECK(Say(&first, {Opcode::kAdd, {"n"}, {}, 2, 0}) == "0200000000000000");
  CHECK(Say(&first, {Opcode::kCheck, {"/k", "n"}, {}, 0, 0}) == "00");
  CHECK(Say(&first, {Opcode::kCheck, {"/k", "/none"}, {}, 0, 0}) == "01");
  CHECK(Say(&first, {Opcode::kGetNumKeys, {}, {}, 0, 0}) == "0200000000000000");
  CHECK(Say(&first, {Opcode::kMultiSet, {"/a", "/b"}, {"1", "2"}, 0, 0}) == "");
  CHECK(Say(&first, {Opcode::kMultiGet, {"/b", "/a"}, {}, 0, 0}) ==
        "010000000000000032010000000000000031");
  CHECK(Say(&first, {Opcode::kDeleteKey, {"/a"}, {}, 0, 0}) == "0100000000000000");
  CHECK(Say(&first, {Opcode::kDeleteKey, {"/a"}, {}, 0, 0}) == "0000000000000000");
  CHECK(Say(&first, {Opcode::kQueuePush, {"/q"}, {"i"}, 0, 0}) == "");
  CHECK(Say(&first, {Opcode::kQueueLen, {"/q"}, {}, 0, 0}) == "0100000000000000");
  CHECK(Say(&first, {Opcode::kQueuePop, {"/q"}, {}, 0, 0}) == "0100000000000000010000000000000069");
  CHECK(Say(&first, {Opcode::kQueuePop, {"/q"}, {}, 0, 0}) == "0000000000000000");
  CHECK(Say(&first, {Opcode::kCompareSet, {"/k"}, {"v", "w"}, 0, 0}) == "010000000000000077");
  CHECK(Say(&first, {Opcode::kBarrier, {"/bar"}, {}, 1, 0}) == "00");
}

TEST_CASE_METHOD(Talk, "list-keys gives the stored names as they are") {
  Say(&first, {Opcode::kSet, {"/k"}, {"v"}, 0, 0});
  CHECK(Say(&first, {Opcode::kListKeys, {}, {}, 0, 0}) == "010000000000000002000000000000002f6b");
}

TEST_CASE_METHOD(Talk, "every cancel gets exactly one answer, with or without a wait") {
  CHECK(Say(&first, {Opcode::kCancelWait, {}, {}, 0, 0}) == "01");
  CHECK(Say(&first, {Opcode::kWait, {"/k"}, {}, 0, 0}) == "");
  CHECK(Say(&first, {Opcode::kCancelWait, {}, {}, 0, 0}) == "01");
  CHECK(Say(&second, {Opcode::kSet, {"/k"}, {"v"}, 0, 0}) == "");
  CHECK(woken.empty());
}

TEST_CASE_METHOD(Talk, "nothing is answered before VALIDATE with the right magic") {
  Conversation fresh{3, false};
  CHECK_STATUS(Refused(&fresh, {Opcode::kGet, {"/k"}, {}, 0, 0}),
               absl::StatusCode::kInvalidArgument, "the first request is GET, not VALIDATE");
  CHECK_STATUS(Refused(&fresh, {Opcode::kValidate, {}, {}, 0, 0xCEF7853C}),
               absl::StatusCode::kInvalidArgument, "magic 0xCEF7853C, not 0x3C85F7CE");
  CHECK(Say(&fresh, {Opcode::kValidate, {}, {}, 0, kValidateMagic}) == "");
  CHECK(Say(&fresh, {Opcode::kPing, {}, {}, 0, 1}) == "01000000");
}

TEST_CASE_METHOD(Talk, "a question during a wait is refused, a write is taken") {
  CHECK(Say(&first, {Opcode::kWait, {"/k"}, {}, 0, 0}) == "");
  CHECK_STATUS(Refused(&first, {Opcode::kGet, {"/k"}, {}, 0, 0}),
               absl::StatusCode::kInvalidArgument, "GET while a wait");
  CHECK(Say(&first, {Opcode::kSet, {"/k"}, {"v"}, 0, 0}) == "");
  CHECK(woken == Table::Woken{1});
}

TEST_CASE_METHOD(Talk, "a consumer that leaves between wait and pop hands its item on") {
  Say(&first, {Opcode::kWait, {"/q"}, {}, 0, 0});
  Say(&second, {Opcode::kWait, {"/q"}, {}, 0, 0});
  Conversation third{3, true};
  Say(&third, {Opcode::kQueuePush, {"/q"}, {"i"}, 0, 0});
  CHECK(woken == Table::Woken{1});
  Depart(first, &table, &woken);
  CHECK(woken == Table::Woken{1, 2});
  CHECK(Say(&second, {Opcode::kQueuePop, {"/q"}, {}, 0, 0}) ==
        "0100000000000000010000000000000069");
}

TEST_CASE_METHOD(Talk, "adding to text ends the connection and says why") {
  Say(&first, {Opcode::kSet, {"/k"}, {"text"}, 0, 0});
  CHECK_STATUS(Refused(&first, {Opcode::kAdd, {"/k"}, {}, 1, 0}),
               absl::StatusCode::kFailedPrecondition, "no number");
}

TEST_CASE("a request of too many bytes in all is refused before they come") {
  RequestParser parser(25);
  const std::string fits =
      Encoded({Opcode::kMultiSet, {"/a", "/b"}, {"12345678901", "1234567890"}});
  absl::string_view input = fits;
  CHECK(parser.Next(&input).value());
  const std::string too_large =
      Encoded({Opcode::kMultiSet, {"/a", "/b"}, {"12345678901", "12345678901"}});
  input = absl::string_view(too_large).substr(0, too_large.size() - 11);  // not yet the last value
  CHECK_STATUS(parser.Next(&input), absl::StatusCode::kInvalidArgument,
               "MULTI_SET of more than 25 bytes in all");
}

}  // namespace
}  // namespace convene::rendezvous
