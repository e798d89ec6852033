#include "worker_runtime/inference/generate_flags.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// `context`: the words of --context.
void AddModelFlags(FlagReader* reader, const std::string& context, ModelFlags* flags) {
  reader->Group("The model");
  reader->Option("model", &flags->model,
                 "a Hugging Face folder, a GGUF file, a model of llm.c, a checkpoint's directory, "
                 "the checkpoint directory of a job, of which the newest is taken, or adapters",
                 {.value = "PATH"});
  reader->Option("tokenizer", &flags->tokenizer,
                 "a tokenizer's file or folder, or byte (default: the model's own)",
                 {.value = "PATH"});
  reader->Option("base", &flags->base,
                 "where the weights lie now beside which the model's adapters were trained "
                 "(default: where they lay then)",
                 {.value = "PATH"});
  reader->Option("device", &flags->device, "auto takes a GPU where there is one (auto)",
                 {.choices = {"auto", "cpu", "cuda"}});
  reader->Option("precision", &flags->precision,
                 "of weights and arithmetic; auto is bf16 on a GPU, fp32 on a CPU (auto)",
                 {.choices = {"auto", "fp32", "bf16"}});
  reader->Option("context", &flags->context, context, {.value = "N", .least = 2, .most = 1 << 24});
}

void AddSamplingFlags(FlagReader* reader, SamplingOptions* options) {
  reader->Group("The choice of the next token, in this order");
  reader->Option("repetition-penalty", &options->repetition_penalty,
                 "makes tokens that the text has less likely: above 1 (1)", {.value = "X"});
  reader->Option("temperature", &options->temperature,
                 "0 takes the likeliest token each time, 1 follows the model's probabilities (0)",
                 {.value = "X"});
  reader->Option("top-k", &options->top_k, "only the K likeliest tokens; 0: all (0)",
                 {.value = "K"});
  reader->Option("top-p", &options->top_p,
                 "only the likeliest tokens that have this probability together (1)",
                 {.value = "P"});
  reader->Option("min-p", &options->min_p,
                 "only tokens with this share of the likeliest one's probability (0)",
                 {.value = "P"});
  reader->Custom(
      "seed",
      [options](const std::string& text) {
        int64_t seed = 0;
        const absl::Status status = ParseValue(text, &seed);
        options->seed = static_cast<uint64_t>(seed);
        return status;
      },
      "of the chance: the same seed gives each prompt the same answer, whatever is beside it (0)",
      {.value = "N"});
}

// Flags of a chance that --temperature 0 does not leave.
absl::Status CheckChance(const SamplingOptions& own) {
  const SamplingOptions unset;
  const std::pair<const char*, bool> given[] = {{"--top-k", own.top_k != unset.top_k},
                                                {"--top-p", own.top_p != unset.top_p},
                                                {"--min-p", own.min_p != unset.min_p}};
  for (const auto& [flag, is_given] : given) {
    if (!is_given || own.temperature != 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        flag,
        " changes no answer: --temperature 0 takes the likeliest token each time. Give "
        "--temperature 1 to choose by chance, or leave ",
        flag, " out"));
  }
  return absl::OkStatus();
}

absl::Status CheckServe(const GenerateFlags& flags) {
  if (flags.model.tp_size * flags.model.pp_size > 1) {
    return absl::InvalidArgumentError(
        "--serve answers from one process: leave --tp-size and --pp-size out");
  }
  if (flags.prompt.has_value() || !flags.prompts.empty()) {
    return absl::InvalidArgumentError(
        "--serve answers clients, and not --prompt or --prompts: leave these out");
  }
  const SamplingOptions& own = flags.sampling;
  const GenerateFlags unset;
  const std::pair<const char*, bool> given[] = {
      {"--system", flags.system != unset.system},
      {"--stop", flags.stop != unset.stop},
      {"--max-new-tokens", flags.max_new_tokens != unset.max_new_tokens},
      {"--ignore-end", flags.ignore_end},
      {"--temperature", own.temperature != unset.sampling.temperature},
      {"--repetition-penalty", own.repetition_penalty != unset.sampling.repetition_penalty},
      {"--top-k", own.top_k != unset.sampling.top_k},
      {"--top-p", own.top_p != unset.sampling.top_p},
      {"--min-p", own.min_p != unset.sampling.min_p},
      {"--seed", own.seed != unset.sampling.seed}};
  for (const auto& [flag, is_given] : given) {
    if (!is_given) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        flag, " changes no answer of --serve, as each request has its own: leave it out"));
  }
  return absl::OkStatus();
}

