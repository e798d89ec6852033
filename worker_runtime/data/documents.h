// PURE. Where the documents of a row of tokens begin.
#pragma once

#include <cstdint>

namespace convene::worker {

// Fills `begin` (sequence_length): for each of the tokens of one row the position at which its
// document begins. `end_of_document` is the token that ends one and belongs to it; what follows
// begins the next. A row that starts within a document is at its position 0 there: what a row does
// not hold, it cannot attend to.
void FindDocuments(int sequence_length, const int32_t* tokens, int32_t end_of_document,
                   int32_t* begin);

}  // namespace convene::worker
