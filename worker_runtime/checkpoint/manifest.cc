#include "worker_runtime/checkpoint/manifest.h"

#include <xxhash.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

constexpr int kVersion = 9;
// The first version that names the training data.
constexpr int kFirstVersionWithData = 2;
// The first version that counts updates and says how the data was cut into samples.
constexpr int kFirstVersionWithUpdates = 3;
// The first version that names the tensors' element types. Before it all were fp32, and where all
// are, the version before it is written: programs that know no other type read it too.
constexpr int kFirstVersionWithTypes = 4;
// The first version that names the optimizer. Before it all were AdamW, and where it is, a version
// before it is written.
constexpr int kFirstVersionWithOptimizer = 5;
constexpr char kFirstOptimizer[] = "adamw";
// The first version with a spike guard; without one a version before it is written.
constexpr int kFirstVersionWithSpikeGuard = 6;
// The first version that names the weights beside which adapters were trained.
constexpr int kFirstVersionWithBase = 7;
// It names the tokenizer and its files.
constexpr int kFirstVersionWithTokenizer = 8;
// It says what a run began with that was not to take whatever it found, and how long a text the
// model is made for.
constexpr int kFirstVersionWithBeginning = 9;
// "end " + 16 hexadecimal digits + newline.
constexpr size_t kEndLineBytes = 21;

std::string FirstWords(ManifestKind kind) {
  return kind == ManifestKind::kManifest ? "convene-checkpoint-manifest "
                                         : "convene-checkpoint-index ";
}

std::string EndLine(absl::string_view text_before) {
  const uint64_t checksum = XXH3_64bits(text_before.data(), text_before.size());
  return absl::StrCat("end ", absl::Hex(checksum, absl::kZeroPad16), "\n");
}

// Reads "keyword number number ... rest" lines. Read takes the next words of a line: a number that
// is not negative, a checksum, a list of as many numbers as it has room for, an element type, or
// the rest as a text.
class LineReader {
 public:
  explicit LineReader(absl::string_view text) : rest_(text) {}

  absl::Status Wrong(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat("line ", line_number_, ": ", what));
  }

  bool AtEnd() const { return rest_.empty(); }

  // Goes to the next line, which must begin with `keyword`.
  absl::Status Next(absl::string_view keyword) {
    ++line_number_;
    const size_t end = rest_.find('\n');
    if (end == absl::string_view::npos) return Wrong(absl::StrCat("ends before '", keyword, "'"));
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    if (absl::ConsumePrefix(&line_, keyword) && absl::ConsumePrefix(&line_, " ")) {
      return absl::OkStatus();
    }
    return Wrong(absl::StrCat("does not begin with '", keyword, " '"));
  }

  absl::Status Read(int64_t* value) {
    if (absl::SimpleAtoi(Word(), value) && *value >= 0) return absl::OkStatus();
    return Wrong("a number is missing, negative or too large");
  }
  absl::Status SignedNumber(int64_t* value) {
    return absl::SimpleAtoi(Word(), value) ? absl::OkStatus() : Wrong("a number is missing");
  }
  absl::Status Read(std::vector<int64_t>* values) {
    for (int64_t& value : *values) CONVENE_RETURN_IF_ERROR(Read(&value));
    return absl::OkStatus();
  }
  absl::Status Read(uint64_t* value) {
    return absl::SimpleHexAtoi(Word(), value) ? absl::OkStatus() : Wrong("no checksum");
  }
  absl::Status Read(DType* dtype) {
    const absl::string_view word = Word();
    for (const DType known : {DType::kFloat32, DType::kBFloat16}) {
      *dtype = known;
      if (word == DTypeName(known)) return absl::OkStatus();
    }
    return Wrong("an element type is neither fp32 nor bf16");
  }
  absl::Status Read(std::string* text) {
    return absl::CUnescape(line_, text) ? absl::OkStatus() : Wrong("wrong escape in a text");
  }
  // Next, then all of `values`.
  template <typename... Values>
  absl::Status Line(absl::string_view keyword, Values*... values) {
    absl::Status status = Next(keyword);
    if (status.ok()) (void)((status = Read(values)).ok() && ...);
    return status;
  }

 private:
  absl::string_view Word() {
    const absl::string_view word = line_.substr(0, line_.find(' '));
    line_.remove_prefix(std::min(word.size() + 1, line_.size()));
    return word;
  }

  absl::string_view rest_;
  absl::string_view line_;
  int line_number_ = 0;
};

bool IsNameInDirectory(absl::string_view name) {
  return !name.empty() && name != "." && name != ".." && !absl::StrContains(name, '/');
}

