#include "worker_runtime/trainer/run_data.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/base/clock.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/data/blend.h"
#include "worker_runtime/data/pair_source.h"
#include "worker_runtime/data/prepare/chat_documents.h"
#include "worker_runtime/data/prepare/open_data.h"
#include "worker_runtime/data/prepare/options.h"
#include "worker_runtime/data/prepare/progress_output.h"
#include "worker_runtime/data/prepare/sources.h"
#include "worker_runtime/data/store/token_source.h"
#include "worker_runtime/inference/prompts.h"
#include "worker_runtime/options/ramp_options.h"
#include "worker_runtime/options/tokenizer_options.h"
#include "worker_runtime/report/number_text.h"
#include "worker_runtime/report/progress.h"
#include "worker_runtime/tokenizer/load_tokenizer.h"
#include "worker_runtime/trainer/run_tokenizer.h"

namespace convene::worker {
namespace {

constexpr char kByteTokenizer[] = "byte";
constexpr absl::Duration kTellInterval = absl::Seconds(10);
constexpr size_t kNamedFiles = 5;

std::string NameOf(const std::string& path, const std::string& kind) {
  return path == kind || kind.empty() ? path : absl::StrCat(path, " (", kind, ")");
}

// The ids of token files as these say, where all data are such files.
absl::StatusOr<std::optional<TokenIds>> IdsOfFiles(const std::vector<std::string>& data) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<WeightedPath> paths, ParseDataPaths(data));
  TokenIds ids;
  for (const WeightedPath& path : paths) {
    std::vector<std::string> names = {path.path};
    if (!TokenFormatOf(path.path).has_value()) {
      const auto found = ExpandPattern(path.path);
      // OpenData says so where data are read; a memory plan needs none.
      if (!found.ok()) return std::nullopt;
      names = *found;
    }
    for (const std::string& name : names) {
      if (!TokenFormatOf(name).has_value()) return std::nullopt;
      CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<TokenSource> file, OpenTokenSource(name));
      if (ids.made_by.empty()) ids.made_by = file->path();
      ids.vocabulary_size = std::max(ids.vocabulary_size, file->vocabulary_size());
      ids.document_vocabulary_size =
          std::max(ids.document_vocabulary_size, file->document_vocabulary_size());
      ids.fingerprint = file->tokenizer().fingerprint;
      if (!ids.end_of_document.has_value()) ids.end_of_document = file->tokenizer().end_of_document;
    }
  }
  return ids;
}

absl::Status EncodeSamples(const Tokenizer& tokenizer, const TokenIds& ids, TrainOptions* options) {
  SampleOptions& samples = options->samples;
  if (samples.every == 0) return absl::OkStatus();
  if (ids.fingerprint != tokenizer.fingerprint()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sample_prompt needs the tokenizer of the data, and ", ids.made_by,
        " has tokens of another one than bytes: name it (--tokenizer PATH), or leave sample_every "
        "out"));
  }
  CONVENE_ASSIGN_OR_RETURN(PromptReader reader, PromptReader::Make(tokenizer, "", ""));
  for (const std::string& prompt : samples.prompts) {
    CONVENE_ASSIGN_OR_RETURN(samples.ids.emplace_back(), reader.Text(prompt));
    const size_t tokens = samples.ids.back().size();
    const std::string text = Utf8(prompt, 60);
    if (tokens == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("sample_prompt \"", text,
                       "\" has no token: the model goes on with at least one; write another text"));
    }
    const size_t positions = options->model.positions;
    if (positions == 0 || tokens + samples.tokens <= positions) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "sample_prompt \"", text, "\" has ", tokens, " tokens, and with sample_tokens ",
        samples.tokens, " it is longer than the ", positions,
        " learned positions of the model: choose fewer sample_tokens, or a shorter text"));
  }
  return absl::OkStatus();
}

