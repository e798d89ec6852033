// Log lines, through spdlog: one call at start-up, then spdlog::info/warn/error anywhere.
#pragma once

#include <string>

#include "tools/base/lost_output.h"

namespace convene {

// Whether log lines wait when nothing reads stderr.
enum class LogReader {
  kIsAwaited,     // the line is written when the reader goes on: for a worker, whose reader is ours
  kIsNotAwaited,  // the program goes on at once (patient_log.h): for what others rely on
};

// Log lines go to stderr, so that stdout stays the user's, as "[HH:MM:SS.mmm program host] level:
// text". Level: CONVENE_LOG_LEVEL (trace, debug, info, warning, error, off), else info; an unknown
// level keeps info and says so. Call once, from main, before the first thread.
void InitLogging(const std::string& program, LogReader reader);

// Call it before the program's end: gives a slow reader 5 s more.
void FlushLog();

// The lines of the log that stderr did not take, so far. REQUIRES: InitLogging(kIsNotAwaited).
LostOutput LostLog();

// This machine's host name as gethostname gives it ("localhost" when it has none).
std::string HostName();

}  // namespace convene
