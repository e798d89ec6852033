#include "tools/base/control_sequences.h"

#include <catch2/catch.hpp>

namespace convene {
namespace {

TEST_CASE("a sequence ends with its letter, and is none without it") {
  CHECK(SequenceLength("\x1B[1;31mred") == 7);
  CHECK(SequenceLength("\x1B[2J") == 4);
  CHECK(SequenceLength("\x1B[1;31") == 0);
  CHECK(SequenceLength("\x1B]0;title\x07") == 0);
  CHECK(SequenceLength("plain") == 0);
  CHECK(SequenceLength("") == 0);
}

TEST_CASE("a text is left without its sequences, and with all else") {
  CHECK(WithoutSequences("a \x1B[1;31mValueError\x1B[0m: b") == "a ValueError: b");
  CHECK(WithoutSequences("\x1B[2J\x1B[H").empty());
  CHECK(WithoutSequences("\x1B\x1B[0mx\x1B[") == "\x1Bx\x1B[");
  CHECK(WithoutSequences("plain") == "plain");
}

}  // namespace
}  // namespace convene
