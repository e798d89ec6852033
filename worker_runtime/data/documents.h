// PURE. Where the documents of a row of tokens begin.
#pragma once

#include <cstdint>

namespace convene::worker {

// Fills `begin` (sequence_length): for each of the tokens of one row the position at which its
// document begins. `end_of_document` is the token that ends a document and belongs to it; the next
// token begins the next document. Where a row starts within a document, that document begins at the
// row's position 0: a row cannot attend to tokens that it does not hold.
void FindDocuments(int sequence_length, const int32_t* tokens, int32_t end_of_document,
                   int32_t* begin);

}  // namespace convene::worker
