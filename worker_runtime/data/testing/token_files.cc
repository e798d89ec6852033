#include "worker_runtime/data/testing/token_files.h"

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/data/store/token_source.h"

namespace convene::worker::testing {

void WriteTokenFile(const std::string& path, const TokenFileInfo& info,
                    const std::vector<TestDocument>& documents) {
  auto writer = TokenFileWriter::Create(path, info);
  REQUIRE_OK(writer);
  for (const TestDocument& document : documents) {
    REQUIRE_OK(writer->Append(document.ids, document.counted));
    REQUIRE_OK(writer->EndDocument());
  }
  REQUIRE_OK(writer->Finish());
}

void WriteTokenFile(const std::string& path, int vocabulary_size, const std::vector<int32_t>& ids) {
  TokenFileInfo info;
  info.vocabulary_size = vocabulary_size;
  WriteTokenFile(path, info, {{ids, {}}});
}

std::shared_ptr<const TokenSource> OpenTokens(const std::string& path) {
  auto source = OpenTokenSource(path);
  REQUIRE_OK(source);
  return *std::move(source);
}

std::vector<TestDocument> DocumentsOf(const TokenSource& source) {
  std::vector<TestDocument> documents;
  int64_t begin = 0;
  for (int64_t i = 0; i < source.document_count(); ++i) {
    const int64_t end = source.document_end(i);
    TestDocument document;
    document.ids.resize(end - begin);
    source.Read(begin, end - begin, document.ids.data());
    if (source.has_counted()) {
      document.counted.resize(end - begin);
      source.ReadCounted(begin, end - begin, document.counted.data());
    }
    documents.push_back(document);
    begin = end;
  }
  return documents;
}

}  // namespace convene::worker::testing