absl::Status CheckFlags(const GenerateFlags& flags) {
  if (flags.model.model.empty()) {
    return absl::InvalidArgumentError("--model is missing: the model to generate with");
  }
  if (flags.prompt.has_value() && !flags.prompts.empty()) {
    return absl::InvalidArgumentError(
        "--prompt is one text and --prompts a file of texts: give one of them");
  }
  if (flags.prompts.empty() && !flags.output.empty()) {
    return absl::InvalidArgumentError(
        "--output takes the answers to a file of --prompts; other answers go to the terminal");
  }
  if (flags.serve.has_value()) CONVENE_RETURN_IF_ERROR(CheckServe(flags));
  if (!flags.chat && !flags.system.empty()) {
    return absl::InvalidArgumentError("--system is the first message of a chat: add --chat");
  }
  if (flags.model.tp_size * flags.model.pp_size > 1 && !flags.prompt.has_value() &&
      flags.prompts.empty()) {
    return absl::InvalidArgumentError(
        "lines that are typed go to one process: with --tp-size or --pp-size give --prompt or "
        "--prompts");
  }
  for (const std::string& stop : flags.stop) {
    if (stop.empty()) return absl::InvalidArgumentError("--stop is empty: write a text");
  }
  CONVENE_RETURN_IF_ERROR(ValidateSampling(flags.sampling));
  return CheckChance(flags.sampling);
}

}  // namespace

void AddFlags(FlagReader* reader, GenerateFlags* flags) {
  AddModelFlags(reader,
                "tokens of a text with its answer, for which memory is planned (default: as many "
                "as the longest prompt and --max-new-tokens need)",
                &flags->model);
  reader->Group("Several processes of this machine, which this command starts");
  reader->Option("tp-size", &flags->model.tp_size,
                 "so many processes have a part of each of the model's matrices (1)",
                 {.value = "N", .least = 1, .most = 1024});
  reader->Option("pp-size", &flags->model.pp_size,
                 "so many processes have some of the model's layers each (1)",
                 {.value = "N", .least = 1, .most = 1024});
  reader->Group("The texts (none: what is typed, or lines of stdin)");
  reader->Option("prompt", &flags->prompt,
                 "go on with this text, in which a special token's text is that token (of a chat's "
                 "messages it is letters)",
                 {.value = "TEXT"});
  reader->Option("prompts", &flags->prompts,
                 "go on with each line of this file, JSON objects with a text \"prompt\" or with "
                 "\"messages\"; the answers are JSON lines in the same order",
                 {.value = "FILE"});
  reader->Option("output", &flags->output,
                 "where the answers to --prompts go; FILE.partial until all are there (stdout)",
                 {.value = "FILE"});
  reader->Switch("chat", &flags->chat,
                 "a prompt is a user's message: it is put into the chat template of the model's "
                 "folder or checkpoint, or of --tokenizer");
  reader->Option("system", &flags->system,
                 "the system's message of a chat; a line with \"messages\" has its own, or none",
                 {.value = "TEXT"});
  reader->Option("max-new-tokens", &flags->max_new_tokens, "the most tokens of an answer (128)",
                 {.value = "N", .least = 1, .most = 1 << 24});
  reader->Custom("stop",
                 [flags](const std::string& text) {
                   flags->stop.push_back(text);
                   return absl::OkStatus();
                 },
                 "the answer ends before this text, which may be a special token; may be repeated",
                 {.value = "TEXT"});
  reader->Switch("ignore-end", &flags->ignore_end,
                 "an end token of the model does not end the answer");
  reader->Option("batch-size", &flags->batch_size, "so many texts at once (8)",
                 {.value = "N", .least = 1, .most = 4096});
  AddSamplingFlags(reader, &flags->sampling);
  reader->Group(
      "For other programs (each request has its own --system, --stop, --max-new-tokens and "
      "sampling)");
  reader->Option("serve", &flags->serve,
                 "answer at this port by OpenAI's completions and chat/completions, until a "
                 "signal; 0: any port. One request at a time",
                 {.value = "PORT", .least = 0, .most = 65535});
  reader->Option("host", &flags->host,
                 "the address of --serve; 0.0.0.0 lets all of the network ask (127.0.0.1)",
                 {.value = "ADDRESS"});
  reader->Check([flags] { return CheckFlags(*flags); });
}

void AddFlags(FlagReader* reader, EvaluateFlags* flags) {
  AddModelFlags(reader,
                "tokens of a window: each token is scored once, and sees those before it in its "
                "window (1024, or as many as the model has positions)",
                &flags->model);
  reader->Group("What is measured");
  reader->Custom(
      "data",
      [flags](const std::string& text) {
        flags->data.push_back(text);
        return absl::OkStatus();
      },
      "a text, or a token file of `convene data prepare`, Megatron-LM, llm.c or nanotron; may be "
      "repeated",
      {.value = "FILE"});
  reader->Option("choices", &flags->choices,
                 "questions with endings in llm.c's format (hellaswag_val.bin), in the tokens of "
                 "the model",
                 {.value = "FILE"});
  reader->Check([flags]() -> absl::Status {
    if (flags->model.model.empty()) {
      return absl::InvalidArgumentError("--model is missing: the model to measure");
    }
    if (!flags->data.empty() || !flags->choices.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("nothing is measured: give --data or --choices");
  });
}

}  // namespace convene::worker
