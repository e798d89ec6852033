#include "worker_runtime/trainer/run_tokenizer.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "spdlog/spdlog.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/chat_format.h"
#include "worker_runtime/tokenizer/compact_vocabulary.h"
#include "worker_runtime/tokenizer/fingerprint.h"
#include "worker_runtime/tokenizer/load_tokenizer.h"
#include "worker_runtime/weights/tokenizer_files.h"

namespace convene::worker {
namespace {

constexpr char kByteTokenizer[] = "byte";
constexpr char kTemplateName[] = "chat_template.jinja";
constexpr char kGenerationConfig[] = "generation_config.json";

// Byte is what nobody names: it stands for itself only where the data say so.
bool IsOfData(const TrainOptions& options, const Tokenizer& tokenizer,
              const TokenizerIdentity& made_by) {
  return made_by.fingerprint == tokenizer.fingerprint() ||
         (made_by.fingerprint == 0 && options.tokenizer_path != kByteTokenizer);
}

// By their names, as TokenizerFiles would find them: equal files are equal checkpoints.
void Sort(std::vector<NamedFile>* files) {
  absl::c_sort(*files, [](const NamedFile& a, const NamedFile& b) { return a.name < b.name; });
}

// Adds the file that cuts the tokenizer's vocabulary to these tokens.
void CutVocabulary(absl::Span<const int32_t> original_ids, std::vector<NamedFile>* files) {
  // It names tokens by the ids of the whole vocabulary.
  std::erase_if(*files, [](const NamedFile& file) { return file.name == kGenerationConfig; });
  files->push_back({kCompactVocabularyFile, CompactVocabularyJson(original_ids)});
  Sort(files);
}

absl::Status AddTemplate(const std::string& chat_template, std::vector<NamedFile>* files) {
  CONVENE_ASSIGN_OR_RETURN(ChatFormat format, LoadChatFormat(chat_template));
  auto* const folder = std::get_if<FolderTemplate>(&format);
  if (folder == nullptr) return absl::OkStatus();  // a name is all there is
  std::erase_if(*files, [](const NamedFile& file) {
    return file.name == kTemplateName || file.name == kToolUseTemplateName;
  });
  files->push_back({kTemplateName, std::move(folder->source)});
  if (!folder->tool_use_source.empty()) {
    files->push_back({kToolUseTemplateName, std::move(folder->tool_use_source)});
  }
  Sort(files);
  return absl::OkStatus();
}

}  // namespace

TokenizerMark MarkOfTokenizer(const TrainOptions& options, const Tokenizer& tokenizer,
                              const TokenizerIdentity& made_by) {
  if (IsOfData(options, tokenizer, made_by)) {
    return {options.tokenizer_path, tokenizer.fingerprint(), options.chat_template};
  }
  return {made_by.path, made_by.fingerprint, options.chat_template};
}

absl::StatusOr<std::vector<NamedFile>> FilesOfTokenizer(const TrainOptions& options,
                                                        const Tokenizer& tokenizer,
                                                        const TokenizerIdentity& made_by) {
  const std::string path = MarkOfTokenizer(options, tokenizer, made_by).path;
  if (path.empty() || path == kByteTokenizer) return std::vector<NamedFile>();
  bool is_to_cut = false;
  if (!IsOfData(options, tokenizer, made_by)) {
    const absl::StatusOr<std::unique_ptr<Tokenizer>> theirs = LoadTokenizer(path);
    const uint64_t fingerprint = theirs.ok() ? (*theirs)->fingerprint() : 0;
    is_to_cut =
        theirs.ok() && made_by.compact.has_value() &&
        CompactFingerprint(fingerprint, made_by.compact->original_ids) == made_by.fingerprint;
    if (!theirs.ok() || (fingerprint != made_by.fingerprint && !is_to_cut)) {
      spdlog::info(
          "checkpoints come without the tokenizer that made the data: it is not at {} any more; "
          "name it by --tokenizer to have it with them",
          path);
      return std::vector<NamedFile>();
    }
  }
  CONVENE_ASSIGN_OR_RETURN(std::vector<NamedFile> files, TokenizerFiles(path));
  if (is_to_cut) CutVocabulary(made_by.compact->original_ids, &files);
  if (!options.chat_template.empty() && options.chat_template != path) {
    CONVENE_RETURN_IF_ERROR(AddTemplate(options.chat_template, &files));
  }
  return files;
}

}  // namespace convene::worker
