// The version of all programs.
#pragma once

namespace convene {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace convene
