#include "rendezvous/store/conversation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

// The answer to LIST_KEYS is the only one that copies much. So much is 500,000 keys of usual
// length.
constexpr size_t kListedBytesMax = 64 << 20;

bool HasNoReply(Opcode opcode) {
  return opcode == Opcode::kSet || opcode == Opcode::kAppend || opcode == Opcode::kMultiSet ||
         opcode == Opcode::kQueuePush || opcode == Opcode::kValidate;
}

absl::Status CheckTurn(const Request& request, const Conversation& conversation,
                       const Table& table) {
  if (!conversation.validated && request.opcode != Opcode::kValidate) {
    return absl::InvalidArgumentError(
        absl::StrCat("the first request is ", OpcodeName(request.opcode), ", not VALIDATE"));
  }
  if (request.opcode == Opcode::kValidate && request.word != kValidateMagic) {
    return absl::InvalidArgumentError(
        absl::StrFormat("VALIDATE with magic 0x%08X, not 0x%08X", request.word, kValidateMagic));
  }
  if (table.IsWaiting(conversation.id) && request.opcode != Opcode::kCancelWait &&
      !HasNoReply(request.opcode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(OpcodeName(request.opcode), " while a wait on this connection is not over"));
  }
  return absl::OkStatus();
}

absl::Status AnswerMulti(Request& request, Table* table, SendQueue* send_queue,
                         Table::Woken* woken) {
  if (request.opcode == Opcode::kMultiGet) {
    for (const std::string& key : request.keys) EncodeValue(table->Get(key), send_queue);
    return absl::OkStatus();
  }
  for (size_t i = 0; i < request.keys.size(); ++i) {
    CONVENE_RETURN_IF_ERROR(table->Set(request.keys[i], std::move(request.values[i]), woken));
  }
  return absl::OkStatus();
}

absl::Status AnswerQueue(ConnectionId id, Request& request, Table* table, SendQueue* send_queue,
                         Table::Woken* woken) {
  const std::string& key = request.keys[0];
  if (request.opcode == Opcode::kQueuePush) {
    return table->QueuePush(key, std::move(request.values[0]), woken);
  }
  if (request.opcode == Opcode::kQueueLen) {
    EncodeNumber(static_cast<int64_t>(table->QueueLength(key)), send_queue);
    return absl::OkStatus();
  }
  const Table::Popped popped = table->QueuePop(id, key, woken);
  EncodeNumber(static_cast<int64_t>(popped.length_before), send_queue);
  if (popped.length_before > 0) EncodeValue(popped.item, send_queue);
  return absl::OkStatus();
}

absl::Status AnswerListKeys(const Table& table, SendQueue* send_queue) {
  const std::vector<absl::string_view> keys = table.Keys();
  size_t bytes = 0;
  for (const absl::string_view key : keys) bytes += key.size();
  if (bytes > kListedBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("LIST_KEYS of ", keys.size(), " keys with ",
                                                     bytes, " bytes, more than ", kListedBytesMax));
  }
  EncodeNumber(static_cast<int64_t>(keys.size()), send_queue);
  for (const absl::string_view key : keys) EncodeBytes(key, send_queue);
  return absl::OkStatus();
}

}  // namespace

absl::Status Answer(Request& request, Conversation* conversation, Table* table,
                    SendQueue* send_queue, Table::Woken* woken) {
  CONVENE_RETURN_IF_ERROR(CheckTurn(request, *conversation, *table));
  const ConnectionId id = conversation->id;
  if (request.opcode != Opcode::kQueuePop) table->ReleaseReservation(id, woken);
  switch (request.opcode) {
    case Opcode::kValidate:
      conversation->validated = true;
      break;
    case Opcode::kSet:
      return table->Set(request.keys[0], std::move(request.values[0]), woken);
    case Opcode::kCompareSet: {
      CONVENE_ASSIGN_OR_RETURN(const Value now,
                               table->CompareSet(request.keys[0], std::move(request.values[0]),
                                                 std::move(request.values[1]), woken));
      EncodeValue(now, send_queue);
      break;
    }
    case Opcode::kGet:
      EncodeValue(table->Get(request.keys[0]), send_queue);
      break;
    case Opcode::kAdd: {
      CONVENE_ASSIGN_OR_RETURN(const int64_t sum,
                               table->Add(request.keys[0], request.number, woken));
      EncodeNumber(sum, send_queue);
      break;
    }
    case Opcode::kCheck:
      EncodeByte(table->ExistAll(request.keys) ? kReady : kNotReady, send_queue);
      break;
    case Opcode::kWait: {
      CONVENE_ASSIGN_OR_RETURN(const bool over, table->Wait(id, request.keys));
      if (over) EncodeByte(kStopWaiting, send_queue);
      break;
    }
    case Opcode::kGetNumKeys:
      EncodeNumber(static_cast<int64_t>(table->size()), send_queue);
      break;
    case Opcode::kDeleteKey:
      EncodeNumber(table->Delete(request.keys[0]) ? 1 : 0, send_queue);
      break;
    case Opcode::kAppend:
      return table->Append(request.keys[0], request.values[0], woken);
    case Opcode::kMultiGet:
    case Opcode::kMultiSet:
      return AnswerMulti(request, table, send_queue, woken);
    case Opcode::kCancelWait:
      // Each CANCEL_WAIT gets exactly one answer, with or without a wait: a wake-up may have
      // crossed this request.
      table->CancelWait(id);
      EncodeByte(kWaitCanceled, send_queue);
      break;
    case Opcode::kPing:
      EncodeWord(request.word, send_queue);
      break;
    case Opcode::kQueuePush:
    case Opcode::kQueuePop:
    case Opcode::kQueueLen:
      return AnswerQueue(id, request, table, send_queue, woken);
    case Opcode::kListKeys:
      return AnswerListKeys(*table, send_queue);
    case Opcode::kBarrier: {
      CONVENE_ASSIGN_OR_RETURN(const bool complete,
                               table->Barrier(id, request.keys[0], request.number, woken));
      if (complete) EncodeByte(kStopWaiting, send_queue);
      break;
    }
  }
  return absl::OkStatus();
}

void AnswerWoken(SendQueue* send_queue) { EncodeByte(kStopWaiting, send_queue); }

void Depart(const Conversation& conversation, Table* table, Table::Woken* woken) {
  table->CancelWait(conversation.id);
  table->ReleaseReservation(conversation.id, woken);
}

}  // namespace convene::rendezvous
