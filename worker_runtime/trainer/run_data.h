// The input of a run: its tokenizer, and the samples that it trains on.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/checkpoint/kept_files.h"
#include "worker_runtime/checkpoint/state_source.h"
#include "worker_runtime/contract/contract.h"
#include "worker_runtime/data/dataset.h"
#include "worker_runtime/data/packing.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// Loads the tokenizer and fills in the options that follow from it (ApplyTokenIds), and the tokens
// of sample prompts. Where nobody names a tokenizer and all data are token files, these options
// follow from the files: they say what their ids are. Errors: LoadTokenizer's, ApplyTokenIds',
// ParseDataPaths', OpenTokenSource's; InvalidArgument for a sample prompt: another tokenizer made
// the files, a prompt without tokens, or too few learned positions for a prompt and its text.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadRunTokenizer(TrainOptions* options);

// PURE. "1,200 documents in 310 samples, 39,000 tokens, 12 cut to a sample's length".
std::string PackingText(const PackingCounts& counts);

// PURE. "2 files with 1,030 tokens, too few for samples of 1,024: a.ds (1,025 tokens), b.ds (5
// tokens)", of Dataset::left_out(). REQUIRES: there are such files.
std::string LeftOutText(const Dataset& dataset);

struct ValidationSet {
  std::string name;
  Dataset dataset;  // all of it is held out
};

struct RunData {
  Dataset training;                            // with its own held-out part
  std::vector<ValidationSet> validation_sets;  // as TrainOptions::validation_data
  TokenizerMark tokenizer;                     // MarkOfTokenizer's
  std::vector<NamedFile> tokenizer_files;      // FilesOfTokenizer's; of rank 0 of a run that saves
};

// Makes token files of texts and messages that are not prepared yet, once a node. The rank with
// local rank 0 prints how far the node has come; `tell` is called with that ("31.4%") on each of
// its ranks, now and then. Rank 0 prints how documents were packed, and which files are too short
// and left out.
// FailedPrecondition: a file was made by another tokenizer than the named one, or two files of the
// training or held-out data by two. InvalidArgument: packed documents whose end occurs nowhere,
// shares within a validation set. ChatDocuments's, OpenData's (data/prepare/open_data.h),
// Dataset::Open's and FilesOfTokenizer's errors; those of a validation set have its name.
absl::StatusOr<RunData> OpenRunData(const TrainOptions& options, const Tokenizer& tokenizer,
                                    const Contract& contract,
                                    const std::function<void(const std::string& done)>& tell);

// PURE. The model's input, for checkpoints: packed documents are other samples than plain rows.
std::string DataIdentity(const TrainOptions& options, const Dataset& training);

}  // namespace convene::worker
