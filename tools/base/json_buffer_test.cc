#include "tools/base/json_buffer.h"

#include <rapidjson/prettywriter.h>
#include <rapidjson/writer.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "absl/strings/string_view.h"

namespace convene {
namespace {

template <typename Writer>
bool LeavesNoControlCharacter(const std::string& text) {
  JsonBuffer buffer;
  Writer writer(buffer);
  writer.String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
  const absl::string_view written = buffer.GetString();
  return std::none_of(written.begin(), written.end(), [](char c) { return c >= 0 && c < 0x20; });
}

TEST_CASE("each control character is escaped, at each place of a long text") {
  for (char control = 0; control < 0x20; ++control) {
    for (size_t place = 0; place < 40; ++place) {
      std::string text(40, 'a');
      text[place] = control;
      INFO(static_cast<int>(control) << " at " << place);
      CHECK(LeavesNoControlCharacter<rapidjson::Writer<JsonBuffer>>(text));
      CHECK(LeavesNoControlCharacter<rapidjson::PrettyWriter<JsonBuffer>>(text));
    }
  }
}

}  // namespace
}  // namespace convene
