#include "worker_runtime/trainer/document_feed.h"

#include "tools/base/check.h"

namespace convene::worker {

DocumentFeed::DocumentFeed(const Options& options, Device& device, Arena& arena, Arena& staging)
    : options_(options),
      positions_(options.cut.QueryPositions()),
      device_(device),
      documents_(options.microbatches) {
  if (!options.shape.packed) return;
  const int64_t begins = tokens() * options.microbatches;
  const auto tables = static_cast<int64_t>(
      options.needs_table ? DocumentTableBytes(options.shape) * options.microbatches : 0);
  begins_ = arena.Declare<int32_t>("step/documents", begins);
  tables_ = arena.Declare<char>("step/list of documents", tables);
  host_begins_ = staging.Declare<int32_t>("documents", begins);
  host_tables_ = staging.Declare<char>("list of documents", tables);
}

const Documents* DocumentFeed::Feed(const int32_t* document_begin, int microbatches) {
  CONVENE_CHECK(options_.shape.packed == (document_begin != nullptr));
  if (!options_.shape.packed) return nullptr;
  CONVENE_CHECK(microbatches <= options_.microbatches);
  const int64_t count = tokens() * microbatches;
  CutRows(positions_, options_.cut.sequence_length, int64_t{options_.shape.batch} * microbatches,
          document_begin, At(host_begins_));
  device_.Copy(At(host_begins_), At(begins_), count * sizeof(int32_t), device_.compute());
  // The lists lie one behind the other, so that one copy takes only their bytes.
  size_t table_bytes = 0;
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    const int64_t first = tokens() * microbatch;
    Documents& documents = documents_[microbatch];
    documents.begin = At(begins_) + first;
    if (!options_.needs_table) continue;
    table_bytes +=
        WriteDocumentTable(options_.shape, At(host_begins_) + first, At(host_tables_) + table_bytes,
                           At(tables_) + table_bytes, &documents);
  }
  if (table_bytes > 0) {
    device_.Copy(At(host_tables_), At(tables_), table_bytes, device_.compute());
  }
  return documents_.data();
}

}  // namespace convene::worker
