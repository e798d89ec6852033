// PURE. Applies one request to the table, and makes its answer.
#pragma once

#include "absl/status/status.h"
#include "rendezvous/net/send_queue.h"
#include "rendezvous/store/table.h"
#include "rendezvous/store/wire.h"

namespace convene::rendezvous {

// One connection's state beside its bytes.
//
//   new --VALIDATE, right magic--> talking --WAIT or BARRIER that must wait--> waiting
//                                     ^------- woken, or CANCEL_WAIT --------------'
//
// (waiting is Table::IsWaiting). Anything else in "new", and a request that wants an answer in
// "waiting", ends the connection.
struct Conversation {
  ConnectionId id = 0;
  bool validated = false;
};

// Answers go to `send_queue`, in request order. `woken` gets the connections whose wait ended: the
// caller owes each one AnswerWoken(). A bad status (its text says why) means that the connection
// must be closed; Depart() is still due.
absl::Status Answer(Request& request, Conversation* conversation, Table* table,
                    SendQueue* send_queue, Table::Woken* woken);

// Sends the one byte with which a wait or barrier ends.
void AnswerWoken(SendQueue* send_queue);

// Ends the wait and the reservation of a connection that is gone.
void Depart(const Conversation& conversation, Table* table, Table::Woken* woken);

}  // namespace convene::rendezvous
