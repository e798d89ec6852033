#include "worker_runtime/data/documents.h"

namespace convene::worker {

void FindDocuments(int sequence_length, const int32_t* tokens, int32_t end_of_document,
                   int32_t* begin) {
  int32_t current = 0;
  for (int position = 0; position < sequence_length; ++position) {
    begin[position] = current;
    if (tokens[position] == end_of_document) current = position + 1;
  }
}

}  // namespace convene::worker
