#include "worker_runtime/trainer/document_feed.h"

#include <algorithm>

#include "tools/base/check.h"

namespace convene::worker {

DocumentFeed::DocumentFeed(const Options& options, Device& device, Arena& arena, Arena& staging)
    : options_(options),
      device_(device),
      arena_(arena),
      staging_(staging),
      staging_memory_(options.steps_in_flight) {
  if (!options.shape.packed) return;
  const int64_t begins = tokens() * options.microbatches;
  const auto tables = static_cast<int64_t>(
      options.needs_table ? DocumentTableBytes(options.shape) * options.microbatches : 0);
  begins_memory_ = arena.Declare<int32_t>("step/documents", begins);
  tables_memory_ = arena.Declare<char>("step/list of documents", tables);
  for (HostMemoryBlocks& step : staging_memory_) {
    step = {.begins = staging.Declare<int32_t>("documents", begins),
            .tables = staging.Declare<char>("list of documents", tables)};
  }
}

void DocumentFeed::Bind() {
  if (!options_.shape.packed) return;
  begins_ = arena_.View(begins_memory_);
  tables_ = arena_.View(tables_memory_);
  for (const HostMemoryBlocks& memory : staging_memory_) {
    host_steps_.push_back({.begins = staging_.View(memory.begins),
                           .tables = staging_.View(memory.tables),
                           .documents = std::vector<Documents>(options_.microbatches)});
  }
}

const Documents* DocumentFeed::Feed(const int32_t* document_begin, int microbatches, int place) {
  CONVENE_CHECK(options_.shape.packed == (document_begin != nullptr));
  if (!options_.shape.packed) return nullptr;
  CONVENE_CHECK(microbatches <= options_.microbatches);
  HostStep& host = host_steps_[place];
  const int64_t count = tokens() * microbatches;
  std::copy_n(document_begin, count, host.begins.data());
  device_.Copy(host.begins.data(), begins_.data(), count * sizeof(int32_t), device_.compute());
  // The lists stand one behind the other, so that one copy takes no more than is there.
  size_t table_bytes = 0;
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    const int64_t first = tokens() * microbatch;
    Documents& documents = host.documents[microbatch];
    documents.begin = begins_.data() + first;
    if (!options_.needs_table) continue;
    table_bytes += WriteDocumentTable(options_.shape, host.begins.data() + first,
                                      host.tables.data() + table_bytes,
                                      tables_.data() + table_bytes, &documents);
  }
  if (table_bytes > 0) {
    device_.Copy(host.tables.data(), tables_.data(), table_bytes, device_.compute());
  }
  return host.documents.data();
}

}  // namespace convene::worker
