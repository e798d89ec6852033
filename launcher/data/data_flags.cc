#include "launcher/data/data_flags.h"

#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace convene::launcher {
namespace {

using worker::InputFormat;

constexpr char kTokenizerHelp[] =
    "a tokenizer.json, tekken.json, tiktoken or SentencePiece file, or a model's folder; byte: "
    "each "
    "byte is a token";

absl::Status ReadCount(const std::string& text, int64_t least, int64_t* count) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < least) {
    return absl::InvalidArgumentError(absl::StrCat("write a whole number from ", least, " on"));
  }
  *count = value;
  return absl::OkStatus();
}

void AddCount(FlagReader* reader, const std::string& name, int64_t least,
              std::optional<int64_t>* target, const std::string& help, const std::string& value) {
  reader->Custom(name,
                 [least, target](const std::string& text) {
                   int64_t count = 0;
                   const absl::Status status = ReadCount(text, least, &count);
                   if (status.ok()) *target = count;
                   return status;
                 },
                 help, {.value = value});
}

// "64M", "1G", "1000".
absl::Status ReadSize(const std::string& text, int64_t* bytes) {
  const size_t unit_at = text.find_first_not_of("0123456789");
  const std::string unit = unit_at == std::string::npos ? "" : text.substr(unit_at);
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  int64_t value = 0;
  if (shift < 0 || !absl::SimpleAtoi(text.substr(0, unit_at), &value) || value < 1 ||
      value > (int64_t{1} << 40) >> shift) {
    return absl::InvalidArgumentError("write bytes, as in 1000000, 64M or 1G");
  }
  *bytes = value << shift;
  return absl::OkStatus();
}

absl::Status ReadSeparator(const std::string& text, std::string* separator) {
  std::string error;
  if (!absl::CUnescape(text, separator, &error) || separator->empty()) {
    return absl::InvalidArgumentError(
        "write a text; \\n is a line's end, \\t a tab and \\\\ a backslash");
  }
  return absl::OkStatus();
}

absl::Status ReadFormat(const std::string& text, InputFormat* format) {
  *format = text == "text"    ? InputFormat::kText
            : text == "jsonl" ? InputFormat::kJsonLines
                              : InputFormat::kAuto;
  return absl::OkStatus();
}

absl::Status ReadTrainOn(const std::string& text, worker::TrainOn* train_on) {
  *train_on = text == "all"    ? worker::TrainOn::kAll
              : text == "last" ? worker::TrainOn::kLast
                               : worker::TrainOn::kAnswers;
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
  reader->Custom(
      "format", [input](const std::string& text) { return ReadFormat(text, &input->format); },
      "text, or jsonl: a JSON object on each line. auto: jsonl for names in .jsonl, .ndjson or "
      ".json, and for files whose first line is an object with the field (default auto). Files may "
      "be packed by gzip or zstd, whatever their names are",
      {.value = "FORMAT", .choices = {"auto", "text", "jsonl"}});
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
      [input](const std::string& text) { return ReadSize(text, &input->max_document_bytes); },
      "a longer JSON line is a broken line (default 32M). More takes more memory: about ten times "
      "this",
      {.value = "SIZE"});
  reader->Custom(
      "max-bad-lines",
      [input](const std::string& text) { return ReadCount(text, 0, &input->max_bad_lines); },
      "leave out up to so many broken JSON lines, and say how many; one more ends the command "
      "(default 0)",
      {.value = "N"});
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
                 "this template: a format's name, such as chatml or llama3, a .jinja file, or a "
                 "model's folder. The answers alone count in the loss",
                 {.value = "NAME|PATH"});
  reader->Custom(
      "train-on", [flags](const std::string& text) { return ReadTrainOn(text, &flags->train_on); },
      "what counts in the loss: all answers with the tokens that end them, the last answer, or "
      "everything (default answers)",
      {.value = "PART", .choices = {"answers", "last", "all"}});
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
                 "decodes the sample (default: the path that the file names)", {.value = "PATH"});
  AddCount(reader, "sample", 0, &flags->sample, "the document to show, from 0 (default 0)", "I");
  reader->Option(
      "format", &flags->format,
      "text: what the file is, and the sample decoded; ids: nothing but ids, with spaces "
      "between (default text)",
      {.value = "FORMAT", .choices = {"text", "ids"}});
  AddCount(
      reader, "first", 1, &flags->first,
      "so many tokens (default: 256 as text, all as ids); ids begin at the file's first token, "
      "unless --sample is given",
      "N");
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
  reader->Option("to", &flags->to, "the format of OUTPUT",
                 {.value = "FORMAT", .choices = {"convene", "megatron", "llmc", "nanotron"}});
  reader->Switch("drop-counted", &flags->drop_counted,
                 "write instruction data as if all tokens counted in the loss: megatron and llmc "
                 "cannot say which do");
  reader->Check([flags, words]() -> absl::Status {
    if (words->size() != 2 || flags->to.empty()) {
      return absl::InvalidArgumentError(
          "name two files and a format: `convene data convert a.bin b --to megatron`");
    }
    flags->input = (*words)[0];
    flags->output = (*words)[1];
    return absl::OkStatus();
  });
}

}  // namespace convene::launcher
