// The token formats of other programs, as they are read (foreign_file.h) and written (convert.h).
// All numbers are little endian.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/store/token_source.h"

namespace convene::worker {

// Megatron-LM's indexed dataset: tokens in x.bin, their cut into sequences and documents in x.idx.
//
// The index, unaligned (megatron/core/datasets/indexed_dataset.py): 9 bytes "MMIDIDX\0\0"; u64
// version 1; u8 type of a token (1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 6 and 7 floats, 8
// uint16); u64 sequences S; u64 D, one more than the documents; i32 x S lengths in tokens; i64 x S
// byte offsets in the .bin; i64 x D first sequence of each document, then S; where there are modes
// (images), u8 x S more.
constexpr char kMegatronMagic[] = "MMIDIDX\0";  // with the string's own end, nine bytes
// x.bin and x.idx of `path`, which is one of them or x.
struct MegatronPaths {
  std::string tokens, index;
};
MegatronPaths MegatronPathsOf(const std::string& path);
// Reads the index once. DataLoss: the index is damaged, or says something else than the .bin holds.
// FailedPrecondition: another version. InvalidArgument: tokens that are floats. NotFound: one of
// the two is not there (named).
absl::StatusOr<std::unique_ptr<TokenSource>> OpenMegatron(const std::string& path);

// llm.c's tokens: 256 int32 (magic, version, number of tokens, zeros), then the tokens. GPT-2's
// have magic 20240520, version 1 and uint16; Llama 3's 20240801, version 7 and uint32
// (dev/data/data_common.py, llmc/dataloader.h). Documents are not known: one token that the reader
// does not know stands before each.
constexpr int32_t kLlmcGpt2Magic = 20240520;
constexpr int32_t kLlmcLlama3Magic = 20240801;
constexpr int32_t kLlmcGpt2Version = 1;
constexpr int32_t kLlmcLlama3Version = 7;
constexpr int64_t kLlmcHeaderBytes = 1024;
// Whether a file that begins with these bytes is one of llm.c's token files.
bool IsLlmc(absl::string_view begin);
// DataLoss: not that header, or another length than it says. FailedPrecondition: another version.
absl::StatusOr<std::unique_ptr<TokenSource>> OpenLlmc(const std::string& path);

// nanotron's tokens, as datatrove writes them (datatrove/pipeline/tokens/tokenizer.py):
//
//   x.ds            the tokens, two or four bytes each, unsigned
//   x.ds.index      u64 for each document: the token at which it ends; may be absent
//   x.ds.metadata   text: "TOKENIZER|BYTES A TOKEN", the number of tokens, the same for people; an
//                   old one has no "|BYTES" and means two; may be absent
//   x.ds.loss       a byte for each token: 0 where it does not count in the loss; may be absent
std::string NanotronIndexPath(const std::string& path);
std::string NanotronMetadataPath(const std::string& path);
std::string NanotronLossPath(const std::string& path);
// DataLoss: the files contradict each other. InvalidArgument: neither the metadata nor the index
// says how wide a token is, or the metadata says another width than 2 and 4, or no number.
absl::StatusOr<std::unique_ptr<TokenSource>> OpenNanotron(const std::string& path);

}  // namespace convene::worker
