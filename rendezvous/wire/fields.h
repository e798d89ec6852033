// The fields of a message and of the value that it stands for, listed once for both directions:
//
//   void CopyFields(Is<Stop> auto& value, auto& wire) {
//     CONVENE_FIELD_ENUM(kind, kStopKinds);
//     CONVENE_FIELD(why);
//   }
//
// A const value is written into the message; else the message is read into the value, which is new:
// what the message does not have keeps the value's default.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <string>
#include <type_traits>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/control_sequences.h"
#include "tools/base/text.h"

namespace convene::rendezvous {

// Text from workers, paths and other programs, as one row for the terminals of others: without
// colors, and with a space for a line's end and for a tab.
inline std::string Cut(absl::string_view text) {
  return Printable(absl::StrReplaceAll(WithoutSequences(Utf8(text, 500)),
                                       {{"\t", " "}, {"\r\n", " "}, {"\n", " "}, {"\r", " "}}));
}

template <typename Value, typename Type>
concept Is = std::is_same_v<std::remove_const_t<Value>, Type>;

// Of a reference to a value: whether it is written, not read.
template <typename Reference>
inline constexpr bool kIsWritten = std::is_const_v<std::remove_reference_t<Reference>>;

// A message without fields.
template <typename Value, typename Wire>
requires std::is_empty_v<Value>
void CopyFields(Value& /*value*/, Wire& /*wire*/) {}

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

inline constexpr int kAll = std::numeric_limits<int>::max();

template <typename List, typename Act>
void ForFirst(int most, const List& list, const Act& act) {
  for (const auto& item : list) {
    if (most-- == 0) return;
    act(item);
  }
}

// Reads an enumeration whose values stand for those of `known`, in their order. False for a value
// that is not in it: *value stays as it is.
template <typename Value, typename Wire, size_t count>
bool ReadEnum(const Wire (&known)[count], Wire wire, Value* value) {
  const auto found = std::find(std::begin(known), std::end(known), wire);
  if (found == std::end(known)) return false;
  *value = static_cast<Value>(found - known);
  return true;
}

}  // namespace convene::rendezvous

#define CONVENE_WRITE_OR_READ(write, read)     \
  if constexpr (kIsWritten<decltype(value)>) { \
    write;                                     \
  } else {                                     \
    read;                                      \
  }                                            \
  static_assert(true)

#define CONVENE_FIELD_AS(member, field)                                                   \
  CONVENE_WRITE_OR_READ(                                                                  \
      wire.set_##field(ConvertField<std::decay_t<decltype(wire.field())>>(value.member)), \
      value.member = ConvertField<std::decay_t<decltype(value.member)>>(wire.field()))

#define CONVENE_FIELD(name) CONVENE_FIELD_AS(name, name)

// A text from outside, made harmless by the function `clean` in both directions.
#define CONVENE_FIELD_CLEAN(clean, name) \
  CONVENE_WRITE_OR_READ(wire.set_##name(clean(value.name)), value.name = clean(wire.name()))

// The first `most` of a list of texts or numbers; each passes through `clean`.
#define CONVENE_FIELD_EACH(clean, name, most)                                              \
  CONVENE_WRITE_OR_READ(                                                                   \
      ForFirst(most, value.name, [&](const auto& item) { wire.add_##name(clean(item)); }), \
      ForFirst(most, wire.name(),                                                          \
               [&](const auto& item) { value.name.insert(value.name.end(), clean(item)); }))

// A bool, for one of the list `capabilities`.
#define CONVENE_CAPABILITY(name, capability)                               \
  CONVENE_WRITE_OR_READ(if (value.name) wire.add_capabilities(capability), \
                        value.name = absl::c_linear_search(wire.capabilities(), capability))

// An enumeration, by the table of ReadEnum.
#define CONVENE_FIELD_ENUM(name, known)                                            \
  CONVENE_WRITE_OR_READ(wire.set_##name((known)[static_cast<size_t>(value.name)]), \
                        ReadEnum(known, wire.name(), &value.name))

// A message in a message; each of these has a CopyFields of its own.
#define CONVENE_MESSAGE(name)                                           \
  CONVENE_WRITE_OR_READ(CopyFields(value.name, *wire.mutable_##name()), \
                        CopyFields(value.name, wire.name()))

// A std::optional one.
#define CONVENE_OPTIONAL_MESSAGE(name)                                       \
  CONVENE_WRITE_OR_READ(if (value.name.has_value())                          \
                            CopyFields(*value.name, *wire.mutable_##name()), \
                        if (wire.has_##name()) CopyFields(value.name.emplace(), wire.name()))

// A std::vector of them.
#define CONVENE_MESSAGES(name)                                                            \
  CONVENE_WRITE_OR_READ(                                                                  \
      {                                                                                   \
        for (const auto& item : value.name) CopyFields(item, *wire.add_##name());         \
      },                                                                                  \
      {                                                                                   \
        for (const auto& item : wire.name()) CopyFields(value.name.emplace_back(), item); \
      })

// The first `most` of them.
#define CONVENE_FIRST_MESSAGES(name, most)                                                         \
  CONVENE_WRITE_OR_READ(                                                                           \
      ForFirst(most, value.name, [&](const auto& item) { CopyFields(item, *wire.add_##name()); }), \
      ForFirst(most, wire.name(),                                                                  \
               [&](const auto& item) { CopyFields(value.name.emplace_back(), item); }))

// A message of a oneof, for the alternative `Type` of a value that is a std::variant.
#define CONVENE_KIND(Type, name)                                                                   \
  CONVENE_WRITE_OR_READ(                                                                           \
      if (const auto* kind = std::get_if<Type>(&value)) CopyFields(*kind, *wire.mutable_##name()), \
      if (wire.has_##name()) CopyFields(value.template emplace<Type>(), wire.name()))
