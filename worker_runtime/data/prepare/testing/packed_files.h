// Files for tests of readers.
#pragma once

#include <string>

#include "worker_runtime/data/prepare/sources.h"

namespace convene::worker {

std::string Gzip(const std::string& text);
std::string Zstd(const std::string& text);

// Writes the file and describes it.
SourceFile PutSource(const std::string& path, const std::string& content);

}  // namespace convene::worker
