#include "launcher/data/file_tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/compact_tokenizer.h"
#include "worker_runtime/tokenizer/load_tokenizer.h"

namespace convene::launcher {

absl::StatusOr<std::unique_ptr<worker::Tokenizer>> LoadFileTokenizer(
    const worker::TokenSource& source, const std::string& path) {
  const worker::TokenizerIdentity& made_by = source.tokenizer();
  const std::string& name = path.empty() ? made_by.path : path;
  if (name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source.path(), " names no tokenizer; give --tokenizer PATH"));
  }
  CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<worker::Tokenizer> tokenizer,
                           worker::LoadTokenizer(name));
  if (!made_by.compact.has_value()) return tokenizer;
  absl::StatusOr<std::unique_ptr<worker::Tokenizer>> compact =
      worker::MakeCompactTokenizer(std::move(tokenizer), made_by.compact->original_ids);
  if (compact.ok()) return compact;
  return Annotate(compact.status(), absl::StrCat(source.path(), " with the tokenizer ", name));
}

}  // namespace convene::launcher
