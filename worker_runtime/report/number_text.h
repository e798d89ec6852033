// PURE. Numbers as people like to read them in a terminal.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace convene::worker {

// "950", "41.2k", "412k", "1.3M", "70.6B"; "3.2" below 10; "nan" and "inf" as such.
std::string HumanCount(double value);

// "8,030,261,248".
std::string WithThousands(int64_t value);

// "0:42", "12:05", "3:04:05", "2d 3h"; "-:--" when negative or infinite (not known).
std::string HumanDuration(absl::Duration duration);

}  // namespace convene::worker
