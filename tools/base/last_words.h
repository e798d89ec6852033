// The words that a person reads when a signal ends a command that has begun something.
#pragma once

#include <string>

namespace convene {

// From now on SIGHUP, SIGINT and SIGTERM write `words` to stderr and then end the process as they
// would anyway; those that are ignored stay so. "": none any more.
void SetLastWords(const std::string& words);

}  // namespace convene
