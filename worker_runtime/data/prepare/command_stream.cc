#include "worker_runtime/data/prepare/command_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "tools/base/unique_fd.h"

namespace convene::worker {
namespace {

constexpr size_t kLastWords = 2000;

// EX_DATAERR of sysexits.h: the file is damaged.
constexpr int kDamagedExitCode = 65;

// A batch of rows at a time, so that a file of any size takes little memory. Arrow's own errors of
// reading have no errno.
constexpr char kParquetProgram[] = R"py(import json, sys
path, wanted = sys.argv[1], sys.argv[2:]
sys.stdout.reconfigure(encoding="utf-8")
try:
    import pyarrow.parquet
except ImportError:
    sys.exit(f"{sys.executable} has no pyarrow, which reads Parquet. `python3 -m venv DIR && DIR/bin/pip install pyarrow` "
             "brings it; then `convene data prepare --python DIR/bin/python3` makes a token file")
def plain(value):
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
def write_rows(rows):
    names = rows.schema_arrow.names
    columns = [name for name in wanted if name in names]
    if wanted and not columns:
        lacks = f"none of the columns {', '.join(wanted)}:"
        if len(wanted) == 1:
            lacks = f"no column {wanted[0]!r} (`convene data prepare --field NAME` takes another):"
        sys.exit(f"it has {lacks} it has {', '.join(names[:20])}")
    for batch in rows.iter_batches(batch_size=1024, columns=columns or None):
        for row in batch.to_pylist():
            sys.stdout.write(json.dumps(row, ensure_ascii=False, default=plain) + "\n")
try:
    with pyarrow.parquet.ParquetFile(path) as rows:
        write_rows(rows)
except (pyarrow.ArrowInvalid, OSError) as error:
    if getattr(error, "errno", None):
        raise
    print(f"it is damaged: {error}", file=sys.stderr)
    sys.exit(65)
)py";

std::string Quoted(const std::string& word) {
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

struct Pipe {
  UniqueFd reader, writer;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "data: pipe");
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// In a process group of its own, so that all of a pipeline ends with it.
absl::StatusOr<pid_t> Start(const std::string& command, int out, int err) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const char* const arguments[] = {"sh", "-c", command.c_str(), nullptr};
  pid_t pid = 0;
  const int error = posix_spawn(&pid, "/bin/sh", &actions, &attributes,
                                const_cast<char* const*>(arguments), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return ErrnoStatus(error, "data: start /bin/sh");
  return pid;
}

class CommandStream : public ByteStream {
 public:
  CommandStream(const SourceFile& source, pid_t pid, UniqueFd out, UniqueFd err,
                absl::Duration patience)
      : ByteStream(source),
        pid_(pid),
        out_(std::move(out)),
        err_(std::move(err)),
        patience_(patience) {}

  ~CommandStream() override {
    if (pid_ == 0) return;
    kill(-pid_, SIGKILL);
    Reap();
  }

  // How far the command has come in the file is not known before its end. A number that stood still
  // would pass for a command that hangs, so this one nears the end as the output comes.
  int64_t file_offset() const override {
    if (is_at_end_) return source_.bytes;
    const double bytes = static_cast<double>(source_.bytes);
    return static_cast<int64_t>(bytes * (output_bytes_ / (output_bytes_ + bytes + 1)));
  }

  absl::StatusOr<size_t> ReadSome(char* buffer, size_t size) override {
    if (is_at_end_) return 0;
    const MonotonicTime deadline = Clock::Real().Now() + patience_;
    while (true) {
      pollfd ready[] = {{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}};
      const absl::Duration left = deadline - Clock::Real().Now();
      if (left <= absl::ZeroDuration()) {
        return Failed(absl::StatusCode::kDeadlineExceeded,
                      absl::StrCat("gave nothing for ", absl::FormatDuration(patience_)));
      }
      if (poll(ready, 2, static_cast<int>(absl::ToInt64Milliseconds(left) + 1)) < 0 &&
          errno != EINTR) {
        return ErrnoStatus(errno, "data: poll");
      }
      if (ready[1].revents != 0) HearWords();
      if (ready[0].revents == 0) continue;
      const ssize_t n = read(out_.get(), buffer, size);
      if (n > 0) {
        output_bytes_ += static_cast<double>(n);
        return static_cast<size_t>(n);
      }
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, absl::StrCat("data: read of ", source_.path));
      return End();
    }
  }

 private:
  // The words on standard error so far: the last part of them is kept.
  void HearWords() {
    char buffer[4096];
    const ssize_t n = read(err_.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) return;
    if (n <= 0) return err_.Reset();
    words_.append(buffer, static_cast<size_t>(n));
    if (words_.size() > kLastWords) words_.erase(0, words_.size() - kLastWords);
  }

  int Reap() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    return status;
  }