absl::Status DecodeTokenizer(LineReader* reader, Manifest* manifest) {
  TokenizerMark& mark = manifest->info.tokenizer;
  CONVENE_RETURN_IF_ERROR(reader->Line("tokenizer", &mark.fingerprint, &mark.path));
  CONVENE_RETURN_IF_ERROR(reader->Line("chat_template", &mark.chat_template));
  int64_t count = 0;
  CONVENE_RETURN_IF_ERROR(reader->Line("tokenizer_files", &count));
  for (int64_t i = 0; i < count; ++i) {
    KeptFile file;
    CONVENE_RETURN_IF_ERROR(
        reader->Line("tokenizer_file", &file.bytes, &file.checksum, &file.name));
    if (!absl::c_all_of(absl::StrSplit(file.name, '/'), IsNameInDirectory)) {
      return reader->Wrong("a tokenizer's file lies in the folder of the tokenizer");
    }
    manifest->tokenizer_files.push_back(std::move(file));
  }
  return absl::OkStatus();
}

absl::Status DecodeInfo(LineReader* reader, int64_t version, Manifest* manifest) {
  CheckpointInfo* const info = &manifest->info;
  int64_t world_size = 0, longest_text = 0;
  CONVENE_RETURN_IF_ERROR(reader->Line("step", &info->step));
  CONVENE_RETURN_IF_ERROR(reader->Line("samples_consumed", &info->samples_consumed));
  info->updates = info->step;
  if (version >= kFirstVersionWithUpdates) {
    CONVENE_RETURN_IF_ERROR(reader->Line("updates", &info->updates));
  }
  CONVENE_RETURN_IF_ERROR(reader->Next("seed"));
  CONVENE_RETURN_IF_ERROR(reader->SignedNumber(&info->seed));
  CONVENE_RETURN_IF_ERROR(reader->Line("world_size", &world_size));
  info->world_size = static_cast<int>(world_size);
  CONVENE_RETURN_IF_ERROR(reader->Line("model", &info->model));
  if (version >= kFirstVersionWithData) {
    CONVENE_RETURN_IF_ERROR(reader->Line("data", &info->data));
  }
  if (version >= kFirstVersionWithUpdates) {
    CONVENE_RETURN_IF_ERROR(reader->Line("samples", &info->samples));
  }
  if (version >= kFirstVersionWithOptimizer) {
    CONVENE_RETURN_IF_ERROR(reader->Line("optimizer", &info->optimizer));
  }
  if (version >= kFirstVersionWithSpikeGuard) {
    CONVENE_RETURN_IF_ERROR(reader->Line("spike_guard", &info->spike_guard));
  }
  if (version >= kFirstVersionWithBase) CONVENE_RETURN_IF_ERROR(reader->Line("base", &info->base));
  if (version >= kFirstVersionWithTokenizer) {
    CONVENE_RETURN_IF_ERROR(DecodeTokenizer(reader, manifest));
  }
  if (version >= kFirstVersionWithBeginning) {
    CONVENE_RETURN_IF_ERROR(reader->Line("longest_text", &longest_text));
    info->longest_text = static_cast<int>(longest_text);
    CONVENE_RETURN_IF_ERROR(reader->Line("began_with", &info->began_with));
  }
  return reader->Line("layout", &info->layout);
}

absl::Status DecodeFiles(LineReader* reader, std::vector<DataFile>* files) {
  int64_t count = 0;
  CONVENE_RETURN_IF_ERROR(reader->Line("files", &count));
  for (int64_t i = 0; i < count; ++i) {
    DataFile file;
    CONVENE_RETURN_IF_ERROR(reader->Line("file", &file.bytes, &file.name));
    if (!IsNameInDirectory(file.name)) {
      return reader->Wrong("a data file lies in the manifest's own directory");
    }
    files->push_back(std::move(file));
  }
  return absl::OkStatus();
}

struct Tensor {
  DType dtype = DType::kFloat32;
  std::string name;
  std::vector<int64_t> shape;
};

