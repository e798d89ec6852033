// PURE. The command lines of `convene generate` and `convene evaluate`, as the launcher and the
// trainer both read them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/base/flag_reader.h"
#include "worker_runtime/inference/sampler.h"

namespace convene::worker {

// A model, and where it runs.
struct ModelFlags {
  std::string model;      // OpenWeights' path
  std::string tokenizer;  // LoadTokenizer's path; "": the model's
  std::string base;       // of adapters; "": where it lay when they were trained
  std::string device = "auto";
  std::string precision = "auto";
  int context = 0;  // 0: as long as the texts need
  int tp_size = 1;  // processes, of which each has a part of each matrix
  int pp_size = 1;  // processes, of which each has some of the layers
};

struct GenerateFlags {
  ModelFlags model;
  std::optional<std::string> prompt;
  std::string prompts;  // a file's path
  std::string output;   // a file's path; "": stdout
  bool chat = false;
  std::string system;  // the first message of a chat; "": none
  int max_new_tokens = 128;
  int batch_size = 8;
  SamplingOptions sampling;
  std::vector<std::string> stop;
  bool ignore_end = false;
  std::optional<int> serve;  // a port, 0: any
  std::string host = "127.0.0.1";
};

struct EvaluateFlags {
  ModelFlags model;
  std::vector<std::string> data;  // texts and token files
  std::string choices;            // a file of questions; "": none
};

inline constexpr char kEvaluateHelp[] =
    "Measure a model: how likely it finds texts (perplexity, bits a byte), and how many of llm.c's "
    "questions with endings, such as HellaSwag's, it answers right.";

// The words of `convene generate --help` before its flags.
inline constexpr char kGenerateHelp[] =
    "Go on with texts, in a model's words: the text of --prompt, each line of the file --prompts, "
    "or what is typed. The answer is written as it comes.";

void AddFlags(FlagReader* reader, GenerateFlags* flags);
void AddFlags(FlagReader* reader, EvaluateFlags* flags);

}  // namespace convene::worker
