#include "launcher/checkpoint/checkpoint_command.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/checkpoint/checkpoint_flags.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/directory_lock.h"
#include "worker_runtime/inference/prompts.h"
#include "worker_runtime/tokenizer/load_tokenizer.h"
#include "worker_runtime/tokenizer/tokenizer.h"
#include "worker_runtime/weights/adapter.h"
#include "worker_runtime/weights/compare_weights.h"
#include "worker_runtime/weights/model_tensors.h"
#include "worker_runtime/weights/open_weights.h"
#include "worker_runtime/weights/tokenizer_files.h"
#include "worker_runtime/weights/write_weights.h"

namespace convene::launcher {
namespace {

using worker::CheckpointInfo;
using worker::CheckpointReader;
using worker::OpenWeights;
using worker::Weights;

constexpr char kDescription[] =
    "Look at checkpoints of convene-train, and carry weights between them and Hugging Face's "
    "folders. A CHECKPOINT is a directory step_..., or that of a job, for its newest; where "
    "weights alone are read it can also be a Hugging Face folder, a GGUF file or a model of llm.c.";

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

std::string InfoText(const CheckpointReader& reader) {
  const CheckpointInfo& info = reader.info();
  std::string text =
      absl::StrCat("step ", info.step, ", ", info.samples_consumed, " samples, saved by ",
                   info.layout, ", seed ", info.seed, "\n  model ", info.model, "\n");
  // An imported checkpoint has seen no data and no optimizer.
  if (!info.data.empty()) {
    absl::StrAppend(&text, "  data ", info.data, info.samples.empty() ? "" : ", ", info.samples,
                    "\n");
  }
  if (!info.optimizer.empty()) absl::StrAppend(&text, "  optimizer ", info.optimizer, "\n");
  const worker::TokenizerMark& tokenizer = info.tokenizer;
  if (tokenizer.path.empty()) return text;
  absl::StrAppend(&text, "  tokenizer ", tokenizer.path);
  if (const auto& files = reader.tokenizer_files(); !files.empty()) {
    absl::StrAppend(&text, ", ", files.size(), " files of it in ", worker::KeptDirectory(files));
  }
  if (!tokenizer.chat_template.empty()) {
    absl::StrAppend(&text, "\n  chat template ", tokenizer.chat_template);
  }
  return text + "\n";
}

absl::StatusOr<int> ListCommand(const ListFlags& flags) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                           worker::ListCheckpoints(flags.directory));
  if (paths.empty()) {
    return absl::NotFoundError(absl::StrCat(flags.directory, " has no checkpoints"));
  }
  for (const std::string& path : paths) {
    const auto reader = CheckpointReader::Open(path);
    Print(reader.ok() ? absl::StrCat(path, ": ", InfoText(*reader))
                      : absl::StrCat(path, ": cannot be used: ", reader.status().message(), "\n"));
  }
  return 0;
}

absl::StatusOr<int> ShowCommand(const ShowCheckpointFlags& flags) {
  CONVENE_ASSIGN_OR_RETURN(const Weights weights, OpenWeights(flags.checkpoint));
  const auto reader = CheckpointReader::Open(weights.source->name());
  Print(absl::StrCat(weights.source->name(), ": ",
                     reader.ok() ? InfoText(*reader)
                                 : absl::StrCat("model ", weights.source->info().model, "\n")));
  for (size_t i = 0; reader.ok() && i < reader->tokenizer_files().size(); ++i) {
    const worker::KeptFile& file = reader->tokenizer_files()[i];
    Print(absl::StrCat("  ", file.bytes, " bytes  ", file.name, "\n"));
  }
  int64_t total = 0;
  for (const worker::ModelTensor& tensor : worker::ModelTensors(weights.config)) {
    const int64_t count = tensor.shape[0] * tensor.shape[1];
    Print(absl::StrCat("  ", tensor.shape[0], " x ", tensor.shape[1], "  ", tensor.name, "\n"));
    total += count;
  }
  Print(absl::StrCat("  ", total, " parameters\n"));
  return 0;
}