absl::Status DecodeTensors(LineReader* reader, int64_t version, std::vector<Tensor>* tensors) {
  int64_t count = 0;
  CONVENE_RETURN_IF_ERROR(reader->Line("tensors", &count));
  for (int64_t i = 0; i < count; ++i) {
    Tensor tensor;
    int64_t axes = 0;
    CONVENE_RETURN_IF_ERROR(reader->Next("tensor"));
    if (version >= kFirstVersionWithTypes) CONVENE_RETURN_IF_ERROR(reader->Read(&tensor.dtype));
    CONVENE_RETURN_IF_ERROR(reader->Read(&axes));
    if (axes < 1 || axes > kMaxTensorAxes) return reader->Wrong("impossible number of axes");
    tensor.shape.resize(axes);
    CONVENE_RETURN_IF_ERROR(reader->Read(&tensor.shape));
    CONVENE_RETURN_IF_ERROR(reader->Read(&tensor.name));
    tensors->push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

absl::Status DecodeChunk(LineReader* reader, const std::vector<Tensor>& tensors,
                         Manifest* manifest) {
  int64_t tensor = 0, file = 0;
  ChunkPlace place;
  TensorPiece piece;
  CONVENE_RETURN_IF_ERROR(reader->Line("chunk", &file, &place.offset_bytes, &place.checksum,
                                       &tensor, &piece.flat_begin, &piece.flat_count));
  if (tensor >= static_cast<int64_t>(tensors.size())) return reader->Wrong("no such tensor");
  if (file >= static_cast<int64_t>(manifest->files.size())) return reader->Wrong("no such file");
  place.file = static_cast<int>(file);
  place.dtype = tensors[tensor].dtype;
  piece.name = tensors[tensor].name;
  piece.global_shape = tensors[tensor].shape;
  for (std::vector<int64_t>* list : {&piece.local_box.offset, &piece.local_box.extent}) {
    list->resize(piece.global_shape.size());
    CONVENE_RETURN_IF_ERROR(reader->Read(list));
  }
  if (absl::Status valid = ValidatePiece(piece); !valid.ok()) return reader->Wrong(valid.message());
  if (piece.flat_count < 1 || piece.flat_count > kMaxChunkElements) {
    return reader->Wrong(absl::StrCat("a chunk has 1 to ", kMaxChunkElements, " elements"));
  }
  const int64_t bytes = piece.flat_count * static_cast<int64_t>(SizeOf(place.dtype));
  const int64_t file_bytes = manifest->files[file].bytes;
  if (place.offset_bytes % kChunkAlignmentBytes != 0 || place.offset_bytes > file_bytes - bytes) {
    return reader->Wrong("the chunk is misaligned or lies outside its file");
  }
  manifest->pieces.push_back(std::move(piece));
  manifest->places.push_back(place);
  return absl::OkStatus();
}

void AppendTokenizer(const Manifest& manifest, std::string* text) {
  const TokenizerMark& mark = manifest.info.tokenizer;
  absl::StrAppend(text, "\ntokenizer ", absl::Hex(mark.fingerprint, absl::kZeroPad16), " ",
                  absl::CEscape(mark.path), "\nchat_template ", absl::CEscape(mark.chat_template));
  absl::StrAppend(text, "\ntokenizer_files ", manifest.tokenizer_files.size());
  for (const KeptFile& file : manifest.tokenizer_files) {
    absl::StrAppend(text, "\ntokenizer_file ", file.bytes, " ",
                    absl::Hex(file.checksum, absl::kZeroPad16), " ", absl::CEscape(file.name));
  }
}

}  // namespace

std::string EncodeManifest(ManifestKind kind, const Manifest& manifest) {
  const CheckpointInfo& info = manifest.info;
  const bool has_beginning = !info.began_with.empty() || info.longest_text > 0;
  const bool has_tokenizer =
      has_beginning || info.tokenizer != TokenizerMark() || !manifest.tokenizer_files.empty();
  const bool has_base = has_tokenizer || !info.base.empty();
  const bool has_spike_guard = has_base || !info.spike_guard.empty();
  const bool has_optimizer = has_spike_guard || info.optimizer != kFirstOptimizer;
  const bool has_types =
      has_optimizer ||
      std::any_of(manifest.places.begin(), manifest.places.end(),
                  [](const ChunkPlace& place) { return place.dtype != DType::kFloat32; });
  const int version = has_beginning     ? kVersion
                      : has_tokenizer   ? kFirstVersionWithTokenizer
                      : has_base        ? kFirstVersionWithBase
                      : has_spike_guard ? kFirstVersionWithSpikeGuard
                      : has_optimizer   ? kFirstVersionWithOptimizer
                      : has_types       ? kFirstVersionWithTypes
                                        : kFirstVersionWithTypes - 1;
  std::string text = absl::StrCat(FirstWords(kind), version, "\nstep ", info.step,
                                  "\nsamples_consumed ", info.samples_consumed, "\nupdates ");
  absl::StrAppend(&text, info.updates, "\nseed ", info.seed, "\nworld_size ", info.world_size);
  absl::StrAppend(&text, "\nmodel ", absl::CEscape(info.model), "\ndata ", absl::CEscape(info.data),
                  "\nsamples ", absl::CEscape(info.samples));
  if (has_optimizer) absl::StrAppend(&text, "\noptimizer ", absl::CEscape(info.optimizer));
  if (has_spike_guard) absl::StrAppend(&text, "\nspike_guard ", absl::CEscape(info.spike_guard));
  if (has_base) absl::StrAppend(&text, "\nbase ", absl::CEscape(info.base));
  if (has_tokenizer) AppendTokenizer(manifest, &text);
  if (has_beginning) {
    absl::StrAppend(&text, "\nlongest_text ", info.longest_text, "\nbegan_with ",
                    absl::CEscape(info.began_with));
  }
  absl::StrAppend(&text, "\nlayout ", absl::CEscape(info.layout), "\n");
  absl::StrAppend(&text, "files ", manifest.files.size(), "\n");
  for (const DataFile& file : manifest.files) {
    absl::StrAppend(&text, "file ", file.bytes, " ", absl::CEscape(file.name), "\n");
  }
  // The key holds type, shape and name: two shapes of one tensor must stay visible to the check
  // that refuses them.
  std::unordered_map<std::string, size_t> tensor_index;
  std::vector<std::string> tensors;
  std::vector<size_t> tensor_of_chunk;
  for (size_t i = 0; i < manifest.pieces.size(); ++i) {
    const TensorPiece& piece = manifest.pieces[i];
    std::string tensor = has_types ? absl::StrCat(DTypeName(manifest.places[i].dtype), " ") : "";
    absl::StrAppend(&tensor, piece.global_shape.size(), " ", absl::StrJoin(piece.global_shape, " "),
                    " ", absl::CEscape(piece.name));
    const auto [it, is_new] = tensor_index.emplace(tensor, tensors.size());
    tensor_of_chunk.push_back(it->second);
    if (is_new) tensors.push_back(std::move(tensor));
  }
  absl::StrAppend(&text, "tensors ", tensors.size(), "\n");
  for (const std::string& tensor : tensors) absl::StrAppend(&text, "tensor ", tensor, "\n");
  absl::StrAppend(&text, "chunks ", manifest.pieces.size(), "\n");
  for (size_t i = 0; i < manifest.pieces.size(); ++i) {
    const TensorPiece& piece = manifest.pieces[i];
    const ChunkPlace& place = manifest.places[i];
    absl::StrAppend(&text, "chunk ", place.file, " ", place.offset_bytes, " ");
    absl::StrAppend(&text, absl::Hex(place.checksum, absl::kZeroPad16), " ", tensor_of_chunk[i],
                    " ", piece.flat_begin, " ", piece.flat_count);
    absl::StrAppend(&text, " ", absl::StrJoin(piece.local_box.offset, " "), " ",
                    absl::StrJoin(piece.local_box.extent, " "), "\n");
  }
  return text + EndLine(text);
}

absl::StatusOr<Manifest> DecodeManifest(ManifestKind kind, absl::string_view text) {
  const std::string first_words = FirstWords(kind);
  if (!absl::StartsWith(text, first_words)) {
    return absl::DataLossError(absl::StrCat("does not begin with '", first_words, "'"));
  }
  const absl::string_view version =
      text.substr(first_words.size(), text.find('\n') - first_words.size());
  int version_number;
  if (absl::SimpleAtoi(version, &version_number) && version_number > kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("format version ", version, "; this program reads up to ", kVersion,
                     ": use the program that wrote it, or a later one"));
  }
  if (text.size() < kEndLineBytes) return absl::DataLossError("truncated");
  const absl::string_view body = text.substr(0, text.size() - kEndLineBytes);
  const absl::string_view end_line = text.substr(body.size());
  if (const std::string found = EndLine(body); end_line != found) {
    return absl::DataLossError(absl::StrCat("truncated or damaged: it ends with '",
                                            absl::CEscape(end_line), "', its content asks for '",
                                            absl::CEscape(found), "'"));
  }
  LineReader reader(body);
  Manifest manifest;
  std::vector<Tensor> tensors;
  int64_t chunk_count = 0, exact_version = 0;
  CONVENE_RETURN_IF_ERROR(reader.Line(absl::StripSuffix(first_words, " "), &exact_version));
  if (exact_version < 1 || exact_version > kVersion) return reader.Wrong("unknown version");
  CONVENE_RETURN_IF_ERROR(DecodeInfo(&reader, exact_version, &manifest));
  CONVENE_RETURN_IF_ERROR(DecodeFiles(&reader, &manifest.files));
  CONVENE_RETURN_IF_ERROR(DecodeTensors(&reader, exact_version, &tensors));
  CONVENE_RETURN_IF_ERROR(reader.Line("chunks", &chunk_count));
  for (int64_t i = 0; i < chunk_count; ++i) {
    CONVENE_RETURN_IF_ERROR(DecodeChunk(&reader, tensors, &manifest));
  }
  if (!reader.AtEnd()) return reader.Wrong("more than the announced chunks");
  return manifest;
}

}  // namespace convene::worker
