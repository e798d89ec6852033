#include "agent/output/log_disk.h"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "tools/base/clock.h"
#include "tools/base/doorbell.h"
#include "tools/base/lost_output.h"
#include "tools/base/mutex.h"
#include "tools/base/status_macros.h"

namespace convene::agent {
namespace {

std::string MissingText(const LostOutput& missing) {
  return absl::StrCat("[convene: ", missing.Amount(),
                      " are missing here: the disk did not take them]\n");
}

}  // namespace

class LogDisk::File {
 public:
  explicit File(RotatingFile::Options options) : on_disk(std::move(options)) {}

  // Guarded by the mutex of Shared.
  std::string pending;      // whole lines, but for the last
  bool open_line = false;   // the last byte taken was no end of line
  bool dropping = false;    // nothing is taken before the next line's start
  bool drops_line = false;  // the line that is open now is being dropped
  LostOutput dropped;       // after `pending`
  bool queued = false;      // in Shared::to_write
  bool closing = false;

  // Used by the disk's thread alone.
  RotatingFile on_disk;
  LostOutput unwritten;  // failed to be written, before what comes next
};

struct LogDisk::Shared {
  explicit Shared(absl::Duration hangs_after) : hangs_after(hangs_after) {}

  const absl::Duration hangs_after;
  Mutex mutex;
  CondVar work;  // for the disk's thread
  CondVar done;  // a task, or the thread itself
  std::deque<std::function<void()>> tasks ABSL_GUARDED_BY(mutex);
  std::deque<std::shared_ptr<File>> to_write ABSL_GUARDED_BY(mutex);
  int64_t tasks_asked ABSL_GUARDED_BY(mutex) = 0;
  int64_t tasks_done ABSL_GUARDED_BY(mutex) = 0;
  size_t pending_bytes ABSL_GUARDED_BY(mutex) = 0;  // of all files
  std::vector<std::string> troubles ABSL_GUARDED_BY(mutex);
  bool waited_for ABSL_GUARDED_BY(mutex) = false;  // a writer waits for room
  // The start of the present call to the disk; InfiniteFuture: there is none.
  MonotonicTime busy_since ABSL_GUARDED_BY(mutex) = MonotonicTime::InfiniteFuture();
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  MonotonicTime compress_until ABSL_GUARDED_BY(mutex) = MonotonicTime::InfiniteFuture();
  bool gives_up ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  LostOutput lost ABSL_GUARDED_BY(mutex);         // of all files, since the start
  std::string last_error ABSL_GUARDED_BY(mutex);  // "": none but a disk that hangs

  Doorbell news;                                  // room, or a trouble
  std::deque<std::shared_ptr<File>> to_compress;  // of the disk's thread

  bool Hangs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return Clock::Real().Now() - busy_since > hangs_after;
  }
  // The body of the disk's thread.
  void Run();