// Of a job's directory its newest one, whether that can be opened or not.
absl::StatusOr<CheckpointReader> OpenToVerify(const std::string& path) {
  const auto newest_first = worker::ListCheckpoints(path);
  if (newest_first.ok() && !newest_first->empty()) {
    return CheckpointReader::Open(newest_first->front());
  }
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(path);
  if (!absl::IsNotFound(reader.status())) return reader;
  return absl::NotFoundError(absl::StrCat(path, " has no checkpoints"));
}

// Goes on behind a bad one, so that one run finds all of them.
absl::StatusOr<int> VerifyCommand(const VerifyCheckpointFlags& flags) {
  size_t bad = 0;
  for (const std::string& path : flags.checkpoints) {
    const auto reader = OpenToVerify(path);
    const absl::Status status = reader.ok() ? reader->Verify() : reader.status();
    if (status.ok()) {
      Print(absl::StrCat(reader->name(), ": whole\n"));
      continue;
    }
    ++bad;
    std::fprintf(stderr, "convene: %s\n", std::string(status.message()).c_str());
  }
  if (bad == 0) return 0;
  return absl::DataLossError(absl::StrCat(bad, " of ", flags.checkpoints.size(),
                                          " checkpoints are not whole, as said above"));
}

// The token at which other programs end what a model writes.
std::optional<int32_t> EndOfAnswer(const worker::Tokenizer& tokenizer) {
  for (const worker::NamedToken& token : tokenizer.named_tokens()) {
    if (token.name == "eos_token") return tokenizer.SpecialId(token.text);
  }
  return tokenizer.end_of_document();
}

// Other programs end an answer of a chat where `convene generate --chat` does.
absl::Status AddEndOfChat(const std::string& folder, const worker::Tokenizer& tokenizer,
                          int vocabulary, worker::HfExport* wanted) {
  constexpr char kName[] = "generation_config.json";
  auto chats = worker::PromptReader::Make(tokenizer, folder, "");
  const std::optional<int32_t> end = chats.ok() ? chats->EndOfAnswer() : std::nullopt;
  if (!end.has_value() || *end >= vocabulary) return absl::OkStatus();
  std::vector<worker::NamedFile>& files = wanted->other_files;
  auto file = std::find_if(files.begin(), files.end(),
                           [&](const worker::NamedFile& one) { return one.name == kName; });
  // A reader of this file looks for no token in config.json any more.
  const int begin = wanted->extras.begin_of_document;
  const std::string before = file != files.end() ? file->content
                             : begin >= 0        ? absl::StrCat("{\"bos_token_id\": ", begin, "}")
                                                 : "";
  CONVENE_ASSIGN_OR_RETURN(std::string text,
                           worker::WithEndToken(before, EndOfAnswer(tokenizer), *end));
  if (text == before) return absl::OkStatus();
  if (file == files.end()) file = files.insert(file, {kName, ""});
  file->content = std::move(text);
  return absl::OkStatus();
}

absl::Status ExportFolder(const Weights& weights, worker::DType type, const ExportFlags& flags) {
  worker::HfExport wanted = {.output = flags.output, .type = type};
  wanted.extras.positions = flags.positions > 0 ? flags.positions : weights.longest_text;
  std::string folder = flags.tokenizer;
  if (folder.empty()) {
    CONVENE_ASSIGN_OR_RETURN(folder, weights.tokenizer);
  }
  if (!folder.empty()) {
    const auto tokenizer = worker::LoadTokenizer(folder);
    if (!tokenizer.ok()) return Annotate(tokenizer.status(), "--tokenizer");
    const int needed = (*tokenizer)->document_vocabulary_size();
    if (needed > weights.config.vocabulary_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("the tokenizer ", folder, " has ", needed, " tokens, more than the ",
                       weights.config.vocabulary_size, " of the model"));
    }
    const auto prefix = (*tokenizer)->prefix();
    if (!prefix.empty()) wanted.extras.begin_of_document = prefix.front();
    wanted.extras.end_of_document = EndOfAnswer(**tokenizer).value_or(-1);
    CONVENE_ASSIGN_OR_RETURN(wanted.other_files, worker::TokenizerFilesForOthers(folder));
    if (wanted.other_files.empty() && folder != "byte") {
      std::fprintf(
          stderr,
          "convene: the folder gets no tokenizer: the model's vocabulary is a compact one, "
          "which other programs do not know\n");
    }
    CONVENE_RETURN_IF_ERROR(
        AddEndOfChat(folder, **tokenizer, weights.config.vocabulary_size, &wanted));
  }
  return worker::ExportHf(weights, wanted);
}

