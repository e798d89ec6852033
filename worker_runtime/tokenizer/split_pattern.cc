#include "worker_runtime/tokenizer/split_pattern.h"

#include "worker_runtime/tokenizer/pcre_pattern.h"
#include "worker_runtime/tokenizer/scanners.h"

namespace convene::worker {

absl::StatusOr<std::unique_ptr<SplitPattern>> MakeSplitPattern(const std::string& regex) {
  if (std::unique_ptr<SplitPattern> scanner = MakeScanner(regex)) return scanner;
  return MakePcrePattern(regex);
}

}  // namespace convene::worker