PrepareProgress ProgressOf(const Contract& contract,
                           const std::function<void(const std::string& done)>& tell) {
  std::shared_ptr<ProgressOutput> output;
  if (contract.local_rank == 0) {
    output = std::make_shared<ProgressOutput>(stdout, contract.terminal, "tokens ");
  }
  return [output, &tell, last = Clock::Real().Now()](int64_t done, int64_t total) mutable {
    const MonotonicTime now = Clock::Real().Now();
    if (now - last >= kTellInterval) {
      last = now;
      tell(absl::StrFormat("%.1f%%", 100 * static_cast<double>(done) / static_cast<double>(total)));
    }
    if (output == nullptr) return;
    if (done < total) return output->Show(done, total);
    output->End();
    std::fprintf(stdout, "tokens %s\n", ProgressBar(done, total).c_str());
    std::fflush(stdout);
  };
}

absl::Status CheckTokenizer(const TrainOptions& options, const Tokenizer& tokenizer,
                            const TokenSource& source) {
  const TokenizerIdentity& made_by = source.tokenizer();
  if (options.tokenizer_path == kByteTokenizer || made_by.fingerprint == 0 ||
      made_by.fingerprint == tokenizer.fingerprint()) {
    return absl::OkStatus();
  }
  if (made_by.compact.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "data: ", source.path(), " has a compact vocabulary of ", source.vocabulary_size(),
        " tokens of the tokenizer ", NameOf(made_by.path, made_by.kind),
        ", and --tokenizer stands for all tokens of one: leave --tokenizer out, the file says what "
        "its ids are"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "data: the ids of ", source.path(), " were made by the tokenizer ",
      NameOf(made_by.path, made_by.kind), ", which is not the same as --tokenizer ",
      NameOf(options.tokenizer_path, tokenizer.kind()),
      ": leave --tokenizer out, name the one that made them, or prepare the data anew"));
}

// The token that ends documents stands behind the last one too.
bool IsOneDocument(int32_t end_of_document, const std::vector<OpenedData>& opened) {
  const TokenSource& first = *opened[0].tokens;
  return opened.size() == 1 && first.knows_documents() && first.document_count() == 1 &&
         first.tokenizer().end_of_document == end_of_document;
}

absl::Status CheckDocumentsEnd(const TrainOptions& options, const Dataset& dataset,
                               const std::vector<OpenedData>& opened) {
  if (!options.packed_documents || dataset.has_documents()) return absl::OkStatus();
  const auto token = static_cast<int32_t>(options.eod_token.value_or(0));
  if (!IsOneDocument(token, opened) && dataset.Contains(token)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "packed_documents: token ", token,
      ", which ends a document, occurs nowhere within the data: all of it would be one document. "
      "Give several files, or --eod-token with the token that ends a document in your data (of "
      "bytes 10: each line is one)"));
}

absl::StatusOr<PrepareOptions> PrepareOptionsOf(const TrainOptions& options,
                                                const Tokenizer& tokenizer, Side side) {
  PrepareOptions prepare = {.tokenizer = &tokenizer, .tokenizer_path = options.tokenizer_path};
  // Where documents must be told apart, ApplyTokenIds has refused a tokenizer without such a token.
  prepare.append_end_of_document = tokenizer.end_of_document().has_value();
  prepare.input.field = options.text_field;
  prepare.input.max_bad_lines = options.max_bad_lines;
  if (!options.chat_template.empty()) {
    CONVENE_ASSIGN_OR_RETURN(
        prepare.format, ChatDocuments(options.chat_template,
                                      {.train_on = options.train_on,
                                       .side = side,
                                       .date = options.chat_date,
                                       .append_end_of_document = prepare.append_end_of_document},
                                      &tokenizer));
  }
  return prepare;
}

TokenCache CacheOf(const TrainOptions& options) {
  TokenCache cache = {.directory = options.token_cache_dir};
  cache.bounds = {.unused_max = options.token_cache_days > 0
                                    ? absl::Hours(24) * options.token_cache_days
                                    : absl::InfiniteDuration(),
                  .bytes_max = options.token_cache_bytes};
  return cache;
}

