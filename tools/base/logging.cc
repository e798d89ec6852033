#include "tools/base/logging.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "spdlog/details/null_mutex.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "tools/base/mutex.h"
#include "tools/base/patient_log.h"

namespace convene {

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

namespace {

// A descriptor that is closed would become that of the next file, which then got the output. In its
// place stands a folder: a write to it fails (EBADF), as to a closed descriptor.
void OpenStandardDescriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest one that is free.
    (void)open(fd == STDIN_FILENO ? "/dev/null" : "/", O_RDONLY);
  }
}

// How long a line waits for the reader, and how long the last lines do.
constexpr absl::Duration kPatience = absl::Milliseconds(200);
constexpr absl::Duration kLastPatience = absl::Seconds(5);

class PatientSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  LostOutput lost() {
    MutexLock lock(&line_mutex_);
    return log_.lost();
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    MutexLock lock(&line_mutex_);
    line_.clear();
    formatter_->format(message, line_);
    log_.Add(absl::string_view(line_.data(), line_.size()));
  }
  void flush_() override {
    MutexLock lock(&line_mutex_);
    log_.Flush(kLastPatience);
  }

 private:
  Mutex line_mutex_;
  spdlog::memory_buf_t line_ ABSL_GUARDED_BY(line_mutex_);
  PatientLog log_ ABSL_GUARDED_BY(line_mutex_){STDERR_FILENO, kPatience};
};

}  // namespace

LostOutput LostLog() {
  for (const auto& sink : spdlog::default_logger()->sinks()) {
    if (auto* patient = dynamic_cast<PatientSink*>(sink.get())) return patient->lost();
  }
  return {};
}

void FlushLog() { spdlog::default_logger()->flush(); }

void InitLogging(const std::string& program, LogReader reader) {
  OpenStandardDescriptors();
  std::shared_ptr<spdlog::sinks::sink> sink;
  if (reader == LogReader::kIsAwaited) {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  } else {
    sink = std::make_shared<PatientSink>();
  }
  auto logger = std::make_shared<spdlog::logger>(program, std::move(sink));
  logger->set_pattern("[%H:%M:%S.%e %n " + HostName() + "] %l: %v");
  if (reader == LogReader::kIsAwaited) logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
  if (const char* wanted = std::getenv("CONVENE_LOG_LEVEL")) {
    const auto level = spdlog::level::from_str(wanted);
    const bool unknown = level == spdlog::level::off && std::string(wanted) != "off";
    if (unknown) {
      spdlog::warn(
          "CONVENE_LOG_LEVEL={} is no level (trace, debug, info, warning, error, off); using info",
          wanted);
    } else {
      spdlog::set_level(level);
    }
  }
}

}  // namespace convene