  // The output has ended: so does the command, or it is ended.
  absl::StatusOr<size_t> End() {
    const MonotonicTime deadline = Clock::Real().Now() + patience_;
    while (err_.valid() && Clock::Real().Now() < deadline) {
      pollfd ready = {err_.get(), POLLIN, 0};
      if (poll(&ready, 1, 1000) > 0) HearWords();
    }
    if (err_.valid()) kill(-pid_, SIGKILL);
    const int status = Reap();
    if (WIFSIGNALED(status)) {
      return Failed(absl::StatusCode::kUnavailable,
                    absl::StrCat("was ended by signal ", WTERMSIG(status)));
    }
    if (const int code = WEXITSTATUS(status); code != 0) {
      // The shell says so of a signal that ended one of its commands.
      const bool is_signal = code > 128 && code <= 128 + SIGRTMAX;
      return Failed(is_signal                  ? absl::StatusCode::kUnavailable
                    : code == kDamagedExitCode ? absl::StatusCode::kDataLoss
                                               : absl::StatusCode::kFailedPrecondition,
                    absl::StrCat("ended with exit code ", code));
    }
    is_at_end_ = true;
    if (source_.path.empty()) return 0;
    const absl::StatusOr<UniqueFd> file = OpenFile(source_.path, O_RDONLY);
    CONVENE_RETURN_IF_ERROR(file.status());
    CONVENE_RETURN_IF_ERROR(CheckUnchanged(file->get(), source_));
    return 0;
  }

  absl::Status Failed(absl::StatusCode code, absl::string_view how) const {
    const std::string words(absl::StripAsciiWhitespace(words_));
    return absl::Status(
        code, absl::StrCat(source_.path.empty() ? "the command "
                                                : absl::StrCat("data: ", source_.path,
                                                               ": the command that reads it "),
                           how, words.empty() ? "" : ": ", Utf8(words, kLastWords)));
  }

  pid_t pid_;
  const UniqueFd out_;
  UniqueFd err_;
  const absl::Duration patience_;
  std::string words_;
  double output_bytes_ = 0;  // so far
  bool is_at_end_ = false;
};

}  // namespace

std::string CommandFor(const std::string& command, const std::string& path) {
  return absl::StrReplaceAll(command, {{"{}", Quoted(path)}});
}

std::string ParquetCommand(const std::string& python, const std::vector<std::string>& columns,
                           const std::string& path) {
  const std::string program = Quoted(python);
  std::string command = absl::StrCat(
      "command -v ", program, " > /dev/null || { echo 'there is no program '", program,
      "', which is to read Parquet: name another Python by `convene data prepare --python`' >&2; ",
      "exit 127; }; exec ", program, " -c ", Quoted(kParquetProgram), " ", Quoted(path));
  for (const std::string& column : columns) absl::StrAppend(&command, " ", Quoted(column));
  return command;
}

absl::StatusOr<std::unique_ptr<ByteStream>> OpenCommand(const SourceFile& source,
                                                        absl::Duration patience) {
  CONVENE_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  CONVENE_ASSIGN_OR_RETURN(Pipe err, MakePipe());
  CONVENE_ASSIGN_OR_RETURN(const pid_t pid,
                           Start(source.command, out.writer.get(), err.writer.get()));
  return std::make_unique<CommandStream>(source, pid, std::move(out.reader), std::move(err.reader),
                                         patience);
}

}  // namespace convene::worker