DatasetOptions DatasetOptionsOf(const TrainOptions& options, const std::vector<OpenedData>& opened,
                                double held_out) {
  // Data that are held out whole stay in their own order.
  const bool is_megatron = options.data_order == DataOrder::kMegatron && held_out < 1.0;
  DatasetOptions dataset_options = {
      .sequence_length = static_cast<int>(options.sequence_length),
      .validation_fraction = held_out,
      .order = is_megatron ? SampleOrder::kMegatron : SampleOrder::kShuffled,
      .vocabulary_size = options.model.vocabulary_size,
      .seed = options.seed,
      .run_samples = SamplesAfter(RampOf(options), options.steps)};
  for (const OpenedData& data : opened) {
    dataset_options.sources.push_back({.tokens = data.tokens, .weight = data.weight});
  }
  if (!options.chat_template.empty() && options.packed_documents) {
    dataset_options.packing = PackingOptions{.drop_too_long = options.too_long == TooLong::kDrop};
    dataset_options.pairs = options.preference_beta > 0;
  }
  return dataset_options;
}

}  // namespace

std::string PackingText(const PackingCounts& counts) {
  std::string text =
      absl::StrCat(WithThousands(counts.documents), " documents in ", WithThousands(counts.rows),
                   " samples, ", WithThousands(counts.tokens), " tokens");
  const auto add = [&](int64_t count, const char* what) {
    if (count > 0) absl::StrAppend(&text, ", ", WithThousands(count), " ", what);
  };
  add(counts.cut, "cut to a sample's length");
  add(counts.dropped, "too long and left out");
  add(counts.too_short, "too short and left out");
  add(counts.idle, "of pairs that teach nothing, and left out");
  return text;
}

std::string LeftOutText(const Dataset& dataset) {
  int64_t tokens = 0;
  std::vector<std::string> files;
  for (const auto& source : dataset.left_out()) {
    tokens += source->token_count();
    files.push_back(
        absl::StrCat(source->path(), " (", WithThousands(source->token_count()), " tokens)"));
  }
  return absl::StrCat(WithThousands(files.size()), files.size() == 1 ? " file" : " files", " with ",
                      WithThousands(tokens), " tokens, too few for samples of ",
                      WithThousands(dataset.sequence_length()),
                      dataset.validation_samples() > 0 && dataset.training_samples() > 0
                          ? " and a held-out part"
                          : "",
                      ": ", JoinCapped(files, kNamedFiles));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadRunTokenizer(TrainOptions* options) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> loaded = LoadTokenizer(options->tokenizer_path);
  if (!loaded.ok()) return Annotate(loaded.status(), "tokenizer");
  std::unique_ptr<Tokenizer> tokenizer = *std::move(loaded);
  std::optional<TokenIds> ids;
  if (options->tokenizer_path == kByteTokenizer && !options->data.empty()) {
    CONVENE_ASSIGN_OR_RETURN(ids, IdsOfFiles(options->data));
  }
  if (!ids.has_value()) {
    ids = {.made_by =
               absl::StrCat("the tokenizer ", NameOf(options->tokenizer_path, tokenizer->kind())),
           .vocabulary_size = tokenizer->vocabulary_size(),
           .document_vocabulary_size = tokenizer->document_vocabulary_size(),
           .end_of_document = tokenizer->end_of_document(),
           .fingerprint = tokenizer->fingerprint()};
  }
  CONVENE_RETURN_IF_ERROR(ApplyTokenIds(*ids, options));
  CONVENE_RETURN_IF_ERROR(EncodeSamples(*tokenizer, *ids, options));
  return tokenizer;
}