// The number that ExportFolder had to guess, for the line that tells of its end.
std::string GuessText(const Weights& weights, const ExportFlags& flags) {
  if (flags.format != ExportFormat::kHf || flags.positions > 0 || weights.longest_text > 0 ||
      weights.config.family->learned_positions) {
    return "";
  }
  return absl::StrCat("; its max_position_embeddings, ", worker::GuessedLongestText(weights.config),
                      ", is a guess: --positions says it");
}

// PEFT finds no weights in a base of another kind.
std::string BaseText(const std::string& base) {
  if (IsFile(absl::StrCat(base, "/config.json"))) return "";
  return absl::StrCat("; PEFT cannot load their base ", base,
                      ", as it is no folder of Hugging Face's: export it too (convene checkpoint "
                      "export ",
                      base, " --output DIR), and name it by --base DIR");
}

absl::StatusOr<int> ExportAdapter(const ExportFlags& flags) {
  CONVENE_ASSIGN_OR_RETURN(worker::Adapter adapter, worker::OpenAdapter(flags.checkpoint));
  if (!flags.base.empty()) adapter.base = flags.base;
  if (!flags.tokenizer.empty()) adapter.tokenizer = flags.tokenizer;
  CONVENE_ASSIGN_OR_RETURN(worker::ModelConfig model, worker::ReadShape(adapter.base));
  model.adapter = adapter.config;
  CONVENE_RETURN_IF_ERROR(worker::ExportPeft(adapter, model, flags.output));
  Print(absl::StrCat(flags.output, ": the adapters of ", adapter.source->name(),
                     BaseText(adapter.base), "\n"));
  return 0;
}

absl::StatusOr<int> ExportCommand(const ExportFlags& flags) {
  if (flags.format == ExportFormat::kPeft) return ExportAdapter(flags);
  CONVENE_ASSIGN_OR_RETURN(const Weights weights, OpenWeights(flags.checkpoint, flags.base));
  const worker::DType type = flags.is_bfloat16 ? worker::DType::kBFloat16 : worker::DType::kFloat32;
  CONVENE_RETURN_IF_ERROR(flags.format == ExportFormat::kHf ? ExportFolder(weights, type, flags)
                          : flags.format == ExportFormat::kLlmc
                              ? worker::ExportLlmc(weights, type, flags.output)
                              : worker::ExportSafeTensors(weights, type, flags.output));
  Print(absl::StrCat(flags.output, ": ", weights.source->name(), GuessText(weights, flags), "\n"));
  return 0;
}

absl::StatusOr<int> ImportCommand(const ImportFlags& flags) {
  CONVENE_ASSIGN_OR_RETURN(const Weights weights, OpenWeights(flags.folder));
  CONVENE_RETURN_IF_ERROR(worker::ImportCheckpoint(weights, flags.output));
  Print(absl::StrCat(flags.output, ": ", weights.source->name(), "\n"));
  return 0;
}

absl::StatusOr<int> DiffCommand(const DiffFlags& flags) {
  CONVENE_ASSIGN_OR_RETURN(const Weights a, OpenWeights(flags.a));
  CONVENE_ASSIGN_OR_RETURN(const Weights b, OpenWeights(flags.b));
  CONVENE_ASSIGN_OR_RETURN(std::vector<worker::TensorDifference> differences,
                           worker::CompareWeights(a, b));
  const size_t tensors = worker::ModelTensors(a.config).size();
  Print(absl::StrCat(differences.size(), " of ", tensors, " tensors differ\n"));
  if (static_cast<int>(differences.size()) > flags.rows) differences.resize(flags.rows);
  for (const worker::TensorDifference& difference : differences) {
    Print(absl::StrCat("  ", difference.largest, " at (", difference.row, ", ", difference.column,
                       ")  ", difference.name, "\n"));
  }
  return 0;
}

