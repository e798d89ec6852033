// Token files for tests, and all that a source holds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker_runtime/data/store/token_file.h"
#include "worker_runtime/data/store/token_source.h"

namespace convene::worker::testing {

struct TestDocument {
  std::vector<int32_t> ids;
  std::vector<uint8_t> counted;  // empty: all count
  friend bool operator==(const TestDocument&, const TestDocument&) = default;
};

// Fails the test when it cannot be written.
void WriteTokenFile(const std::string& path, const TokenFileInfo& info,
                    const std::vector<TestDocument>& documents);

// One document of these tokens, for a vocabulary of `vocabulary_size`.
void WriteTokenFile(const std::string& path, int vocabulary_size, const std::vector<int32_t>& ids);

// Fails the test when it cannot be opened.
std::shared_ptr<const TokenSource> OpenTokens(const std::string& path);

std::vector<TestDocument> DocumentsOf(const TokenSource& source);

}  // namespace convene::worker::testing