absl::StatusOr<RunData> OpenRunData(const TrainOptions& options, const Tokenizer& tokenizer,
                                    const Contract& contract,
                                    const std::function<void(const std::string& done)>& tell) {
  const bool has_pairs = options.preference_beta > 0;
  CONVENE_ASSIGN_OR_RETURN(
      const PrepareOptions prepare,
      PrepareOptionsOf(options, tokenizer, has_pairs ? Side::kChosen : Side::kOnly));
  std::vector<const TokenSource*> sources;
  const auto open = [&](const std::vector<std::string>& data,
                        double held_out) -> absl::StatusOr<Dataset> {
    CONVENE_ASSIGN_OR_RETURN(const std::vector<WeightedPath> paths, ParseDataPaths(data));
    if (held_out == 1.0 && paths[0].weight.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(paths[0].path,
                       " has a share, but of held-out data each sample counts once: "
                       "leave the shares out"));
    }
    const auto read = [&](const PrepareOptions& how) {
      return OpenData(paths, how, CacheOf(options), ProgressOf(contract, tell));
    };
    CONVENE_ASSIGN_OR_RETURN(std::vector<OpenedData> opened, read(prepare));
    if (has_pairs) {
      CONVENE_ASSIGN_OR_RETURN(const PrepareOptions rejected,
                               PrepareOptionsOf(options, tokenizer, Side::kRejected));
      CONVENE_ASSIGN_OR_RETURN(const std::vector<OpenedData> others, read(rejected));
      for (size_t i = 0; i < opened.size(); ++i) {
        CONVENE_ASSIGN_OR_RETURN(opened[i].tokens, JoinPairs(opened[i].tokens, others[i].tokens));
      }
    }
    for (const OpenedData& source : opened) {
      CONVENE_RETURN_IF_ERROR(CheckTokenizer(options, tokenizer, *source.tokens));
      sources.push_back(source.tokens.get());
    }
    CONVENE_RETURN_IF_ERROR(CheckSameVocabulary(sources));
    CONVENE_ASSIGN_OR_RETURN(Dataset dataset,
                             Dataset::Open(DatasetOptionsOf(options, opened, held_out)));
    if (contract.rank == 0 && !dataset.left_out().empty()) {
      std::printf("left out     %s\n", LeftOutText(dataset).c_str());
      std::fflush(stdout);
    }
    CONVENE_RETURN_IF_ERROR(CheckDocumentsEnd(options, dataset, opened));
    return dataset;
  };
  CONVENE_ASSIGN_OR_RETURN(Dataset training, open(options.data, options.validation_fraction));
  if (contract.rank == 0 && training.packing_counts().has_value()) {
    std::printf("packing      %s\n", PackingText(*training.packing_counts()).c_str());
    std::fflush(stdout);
  }
  TokenizerMark mark = MarkOfTokenizer(options, tokenizer, training.tokenizer());
  RunData data = {.training = std::move(training),
                  .validation_sets = {},
                  .tokenizer = std::move(mark),
                  .tokenizer_files = {}};
  if (contract.rank == 0 && !options.checkpoint_dir.empty()) {
    CONVENE_ASSIGN_OR_RETURN(data.tokenizer_files,
                             FilesOfTokenizer(options, tokenizer, data.training.tokenizer()));
  }
  for (const auto& [name, texts] : options.validation_data) {
    absl::StatusOr<Dataset> dataset = open(texts, /*held_out=*/1.0);
    if (!dataset.ok()) return Annotate(dataset.status(), absl::StrCat("validation_data ", name));
    data.validation_sets.push_back({name, *std::move(dataset)});
  }
  return data;
}

std::string DataIdentity(const TrainOptions& options, const Dataset& training) {
  std::string identity = training.Identity();
  // Checkpoints from before there were other tokenizers do not name the byte's.
  const TokenizerIdentity& tokenizer = training.tokenizer();
  if (tokenizer.fingerprint != 0 && tokenizer.kind != "byte") {
    absl::StrAppend(&identity, " of the tokenizer ", tokenizer.kind, " ",
                    absl::Hex(tokenizer.fingerprint, absl::kZeroPad16));
  }
  if (options.data_order == DataOrder::kMegatron) absl::StrAppend(&identity, ", Megatron's order");
  if (!options.packed_documents) return identity;
  if (options.preference_beta > 0) return absl::StrCat(identity, ", pairs of answers");
  if (training.has_documents()) return absl::StrCat(identity, ", packed whole documents");
  return absl::StrCat(identity, ", packed documents that end with token ",
                      options.eod_token.value_or(0));
}

}  // namespace convene::worker