absl::StatusOr<int> AverageCommand(const AverageFlags& flags) {
  std::vector<Weights> all;
  for (const std::string& path : flags.checkpoints) {
    CONVENE_ASSIGN_OR_RETURN(Weights weights, OpenWeights(path));
    all.push_back(std::move(weights));
  }
  CONVENE_ASSIGN_OR_RETURN(Weights average, worker::AverageWeights(std::move(all)));
  if (!average.tokenizer.ok()) {
    std::fprintf(stderr, "convene: the average has no tokenizer: %s\n",
                 std::string(average.tokenizer.status().message()).c_str());
    average.tokenizer = std::string();
  }
  CONVENE_RETURN_IF_ERROR(worker::ImportCheckpoint(average, flags.output));
  Print(absl::StrCat(flags.output, ": ", average.source->name(), "\n"));
  return 0;
}

absl::StatusOr<int> PruneCommand(const PruneFlags& flags) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> found,
                           worker::ListCheckpoints(flags.directory));
  if (found.empty()) {
    return absl::NotFoundError(absl::StrCat(flags.directory, " has no checkpoints"));
  }
  CONVENE_ASSIGN_OR_RETURN(
      const worker::DirectoryLock lock,
      worker::LockDirectory(
          flags.directory,
          {.job = "convene checkpoint prune", .wait_timeout = {}, .lost_machine_timeout = {}}));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> before,
                           worker::ListCheckpoints(flags.directory));
  int whole = 0;
  CONVENE_RETURN_IF_ERROR(worker::RemoveOldCheckpoints(
      flags.directory, std::numeric_limits<int64_t>::max(), flags.keep,
      [&whole](const CheckpointReader& reader) {
        const absl::Status status = reader.Verify();
        if (status.ok()) ++whole;
        if (!status.ok()) {
          std::fprintf(stderr, "convene: %s does not count as one to keep: %s\n",
                       reader.name().c_str(), std::string(status.message()).c_str());
        }
        return status;
      }));
  if (whole == 0) {
    return absl::DataLossError(absl::StrCat("no checkpoint in ", flags.directory,
                                            " is whole, so none was removed: `convene checkpoint "
                                            "verify` says what each one lacks"));
  }
  CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> after,
                           worker::ListCheckpoints(flags.directory));
  Print(absl::StrCat("removed ", before.size() - after.size(), " of ", before.size(),
                     " checkpoints\n"));
  return 0;
}

Program CheckpointProgram() {
  return {
      "convene checkpoint",
      kDescription,
      {CommandRow("list", "the checkpoints of a job", "List the checkpoints in DIRECTORY.",
                  ListCommand),
       CommandRow("show", "what a checkpoint was trained on, and its tensors",
                  "Show what a checkpoint was trained on, its model, and its tensors.",
                  ShowCommand),
       CommandRow("verify", "compare checkpoints with their checksums",
                  "Read checkpoints to their ends and compare every checksum.", VerifyCommand),
       CommandRow("export", "write the weights for other programs",
                  "Write the weights of a checkpoint as a folder that Hugging Face's "
                  "transformers loads, or as one file (--format). It appears when all of it is "
                  "written.",
                  ExportCommand),
       CommandRow("import", "make a checkpoint of a Hugging Face folder",
                  "Make a checkpoint of the weights of a Hugging Face folder, a GGUF file or a "
                  "model of llm.c. It has no state of an optimizer: begin with it (convene-train "
                  "--init-from).",
                  ImportCommand),
       CommandRow("diff", "the largest differences of two checkpoints, by tensor",
                  "Compare the weights of two checkpoints or folders of one shape.", DiffCommand),
       CommandRow("average", "make the average of several checkpoints",
                  "Make a checkpoint whose weights are the average of those of several "
                  "checkpoints or folders of one shape.",
                  AverageCommand),
       CommandRow("prune", "remove all but the newest checkpoints",
                  "Remove all checkpoints of DIRECTORY but the newest that are whole. No job "
                  "may write there meanwhile.",
                  PruneCommand)}};
}

}  // namespace

Command CheckpointRow() {
  return ProgramRow("checkpoint", "look at checkpoints; weights to and from Hugging Face",
                    kDescription, CheckpointProgram);
}

}  // namespace convene::launcher
