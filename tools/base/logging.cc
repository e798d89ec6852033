#include "tools/base/logging.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace convene {

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

namespace {

void OpenStandardDescriptors() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) close(fd);
}

}  // namespace

void InitLogging(const std::string& program) {
  OpenStandardDescriptors();
  auto logger =
      std::make_shared<spdlog::logger>(program, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("[%H:%M:%S.%e %n " + HostName() + "] %l: %v");
  logger->flush_on(spdlog::level::info);
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
