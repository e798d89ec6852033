// Log lines, through spdlog: one call at start-up, then spdlog::info/warn/error anywhere.
#pragma once

#include <string>

namespace convene {

// Log lines go to stderr, so that stdout stays the user's, as "[HH:MM:SS.mmm program host] level:
// text". Level: CONVENE_LOG_LEVEL (trace, debug, info, warning, error, off), else info; an unknown
// level keeps info and says so. Call once, from main, before the first thread.
void InitLogging(const std::string& program);

// This machine's host name as gethostname gives it ("localhost" when it has none).
std::string HostName();

}  // namespace convene
