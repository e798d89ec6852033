#include "launcher/data/data_flags.h"

#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/environment.h"

namespace convene::launcher {
namespace {

using worker::InputFormat;
using worker::TokenFormat;
using worker::TrainOn;

constexpr int64_t kDocumentBytesMax = int64_t{1} << 40;

constexpr char kTokenizerHelp[] =
    "a tokenizer.json, tekken.json, tiktoken or SentencePiece file, or a model's folder; byte: "
    "each byte is a token";

absl::Status ReadDocumentSize(const std::string& text, int64_t* bytes) {
  const absl::Status status = ParseSize(text, bytes);
  if (!status.ok() || (*bytes > 0 && *bytes <= kDocumentBytesMax)) return status;
  return absl::InvalidArgumentError("write bytes from 1 to 1T, as in 1000000, 64M or 1G");
}

absl::Status ReadSeparator(const std::string& text, std::string* separator) {
  std::string error;
  if (!absl::CUnescape(text, separator, &error) || separator->empty()) {
    return absl::InvalidArgumentError(
        "write a text; \\n is a line's end, \\t a tab and \\\\ a backslash");
  }
  return absl::OkStatus();
}

absl::Status FinishPrepare(PrepareFlags* flags) {
  if (flags->options.input.patterns.empty()) {
    return absl::InvalidArgumentError(
        "no input; name text or JSON lines files, or a pattern: `convene data prepare --tokenizer "
        "PATH --output a.bin 'texts/*.jsonl'`");
  }
  if (flags->output.empty()) {
    return absl::InvalidArgumentError("--output is missing: the token file to make");
  }
  const std::string& through = flags->options.input.through;
  if (!through.empty() && !absl::StrContains(through, "{}")) {
    return absl::InvalidArgumentError(
        "--through has no {}, where the file's path is to stand: write --through 'unzip -p {}'");
  }
  if (flags->no_eod && flags->append_eod) {
    return absl::InvalidArgumentError("--append-eod and --no-eod exclude each other");
  }
  if (flags->options.compact_vocabulary && !flags->vocabulary_of.empty()) {
    return absl::InvalidArgumentError(
        "--compact-vocabulary makes a vocabulary, and --vocabulary-of takes one that is there: "
        "give one of them");
  }
  flags->options.append_end_of_document = !flags->no_eod;
  return absl::OkStatus();
}

void AddInputFlags(FlagReader* reader, worker::InputOptions* input) {
  reader->Group("Input");
  reader->Choice<InputFormat>(
      "format", &input->format,
      {{"auto", InputFormat::kAuto},
       {"text", InputFormat::kText},
       {"jsonl", InputFormat::kJsonLines}},
      "text, or jsonl: a JSON object on each line. auto: jsonl for names in .jsonl, "
      ".jsonlines, .ndjson or .json, and for files whose first line is an object with the field "
      "(default auto). Files may be packed by gzip or zstd, whatever their names are");
  reader->Option("field", &input->field,
                 "the text's key in each JSON line; dots lead into objects: meta.text (default "
                 "text)",
                 {.value = "KEY"});
  reader->Custom(
      "document-separator",
      [input](const std::string& text) { return ReadSeparator(text, &input->document_separator); },
      "of text files: a document ends at this text, such as '<|endoftext|>' or '\\n\\n' (default: "
      "one file is one document)",
      {.value = "TEXT"});
  reader->Custom(
      "max-document-bytes",
      [input](const std::string& text) {
        return ReadDocumentSize(text, &input->max_document_bytes);
      },
      "a longer JSON line is a broken line (default 32M). More takes more memory: about ten times "
      "this",
      {.value = "SIZE"});
  reader->Option("through", &input->through,
                 "a command of the shell that writes what a file holds: {} is the file, and its "
                 "output JSON lines, or with --format text a text: 'unzip -p {}'",
                 {.value = "COMMAND"});
  reader->Option("python", &input->python,
                 "the Python that reads Parquet files, by pyarrow: their rows are JSON lines "
                 "(default python3)",
                 {.value = "PATH"});
  reader->Option("max-bad-lines", &input->max_bad_lines,
                 "leave out up to so many broken JSON lines, and say how many; one more ends the "
                 "command (default 0)",
                 {.value = "N", .least = 0});
}

}  // namespace

void AddFlags(FlagReader* reader, PrepareFlags* flags) {
  worker::PrepareOptions& options = flags->options;
  reader->Words("INPUT...", &options.input.patterns);
  reader->Option(
      "tokenizer", &flags->tokenizer,
      absl::StrCat(kTokenizerHelp, " (default byte; with --vocabulary-of the one that FILE names)"),
      {.value = "PATH"});
  reader->Option("output", &flags->output,
                 "the token file to make; give it to convene-train's --data", {.value = "FILE"});
  reader->Option("threads", &options.threads,
                 "threads that make tokens; the file is the same with any number (default: one for "
                 "each CPU)",
                 {.value = "N", .least = 1, .most = 1024});
  AddInputFlags(reader, &options.input);
  reader->Group("A smaller vocabulary");
  reader->Switch(
      "compact-vocabulary", &options.compact_vocabulary,
      "cut the vocabulary to the tokens that the input uses, and number them without "
      "gaps. The file keeps the original ids: `show` decodes, and `convert` writes them. "
      "Tokens of single bytes stay, so that any text has ids");
  reader->Option("vocabulary-of", &flags->vocabulary_of,
                 "take the compact vocabulary of this token file, as for a validation set. A token "
                 "that it lacks becomes the tokens of its bytes",
                 {.value = "FILE"});
  reader->Group("Documents");
  reader->Switch(
      "append-eod", &flags->append_eod,
      "end each document with the tokenizer's token for that (the default, written out)");
  reader->Switch("no-eod", &flags->no_eod,
                 "end documents with no token of their own. A chat template's own ends stay, and a "
                 "completion behind its prompt always ends with the tokenizer's token");
  reader->Switch("special-tokens", &options.add_special_tokens,
                 "put the tokens around each document that the tokenizer puts around a text, such "
                 "as a BOS");
  reader->Switch("dedupe", &options.dedupe,
                 "leave out documents whose text was there before, byte for byte (128-bit hashes: "
                 "20 to 60 bytes of memory for each document)");
  reader->Group("Instruction data");
  reader->Option("chat-template", &flags->chat_template,
                 "each line is a conversation (messages, or prompt and completion), written out by "
                 "this template: a format's name, such as chatml or llama3, a .jinja file, a "
                 "model's folder, or auto for the tokenizer's. The answers alone count in the loss",
                 {.value = "NAME|PATH"});
  reader->Choice<TrainOn>(
      "train-on", &flags->train_on,
      {{"answers", TrainOn::kAnswers}, {"last", TrainOn::kLast}, {"all", TrainOn::kAll}},
      "what counts in the loss: all answers with the tokens that end them, the last answer, or "
      "everything (default answers)");
  reader->Option("chat-date", &flags->chat_date,
                 "today's date for a template that asks for it, the same on every day",
                 {.value = "YYYY-MM-DD"});
  reader->Group("To go on after a kill");
  reader->Option("journal-interval", &options.journal_interval,
                 "how often FILE.journal is written. After a kill the same command goes on from "
                 "the last one (default 5)",
                 {.value = "SECONDS"});
  reader->Check([flags] { return FinishPrepare(flags); });
}

void AddFlags(FlagReader* reader, ShowFlags* flags) {
  reader->Word("FILE", &flags->file);
  reader->Option("tokenizer", &flags->tokenizer,
                 "the tokenizer that decodes the sample (default: the path that the file names)",
                 {.value = "PATH"});
  reader->Option("sample", &flags->sample, "the document to show, from 0 (default 0)",
                 {.value = "I", .least = 0});
  reader->Option(
      "format", &flags->format,
      "text: what the file is, and the sample decoded; ids: nothing but ids, with spaces "
      "between (default text)",
      {.value = "FORMAT", .choices = {"text", "ids"}});
  reader->Option(
      "first", &flags->first,
      "how many tokens to show (default: 256 as text, all as ids); ids begin at the file's first "
      "token, unless --sample is given",
      {.value = "N", .least = 1});
  reader->Check([flags]() -> absl::Status {
    if (!flags->file.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("name a token file: `convene data show a.bin`");
  });
}

void AddFlags(FlagReader* reader, VerifyFlags* flags) {
  reader->Words("FILE...", &flags->files);
  reader->Check([flags]() -> absl::Status {
    if (!flags->files.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("name token files: `convene data verify a.bin b.bin`");
  });
}

void AddFlags(FlagReader* reader, BlendFlags* flags) {
  reader->Words("FILE[:WEIGHT],...", &flags->specs);
  reader->Check([flags]() -> absl::Status {
    if (!flags->specs.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "name token files with their weights: `convene data blend a.bin:0.7,b.bin:0.3`");
  });
}

void AddFlags(FlagReader* reader, ConvertFlags* flags) {
  const auto words = std::make_shared<std::vector<std::string>>();
  reader->Words("INPUT OUTPUT", words.get());
  reader->Choice<std::optional<TokenFormat>>("to", &flags->to,
                                             {{"convene", TokenFormat::kConvene},
                                              {"megatron", TokenFormat::kMegatron},
                                              {"llmc", TokenFormat::kLlmc},
                                              {"nanotron", TokenFormat::kNanotron}},
                                             "the format of OUTPUT");
  reader->Switch("drop-counted", &flags->drop_counted,
                 "write instruction data as if all tokens counted in the loss: megatron and llmc "
                 "cannot say which do");
  reader->Check([flags, words]() -> absl::Status {
    if (words->size() != 2 || !flags->to.has_value()) {
      return absl::InvalidArgumentError(
          "name two files and a format: `convene data convert a.bin b --to megatron`");
    }
    flags->input = (*words)[0];
    flags->output = (*words)[1];
    return absl::OkStatus();
  });
}

void AddFlags(FlagReader* reader, CacheFlags* flags) {
  reader->Option("dir", &flags->directory,
                 "the folder of token files, as convene-train's --token-cache-dir (default "
                 "$XDG_CACHE_HOME/convene, ~/.cache/convene)",
                 {.value = "DIR", .is_directory = true});
  reader->Switch("prune", &flags->prune,
                 "remove what the list shows as surplus. Without this flag nothing is removed");
  reader->Custom("unused-days",
                 [flags](const std::string& text) -> absl::Status {
                   double days = 0;
                   if (!ParseValue(text, &days).ok() || days < 0) {
                     return absl::InvalidArgumentError("write days, such as 7 or 0.5");
                   }
                   flags->bounds.unused_max = absl::Hours(24) * days;
                   return absl::OkStatus();
                 },
                 "surplus: a file that nobody used for longer (default 30)", {.value = "DAYS"});
  reader->Custom(
      "max-bytes",
      [flags](const std::string& text) {
        return ParseSize(text, &flags->bounds.bytes_max.emplace());
      },
      "surplus: the files that nobody used for the longest time, while all together are larger "
      "(default a quarter of the disk)",
      {.value = "SIZE"});
  reader->Switch("all", &flags->all, "surplus: every file that is not in use");
  reader->Check([flags]() -> absl::Status {
    if (flags->all) flags->bounds = {.unused_max = -absl::InfiniteDuration(), .bytes_max = 0};
    if (flags->directory.empty()) {
      flags->directory = worker::DefaultTokenCacheDirectory(ProcessEnvironment());
    }
    if (!flags->directory.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "neither XDG_CACHE_HOME nor HOME says where the cache is; give its folder by --dir");
  });
}

}  // namespace convene::launcher