  // Takes `bytes` into the file's queue, or drops what has no room.
  void Take(File& file, absl::string_view bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Queue(const std::shared_ptr<File>& file) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Counts bytes that a file does not get.
  void Lose(LostOutput& missing, absl::string_view bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

 private:
  // Does one piece of work; false when there is none for now.
  bool DoOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void WriteOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Write(File& file, absl::string_view batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status AppendOnDisk(File& file, absl::string_view bytes, size_t* done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void CompressOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Runs `call`, which may hang, without the mutex.
  void OnDisk(const std::function<void()>& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void TellTrouble(std::string what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
};

// ---- the loop's side ----

void LogDisk::Shared::Take(File& file, absl::string_view bytes) {
  const bool crowded = pending_bytes > kMostInAll;
  if (file.dropping) {
    size_t dropped = bytes.size();
    if (!crowded && file.pending.size() < kFull) {
      // The rest of the line that is being dropped.
      dropped = file.drops_line ? std::min(bytes.find('\n'), bytes.size() - 1) + 1 : 0;
    }
    Lose(file.dropped, bytes.substr(0, dropped));
    if (dropped > 0) file.drops_line = bytes[dropped - 1] != '\n';
    bytes.remove_prefix(dropped);
    if (bytes.empty()) return;
    file.dropping = false;
    file.pending += MissingText(std::exchange(file.dropped, {}));
  }
  if (!crowded && file.pending.size() + bytes.size() <= kMost) {
    file.pending.append(bytes.data(), bytes.size());
    file.open_line = bytes.back() != '\n';
    return;
  }
  // The open line gets its rest or, when the rest is not complete, an end.
  if (file.open_line) {
    const size_t newline = bytes.find('\n');
    const bool here = newline != absl::string_view::npos;
    if (here) {
      file.pending.append(bytes.data(), newline + 1);
      bytes.remove_prefix(newline + 1);
    } else {
      file.pending += '\n';
    }
    file.open_line = false;
  }
  if (bytes.empty()) return;
  file.dropping = true;
  Lose(file.dropped, bytes);
  file.drops_line = bytes.back() != '\n';
}

void LogDisk::Shared::Lose(LostOutput& missing, absl::string_view bytes) {
  missing.Add(bytes, EAGAIN);
  lost.Add(bytes, EAGAIN);
}

void LogDisk::Shared::Queue(const std::shared_ptr<File>& file) {
  if (file->queued) return;
  file->queued = true;
  to_write.push_back(file);
  work.Signal();
}

LogDisk::LogDisk(EventLoop& loop, Options options)
    : loop_(loop),
      options_(std::move(options)),
      shared_(std::make_shared<Shared>(options_.hangs_after)),
      timer_(loop, [this] { OnTimer(); }) {}

absl::StatusOr<std::unique_ptr<LogDisk>> LogDisk::Start(EventLoop& loop, Options options) {
  std::unique_ptr<LogDisk> disk(new LogDisk(loop, std::move(options)));
  if (!disk->timer_.valid()) return absl::ResourceExhaustedError("no descriptor for a timer");
  CONVENE_RETURN_IF_ERROR(disk->shared_->news.Attach(loop, [raw = disk.get()] { raw->OnNews(); }));
  CONVENE_ASSIGN_OR_RETURN(disk->thread_,
                           Thread::Start("log-disk", [shared = disk->shared_] { shared->Run(); }));
  return disk;
}

LogDisk::~LogDisk() {
  shared_->news.Detach(loop_);
  if (!thread_.joinable()) return;
  Finish(absl::ZeroDuration());
  bool ended = false;
  {
    MutexLock lock(&shared_->mutex);
    ended = shared_->ended;
  }
  if (ended) {
    thread_.Join();
    return;
  }
  // The thread hangs in the kernel and cannot be joined: it ends with the process.
  static auto* const abandoned = std::make_unique<std::vector<Thread>>().release();
  abandoned->push_back(std::move(thread_));
}

std::shared_ptr<LogDisk::File> LogDisk::Open(RotatingFile::Options options) {
  return std::make_shared<File>(std::move(options));
}

void LogDisk::Append(const std::shared_ptr<File>& file, absl::string_view bytes) {
  if (bytes.empty()) return;
  MutexLock lock(&shared_->mutex);
  const size_t before = file->pending.size();
  shared_->Take(*file, bytes);
  shared_->pending_bytes += file->pending.size() - before;
  if (!file->pending.empty()) shared_->Queue(file);
}

bool LogDisk::MustWait(const File& file) {
  bool hangs = false;
  {
    MutexLock lock(&shared_->mutex);
    if (file.pending.size() < kFull) return false;
    hangs = shared_->Hangs();
    shared_->waited_for = !hangs;
  }
  if (!timer_runs_ && !(hangs && told_of_hang_)) {
    timer_runs_ = true;
    timer_.Set(options_.hangs_after);
  }
  return !hangs;
}

void LogDisk::Close(const std::shared_ptr<File>& file) {
  MutexLock lock(&shared_->mutex);
  file->closing = true;
  if (file->dropping) {
    const std::string text = MissingText(std::exchange(file->dropped, {}));
    file->pending += text;
    shared_->pending_bytes += text.size();
  }
  shared_->Queue(file);
}

void LogDisk::OnNews() {
  std::vector<std::string> troubles;
  {
    MutexLock lock(&shared_->mutex);
    troubles.swap(shared_->troubles);
    told_of_hang_ = told_of_hang_ && shared_->Hangs();
  }
  for (const std::string& trouble : troubles) options_.on_trouble(trouble);
  options_.on_relief();
}

void LogDisk::OnTimer() {
  timer_runs_ = false;
  bool hangs = false;
  {
    MutexLock lock(&shared_->mutex);
    hangs = shared_->Hangs();
  }
  if (hangs && !std::exchange(told_of_hang_, true)) {
    options_.on_trouble(
        "the log disk hangs: the workers run on, and lines that find no room are dropped");
  }
  options_.on_relief();
}

bool LogDisk::Do(std::function<void()> task, absl::Duration patience) {
  constexpr size_t kMostTasks = 64;
  const MonotonicTime deadline = Clock::Real().Now() + patience;
  MutexLock lock(&shared_->mutex);
  if (shared_->tasks.size() >= kMostTasks) return false;
  shared_->tasks.push_back(std::move(task));
  const int64_t ticket = ++shared_->tasks_asked;
  shared_->work.Signal();
  while (shared_->tasks_done < ticket) {
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration() || shared_->Hangs()) return false;
    shared_->done.WaitFor(&shared_->mutex, left);
  }
  return true;
}

bool LogDisk::Finish(absl::Duration patience) {
  // A thread that is told to give up still ends the call that it is in.
  constexpr absl::Duration kLastCall = absl::Milliseconds(100);
  MutexLock lock(&shared_->mutex);
  MonotonicTime deadline = Clock::Real().Now() + patience;
  shared_->stopping = true;
  shared_->compress_until = Clock::Real().Now() + patience / 2;
  shared_->work.Signal();
  while (!shared_->ended) {
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left > absl::ZeroDuration()) {
      shared_->done.WaitFor(&shared_->mutex, left);
    } else if (!shared_->gives_up) {
      shared_->gives_up = true;
      deadline = Clock::Real().Now() + kLastCall;
    } else {
      break;
    }
  }
  for (const auto& file : shared_->to_write) {
    shared_->lost.Add(std::exchange(file->pending, {}), EAGAIN);
  }
  return !shared_->gives_up;
}

std::string LogDisk::Loss() const {
  MutexLock lock(&shared_->mutex);
  if (!shared_->lost.any()) return "";
  return absl::StrCat(shared_->lost.Amount(), " for log files (",
                      shared_->last_error.empty() ? "the disk was too slow" : shared_->last_error,
                      ")");
}

// ---- the disk's thread ----

void LogDisk::Shared::Run() {
  MutexLock lock(&mutex);
  while (!gives_up) {
    if (DoOne()) continue;
    if (stopping) break;
    work.Wait(&mutex);
  }
  ended = true;
  done.SignalAll();
}

bool LogDisk::Shared::DoOne() {
  if (!tasks.empty()) {
    const std::function<void()> task = std::move(tasks.front());
    tasks.pop_front();
    OnDisk(task);
    ++tasks_done;
    done.SignalAll();
  } else if (!to_write.empty()) {
    WriteOne();
  } else if (!to_compress.empty() && Clock::Real().Now() < compress_until) {
    CompressOne();
  } else {
    return false;
  }
  return true;
}

void LogDisk::Shared::OnDisk(const std::function<void()>& call) {
  busy_since = Clock::Real().Now();
  mutex.Unlock();
  call();
  mutex.Lock();
  const absl::Duration took = Clock::Real().Now() - busy_since;
  busy_since = MonotonicTime::InfiniteFuture();
  if (took > hangs_after) {
    TellTrouble(absl::StrCat("the log disk answers again, after ",
                             absl::FormatDuration(absl::Trunc(took, absl::Milliseconds(100)))));
  }
}

void LogDisk::Shared::TellTrouble(std::string what) {
  constexpr size_t kMostTroubles = 100;
  if (troubles.size() < kMostTroubles) troubles.push_back(std::move(what));
  news.Ring();
}

void LogDisk::Shared::WriteOne() {
  const std::shared_ptr<File> file = std::move(to_write.front());
  to_write.pop_front();
  file->queued = false;
  const std::string batch = std::exchange(file->pending, {});
  const bool closing = file->closing;
  pending_bytes -= batch.size();
  if (std::exchange(waited_for, false)) news.Ring();
  Write(*file, batch);
  if (closing) OnDisk([&] { file->on_disk.CloseFile(); });
  if (!file->on_disk.has_uncompressed()) return;
  if (std::find(to_compress.begin(), to_compress.end(), file) == to_compress.end()) {
    to_compress.push_back(file);
  }
}

void LogDisk::Shared::Write(File& file, absl::string_view batch) {
  // The bytes of one call: a disk that takes longer than a second for them hangs.
  constexpr size_t kSlice = 256 * 1024;
  LostOutput& unwritten = file.unwritten;
  if (unwritten.bytes > 0) {
    size_t done = 0;
    const std::string text =
        absl::StrCat(file.on_disk.at_line_start() ? "" : "\n", MissingText(unwritten));
    if (!AppendOnDisk(file, text, &done).ok()) return Lose(unwritten, batch);
    TellTrouble(
        absl::StrCat(file.on_disk.path(), " grows again; ", unwritten.Amount(), " were dropped"));
    unwritten = {};
  }
  while (!batch.empty() && !gives_up) {
    size_t done = 0;
    const absl::Status status = AppendOnDisk(file, batch.substr(0, kSlice), &done);
    batch.remove_prefix(done);
    if (status.ok()) continue;
    TellTrouble(absl::StrCat(status.message(), ": lines are dropped until that is over"));
    last_error = std::string(status.message());
    return Lose(unwritten, batch);
  }
}

absl::Status LogDisk::Shared::AppendOnDisk(File& file, absl::string_view bytes, size_t* done) {
  absl::Status status;
  OnDisk([&] { status = file.on_disk.Append(bytes, done); });
  return status;
}

void LogDisk::Shared::CompressOne() {
  const std::shared_ptr<File> file = to_compress.front();
  OnDisk([&] { file->on_disk.CompressSome(); });
  if (!file->on_disk.has_uncompressed()) to_compress.pop_front();
}

}  // namespace convene::agent
