#include "worker_runtime/trainer/document_feed.h"

#include "tools/base/check.h"

namespace convene::worker {

DocumentFeed::DocumentFeed(const Options& options, Device& device, Arena& arena, Arena& staging)
    : options_(options),
      positions_(options.cut.QueryPositions()),
      device_(device),
      arena_(arena),
      staging_(staging),
      documents_(options.microbatches) {
  if (!options.shape.packed) return;
  const int64_t begins = tokens() * options.microbatches;
  const auto tables = static_cast<int64_t>(
      options.needs_table ? DocumentTableBytes(options.shape) * options.microbatches : 0);
  begins_memory_ = arena.Declare<int32_t>("step/documents", begins);
  tables_memory_ = arena.Declare<char>("step/list of documents", tables);
  host_begins_memory_ = staging.Declare<int32_t>("documents", begins);
  host_tables_memory_ = staging.Declare<char>("list of documents", tables);
}

void DocumentFeed::Bind() {
  if (!options_.shape.packed) return;
  begins_ = arena_.View(begins_memory_);
  tables_ = arena_.View(tables_memory_);
  host_begins_ = staging_.View(host_begins_memory_);
  host_tables_ = staging_.View(host_tables_memory_);
}

const Documents* DocumentFeed::Feed(const int32_t* document_begin, int microbatches) {
  CONVENE_CHECK(options_.shape.packed == (document_begin != nullptr));
  if (!options_.shape.packed) return nullptr;
  CONVENE_CHECK(microbatches <= options_.microbatches);
  const int64_t count = tokens() * microbatches;
  CutRows(positions_, options_.cut.sequence_length, int64_t{options_.shape.batch} * microbatches,
          document_begin, host_begins_.data());
  device_.Copy(host_begins_.data(), begins_.data(), count * sizeof(int32_t), device_.compute());
  // The lists lie one behind the other, so that one copy takes only their bytes.
  size_t table_bytes = 0;
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    const int64_t first = tokens() * microbatch;
    Documents& documents = documents_[microbatch];
    documents.begin = begins_.data() + first;
    if (!options_.needs_table) continue;
    table_bytes += WriteDocumentTable(options_.shape, host_begins_.data() + first,
                                      host_tables_.data() + table_bytes,
                                      tables_.data() + table_bytes, &documents);
  }
  if (table_bytes > 0) {
    device_.Copy(host_tables_.data(), tables_.data(), table_bytes, device_.compute());
  }
  return documents_.data();
}

}  // namespace convene::worker
