// The buffer that RapidJSON's writers write to.
#pragma once

#include <rapidjson/stringbuffer.h>

namespace convene {

// RapidJSON 1.1.0 scans texts with SSE2 where they go to its own StringBuffer, and leaves the
// control characters 0x1a to 0x1f there as they are, which no parser takes for JSON. To a type of
// another name it writes without SSE2.
struct JsonBuffer : rapidjson::StringBuffer {};

}  // namespace convene
