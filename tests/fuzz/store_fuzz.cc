// libFuzzer on the store's parser, conversation and table together.
//
// The input is a script: each step is one byte for the connection (its low two bits: one of four)
// and for the length of the piece (the rest), then the piece's bytes, fed to that connection.
// It checks, besides the sanitizers:
//   - a connection is told nothing that it did not ask for: each request has the answer of its
//   kind;
//   - the wake-ups handed out are for connections that wait;
//   - memory is bounded by what came in;
//   - when all connections have closed, the table holds nothing of them.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "rendezvous/net/send_queue.h"
#include "rendezvous/store/conversation.h"
#include "rendezvous/store/table.h"
#include "rendezvous/store/wire.h"
#include "tools/base/check.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kPeers = 4;
// The most bytes that one byte of input may add to the table: a wait for a key of no bytes is 17
// bytes, and makes a waiting connection, a line, a place in it and perhaps a run.
constexpr size_t kTableBytesPerInputByte = 60;

struct Peer {
  Conversation conversation;
  RequestParser parser;
  SendQueue send_queue;
};

size_t SizeOf(const Value& value) { return value == nullptr ? 0 : value->size(); }

class Host {
 public:
  Host() {
    for (size_t i = 0; i < kPeers; ++i) Arrive(i);
  }

  ~Host() {
    for (const auto& peer : peers_) Leave(*peer);
    CONVENE_CHECK(table_.waiting() == 0 && table_.lines() == 0 && table_.reserved() == 0);
  }

  void Feed(size_t index, absl::string_view input) {
    Peer& peer = *peers_[index];
    input_bytes_ += input.size();
    while (!input.empty()) {
      const size_t before = input.size();
      const auto complete = peer.parser.Next(&input);
      if (!complete.ok()) return Replace(index);
      CONVENE_CHECK(*complete || input.empty());
      CONVENE_CHECK(input.size() < before);
      if (!*complete) break;
      if (!AnswerNext(&peer)) return Replace(index);
    }
    CONVENE_CHECK(table_.budget().bytes() <= input_bytes_ * kTableBytesPerInputByte);
  }

 private:
  void Arrive(size_t index) {
    peers_[index] = std::make_unique<Peer>();
    peers_[index]->conversation.id = ++last_id_;
  }

  void Replace(size_t index) {
    Leave(*peers_[index]);
    Arrive(index);
  }

  void Leave(const Peer& peer) {
    Depart(peer.conversation, &table_, &woken_);
    Wake(peer.conversation.id);
  }

  // False: the connection must be closed.
  bool AnswerNext(Peer* peer) {
    const ConnectionId id = peer->conversation.id;
    Request& request = peer->parser.request();
    const size_t answer_bytes = AnswerOf(request);
    const Opcode opcode = request.opcode;
    peer->send_queue.Consume(peer->send_queue.bytes());
    const bool good =
        Answer(request, &peer->conversation, &table_, &peer->send_queue, &woken_).ok();
    const size_t said = peer->send_queue.bytes();
    Wake(0);
    if (!good) return false;
    switch (opcode) {
      case Opcode::kWait:
      case Opcode::kBarrier:
        CONVENE_CHECK(said == (table_.IsWaiting(id) ? 0 : 1));
        break;
      case Opcode::kQueuePop:
        CONVENE_CHECK(said == 8 || said >= 16);
        break;
      case Opcode::kCompareSet:
        CONVENE_CHECK(said >= 8);
        break;
      default:
        CONVENE_CHECK(said == answer_bytes);
    }
    return true;
  }

  // The size of the answer, where the table and the request determine it beforehand.
  size_t AnswerOf(const Request& request) const {
    switch (request.opcode) {
      case Opcode::kCheck:
      case Opcode::kCancelWait:
        return 1;
      case Opcode::kPing:
        return 4;
      case Opcode::kAdd:
      case Opcode::kGetNumKeys:
      case Opcode::kDeleteKey:
      case Opcode::kQueueLen:
        return 8;
      case Opcode::kGet:
      case Opcode::kMultiGet: {
        size_t bytes = 0;
        for (const std::string& key : request.keys) bytes += 8 + SizeOf(table_.Get(key));
        return bytes;
      }
      case Opcode::kListKeys: {
        size_t bytes = 8;
        for (const absl::string_view key : table_.Keys()) bytes += 8 + key.size();
        return bytes;
      }
      default:
        return 0;
    }
  }

  // `gone`: a connection that may not be woken any more.
  void Wake(ConnectionId gone) {
    for (const ConnectionId id : woken_) {
      CONVENE_CHECK(id != gone && !table_.IsWaiting(id));
      CONVENE_CHECK(id <= last_id_);
    }
    woken_.clear();
  }

  Table table_;
  Table::Woken woken_;
  ConnectionId last_id_ = 0;
  size_t input_bytes_ = 0;
  std::array<std::unique_ptr<Peer>, kPeers> peers_;
};

}  // namespace
}  // namespace convene::rendezvous

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  convene::rendezvous::Host host;
  absl::string_view script(reinterpret_cast<const char*>(data), size);
  while (!script.empty()) {
    const auto step = static_cast<uint8_t>(script[0]);
    script.remove_prefix(1);
    const absl::string_view piece = script.substr(0, (step >> 2) + 1);
    script.remove_prefix(piece.size());
    host.Feed(step & 3, piece);
  }
  return 0;
}
