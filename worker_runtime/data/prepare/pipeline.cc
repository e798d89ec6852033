#include "worker_runtime/data/prepare/pipeline.h"

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "tools/base/mutex.h"
#include "tools/base/status_macros.h"
#include "tools/base/thread.h"
#include "worker_runtime/data/prepare/text_check.h"

namespace convene::worker {
namespace {

// A chunk's place in the order.
struct Place {
  int64_t file = 0;
  int64_t chunk = 0;  // within the file, or what is left of it
  friend bool operator==(const Place&, const Place&) = default;
  friend bool operator<(const Place& left, const Place& right) {
    return std::tie(left.file, left.chunk) < std::tie(right.file, right.chunk);
  }
};

struct ReadChunk {
  Chunk chunk;
  absl::Status status;  // why there is no further chunk in its file, and none in this
};

struct DoneChunk {
  EncodedChunk chunk;
  absl::Status status;  // why the chunk is not there
  size_t bytes = 0;     // that count as in flight until it is taken
};

size_t BytesOf(const Chunk& chunk) {
  return chunk.text.size() + chunk.records.size() * (sizeof(Record) + sizeof(EncodedRecord));
}

class Pipeline {
 public:
  Pipeline(const std::vector<SourceFile>& sources, const InputPosition& start,
           const PipelineOptions& options)
      : sources_(sources), start_(start), options_(options) {
    next_file_ = start.file;
    awaited_ = {.file = start.file};
  }
  ~Pipeline() { Stop(); }

  absl::Status Start();
  absl::Status TakeAll(absl::FunctionRef<absl::Status(EncodedChunk chunk)> take);

 private:
  int64_t file_count() const { return static_cast<int64_t>(sources_.size()); }

  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  void ReadFiles() ABSL_LOCKS_EXCLUDED(mutex_);
  // False: reading is to end.
  bool ReadFile(int64_t file) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::unique_ptr<ChunkReader>> Open(int64_t file) const;
  // Waits for room. False: the pipeline ends.
  bool Push(const Place& place, ReadChunk read) ABSL_LOCKS_EXCLUDED(mutex_);
  void EncodeChunks() ABSL_LOCKS_EXCLUDED(mutex_);
  DoneChunk Encode(const Place& place, RecordEncoder* encoder, ReadChunk read) const;

  const std::vector<SourceFile>& sources_;
  const InputPosition start_;
  const PipelineOptions& options_;

  Mutex mutex_;
  CondVar room_;  // the first two wait for it: the place awaited, or the bytes, changed
  CondVar work_;
  CondVar done_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t next_file_ ABSL_GUARDED_BY(mutex_) = 0;
  Place awaited_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Place, ReadChunk> to_encode_ ABSL_GUARDED_BY(mutex_);
  std::map<Place, DoneChunk> to_take_ ABSL_GUARDED_BY(mutex_);

