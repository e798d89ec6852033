#include "launcher/checkpoint/checkpoint_flags.h"

#include <limits>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace convene::launcher {
namespace {

// One word, which must be there; `example` shows the whole command.
void NeedWord(FlagReader* reader, const std::string& name, std::string* word,
              const std::string& example) {
  reader->Word(name, word);
  reader->Check([=]() -> absl::Status {
    if (!word->empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("name the ", name, ": `", example, "`"));
  });
}

void NeedOutput(FlagReader* reader, std::string* output, const std::string& help) {
  reader->Option("output", output, help, {.value = "DIR", .is_directory = true});
  reader->Check([=]() -> absl::Status {
    if (!output->empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("name a new directory with --output");
  });
}

}  // namespace

void AddFlags(FlagReader* reader, ListFlags* flags) {
  NeedWord(reader, "DIRECTORY", &flags->directory, "convene checkpoint list checkpoints");
}

void AddFlags(FlagReader* reader, ShowCheckpointFlags* flags) {
  NeedWord(reader, "CHECKPOINT", &flags->checkpoint, "convene checkpoint show checkpoints");
}

void AddFlags(FlagReader* reader, VerifyCheckpointFlags* flags) {
  reader->Words("CHECKPOINT ...", &flags->checkpoints);
  reader->Check([flags]() -> absl::Status {
    if (!flags->checkpoints.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "name a checkpoint: `convene checkpoint verify checkpoints/step_00000100`");
  });
}

void AddFlags(FlagReader* reader, ExportFlags* flags) {
  NeedWord(reader, "CHECKPOINT", &flags->checkpoint,
           "convene checkpoint export checkpoints --output model");
  NeedOutput(reader, &flags->output, "the folder or file that is made");
  reader->Choice<ExportFormat>("format", &flags->format,
                               {{"hf", ExportFormat::kHf},
                                {"safetensors", ExportFormat::kSafeTensors},
                                {"llmc", ExportFormat::kLlmc},
                                {"peft", ExportFormat::kPeft}},
                               "what is made: hf, a folder for Hugging Face's transformers "
                               "(default); safetensors, its tensors alone in one file; llmc, a "
                               "file of llm.c's, of GPT-2; peft, the adapters alone, for PEFT");
  reader->Option("tokenizer", &flags->tokenizer,
                 "a folder whose tokenizer and chat template are copied, or a GGUF file, of which "
                 "they are written (default: the checkpoint's own)",
                 {.value = "PATH"});
  reader->Option("base", &flags->base,
                 "where the weights lie now beside which adapters were trained (default: where "
                 "they lay then)",
                 {.value = "PATH"});
  reader->Choice<bool>("dtype", &flags->is_bfloat16, {{"float32", false}, {"bfloat16", true}},
                       "element type of the tensors (default float32)");
  reader->Check([flags]() -> absl::Status {
    if (flags->format == ExportFormat::kPeft && flags->is_bfloat16) {
      return absl::InvalidArgumentError("adapters are written in float32: leave --dtype out");
    }
    const bool is_folder =
        flags->format == ExportFormat::kHf || flags->format == ExportFormat::kPeft;
    if (!is_folder && !flags->tokenizer.empty()) {
      return absl::InvalidArgumentError(
          "--tokenizer is written by --format hf and peft alone: leave it out");
    }
    if (flags->format == ExportFormat::kHf || flags->positions == 0) return absl::OkStatus();
    return absl::InvalidArgumentError("--positions is written by --format hf alone: leave it out");
  });
  reader->Option(
      "positions", &flags->positions,
      "the longest text that the model is made for, for programs that read it (default: what "
      "the weights say with which a run began, and no less than the run's samples have; where "
      "nothing says it, as far as scaled rotary positions reach, else 4096)",
      {.value = "N", .least = 1, .most = std::numeric_limits<int>::max()});
}

void AddFlags(FlagReader* reader, ImportFlags* flags) {
  NeedWord(reader, "FOLDER", &flags->folder,
           "convene checkpoint import Llama-3 --output checkpoints");
  NeedOutput(reader, &flags->output, "the directory of the checkpoint that is made");
}

void AddFlags(FlagReader* reader, DiffFlags* flags) {
  const auto words = std::make_shared<std::vector<std::string>>();
  reader->Words("A B", words.get());
  reader->Option("rows", &flags->rows, "so many tensors are shown (default 20)",
                 {.value = "N", .least = 1, .most = std::numeric_limits<int>::max()});
  reader->Check([flags, words]() -> absl::Status {
    if (words->size() != 2) {
      return absl::InvalidArgumentError(
          "name two checkpoints or folders: `convene checkpoint diff A B`");
    }
    flags->a = (*words)[0];
    flags->b = (*words)[1];
    return absl::OkStatus();
  });
}

void AddFlags(FlagReader* reader, AverageFlags* flags) {
  reader->Words("CHECKPOINT ...", &flags->checkpoints);
  NeedOutput(reader, &flags->output, "the directory of the checkpoint that is made");
  reader->Check([flags]() -> absl::Status {
    if (flags->checkpoints.size() >= 2) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "name two checkpoints or more: `convene checkpoint average A B --output C`");
  });
}

void AddFlags(FlagReader* reader, PruneFlags* flags) {
  NeedWord(reader, "DIRECTORY", &flags->directory, "convene checkpoint prune checkpoints --keep 3");
  reader->Option("keep", &flags->keep, "so many of the newest stay",
                 {.value = "N", .least = 1, .most = std::numeric_limits<int>::max()});
  reader->Check([flags]() -> absl::Status {
    if (flags->keep >= 1) return absl::OkStatus();
    return absl::InvalidArgumentError("say with --keep N how many of the newest checkpoints stay");
  });
}

}  // namespace convene::launcher
