// The flags of `convene checkpoint`'s commands: their spelling, targets and help.
#pragma once

#include <string>
#include <vector>

#include "tools/base/flag_reader.h"

namespace convene::launcher {

// A checkpoint is named by its step's directory, or by the directory of a job, for its newest.
struct ListFlags {
  std::string directory;
};

struct ShowCheckpointFlags {
  std::string checkpoint;
};

struct VerifyCheckpointFlags {
  std::vector<std::string> checkpoints;
};

enum class ExportFormat { kHf, kSafeTensors, kLlmc, kPeft };

struct ExportFlags {
  std::string checkpoint;
  ExportFormat format = ExportFormat::kHf;
  std::string output;
  std::string tokenizer;  // a folder; "": the checkpoint's own, where it has one
  std::string base;       // of adapters; "": where it lay when they were trained
  bool is_bfloat16 = false;
  int positions = 0;  // 0: Weights::longest_text, else HfConfigExtras' default
};

struct ImportFlags {
  std::string folder;
  std::string output;
};

struct DiffFlags {
  std::string a;
  std::string b;
  int rows = 20;
};

struct AverageFlags {
  std::vector<std::string> checkpoints;
  std::string output;
};

struct PruneFlags {
  std::string directory;
  int keep = 0;
};

void AddFlags(FlagReader* reader, ListFlags* flags);
void AddFlags(FlagReader* reader, ShowCheckpointFlags* flags);
void AddFlags(FlagReader* reader, VerifyCheckpointFlags* flags);
void AddFlags(FlagReader* reader, ExportFlags* flags);
void AddFlags(FlagReader* reader, ImportFlags* flags);
void AddFlags(FlagReader* reader, DiffFlags* flags);
void AddFlags(FlagReader* reader, AverageFlags* flags);
void AddFlags(FlagReader* reader, PruneFlags* flags);

}  // namespace convene::launcher