  std::vector<Thread> threads_;
};

absl::Status Pipeline::Start() {
  for (int i = 0; i < options_.readers; ++i) {
    CONVENE_ASSIGN_OR_RETURN(Thread thread, Thread::Start("prepare-read", [this] { ReadFiles(); }));
    threads_.push_back(std::move(thread));
  }
  for (int i = 0; i < options_.encoders; ++i) {
    CONVENE_ASSIGN_OR_RETURN(Thread thread,
                             Thread::Start("prepare-encode", [this] { EncodeChunks(); }));
    threads_.push_back(std::move(thread));
  }
  return absl::OkStatus();
}

void Pipeline::Stop() {
  {
    MutexLock lock(&mutex_);
    is_stopping_ = true;
    room_.SignalAll();
    work_.SignalAll();
  }
  for (Thread& thread : threads_) thread.Join();
  threads_.clear();
}

void Pipeline::ReadFiles() {
  while (true) {
    int64_t file = 0;
    {
      MutexLock lock(&mutex_);
      if (is_stopping_ || next_file_ == file_count()) return;
      file = next_file_++;
    }
    if (!ReadFile(file)) return;
  }
}

absl::StatusOr<std::unique_ptr<ChunkReader>> Pipeline::Open(int64_t file) const {
  const SourceFile& source = sources_[file];
  const bool has_command = !source.command.empty();
  if (!has_command) CONVENE_RETURN_IF_ERROR(CheckText(source, options_.rules.separator));
  RecordRules rules = options_.rules;
  rules.is_json_lines = has_command ? options_.format != InputFormat::kText
                                    : options_.format == InputFormat::kJsonLines;
  if (!has_command && options_.format == InputFormat::kAuto) {
    CONVENE_ASSIGN_OR_RETURN(rules.is_json_lines,
                             HoldsJsonLines(source, options_.field, rules.max_document_bytes));
  }
  return ChunkReader::Open(source, file == start_.file ? start_ : InputPosition{.file = file},
                           rules);
}

bool Pipeline::ReadFile(int64_t file) {
  Place place = {.file = file};
  const absl::StatusOr<std::unique_ptr<ChunkReader>> reader = Open(file);
  if (!reader.ok()) {
    Push(place, {.status = reader.status()});
    return false;
  }
  for (bool is_last = false; !is_last; ++place.chunk) {
    ReadChunk read;
    read.status = (*reader)->Next(&read.chunk);
    is_last = read.chunk.is_last_of_file;
    const bool is_ok = read.status.ok();
    if (!Push(place, std::move(read)) || !is_ok) return false;
  }
  return true;
}

bool Pipeline::Push(const Place& place, ReadChunk read) {
  const size_t size = BytesOf(read.chunk);
  MutexLock lock(&mutex_);
  while (!is_stopping_ && place != awaited_ && bytes_ + size > options_.in_flight_bytes) {
    room_.Wait(&mutex_);
  }
  if (is_stopping_) return false;
  bytes_ += size;
  to_encode_.emplace(place, std::move(read));
  work_.Signal();
  return true;
}

DoneChunk Pipeline::Encode(const Place& place, RecordEncoder* encoder, ReadChunk read) const {
  DoneChunk done = {.bytes = BytesOf(read.chunk)};
  done.status = read.status.ok() ? Annotate(encoder->Encode(read.chunk, &done.chunk),
                                            absl::StrCat("data: ", sources_[place.file].path))
                                 : std::move(read.status);
  return done;
}

void Pipeline::EncodeChunks() {
  absl::StatusOr<std::unique_ptr<RecordEncoder>> encoder = options_.new_encoder();
  while (true) {
    std::map<Place, ReadChunk>::node_type node;
    {
      MutexLock lock(&mutex_);
      while (!is_stopping_ && to_encode_.empty()) work_.Wait(&mutex_);
      if (is_stopping_) return;
      node = to_encode_.extract(to_encode_.begin());
    }
    const Place place = node.key();
    DoneChunk done = encoder.ok() ? Encode(place, encoder->get(), std::move(node.mapped()))
                                  : DoneChunk{.status = encoder.status()};
    MutexLock lock(&mutex_);
    to_take_.emplace(place, std::move(done));
    if (place == awaited_) done_.Signal();
  }
}

absl::Status Pipeline::TakeAll(absl::FunctionRef<absl::Status(EncodedChunk chunk)> take) {
  while (true) {
    DoneChunk done;
    {
      MutexLock lock(&mutex_);
      if (awaited_.file == file_count()) return absl::OkStatus();
      while (to_take_.count(awaited_) == 0) done_.Wait(&mutex_);
      done = std::move(to_take_.extract(awaited_).mapped());
    }
    CONVENE_RETURN_IF_ERROR(done.status);
    const bool is_last = done.chunk.is_last_of_file;
    CONVENE_RETURN_IF_ERROR(take(std::move(done.chunk)));
    MutexLock lock(&mutex_);
    bytes_ -= done.bytes;
    if (is_last) {
      awaited_ = {.file = awaited_.file + 1};
    } else {
      ++awaited_.chunk;
    }
    room_.SignalAll();
  }
}

}  // namespace

absl::Status CheckHeads(const std::vector<SourceFile>& sources, const PipelineOptions& options) {
  if (options.format != InputFormat::kAuto) return absl::OkStatus();
  for (const SourceFile& source : sources) {
    if (!source.command.empty()) continue;
    CONVENE_RETURN_IF_ERROR(
        HoldsJsonLines(source, options.field, options.rules.max_document_bytes).status());
  }
  return absl::OkStatus();
}

absl::Status RunPipeline(const std::vector<SourceFile>& sources, const InputPosition& start,
                         const PipelineOptions& options,
                         absl::FunctionRef<absl::Status(EncodedChunk chunk)> take) {
  Pipeline pipeline(sources, start, options);
  CONVENE_RETURN_IF_ERROR(pipeline.Start());
  return pipeline.TakeAll(take);
}

}  // namespace convene::worker
