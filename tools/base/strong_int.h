// Integers that do not mix: MemberId is not Epoch is not GlobalRank.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace convene {

template <typename Tag, typename T>
class StrongInt {
 public:
  constexpr StrongInt() = default;
  explicit constexpr StrongInt(T value) : value_(value) {}
  constexpr T value() const { return value_; }
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 in a default <=> for a pointer
  friend constexpr auto operator<=>(StrongInt a, StrongInt b) = default;
  StrongInt Next() const { return StrongInt(value_ + 1); }
  std::string ToString() const { return std::to_string(value_); }

 private:
  T value_ = 0;
};

// A group's generation: rises by at least 1 whenever the set of members or their ranks change. 0 =
// no group yet.
using Epoch = StrongInt<struct EpochTag, int64_t>;
// Drawn at random once per process start; tells a restarted process from the one it replaces. 0 =
// unset.
using Incarnation = StrongInt<struct IncarnationTag, uint64_t>;

}  // namespace convene
