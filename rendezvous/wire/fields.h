// The fields of a message and of the value that it stands for, listed once for both directions:
//
//   template <typename Value, typename Wire>
//   void CopyFields(Value& value, Wire& wire) {
//     CONVENE_FIELD(why);
//     CONVENE_FIELD_AS(lease, lease_ms);
//   }
//
// A const value is written into the message; else the message is read into the value.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/text.h"

namespace convene::rendezvous {

// The most bytes of what workers, paths and other programs say.
inline constexpr size_t kLongestText = 500;

inline std::string Cut(absl::string_view text) { return Utf8(text, kLongestText); }

// A duration is whole milliseconds or, as a floating-point number, seconds; a point in time is
// microseconds since 1970.
template <typename To, typename From>
To ConvertField(const From& from) {
  if constexpr (std::is_same_v<From, absl::Duration>) {
    if constexpr (std::is_floating_point_v<To>) return absl::ToDoubleSeconds(from);
    if constexpr (std::is_integral_v<To>) return absl::ToInt64Milliseconds(from);
  } else if constexpr (std::is_same_v<To, absl::Duration>) {
    if constexpr (std::is_floating_point_v<From>) return absl::Seconds(from);
    if constexpr (std::is_integral_v<From>) return absl::Milliseconds(from);
  } else if constexpr (std::is_same_v<From, absl::Time>) {
    return absl::ToUnixMicros(from);
  } else if constexpr (std::is_same_v<To, absl::Time>) {
    return absl::FromUnixMicros(from);
  } else if constexpr (requires { from.value(); }) {
    return from.value();
  } else {
    return To(from);
  }
}

}  // namespace convene::rendezvous

#define CONVENE_FIELD_AS(member, field)                                                 \
  if constexpr (std::is_const_v<Value>) {                                               \
    wire.set_##field(ConvertField<std::decay_t<decltype(wire.field())>>(value.member)); \
  } else {                                                                              \
    value.member = ConvertField<std::decay_t<decltype(value.member)>>(wire.field());    \
  }                                                                                     \
  static_assert(true)

#define CONVENE_FIELD(name) CONVENE_FIELD_AS(name, name)

// A text from outside, cut in both directions.
#define CONVENE_FIELD_CUT(name)           \
  if constexpr (std::is_const_v<Value>) { \
    wire.set_##name(Cut(value.name));     \
  } else {                                \
    value.name = Cut(wire.name());        \
  }                                       \
  static_assert(true)
