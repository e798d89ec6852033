#include "worker_runtime/data/chat/chat_format.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

TEST_CASE("auto is the tokenizer's own template, also where its folder has a format's name") {
  const TempDir directory;
  const auto before = std::filesystem::current_path();
  const absl::Cleanup back = [&] { std::filesystem::current_path(before); };
  std::filesystem::current_path(directory.path());
  REQUIRE_OK(MakeDirectories("gemma"));
  REQUIRE_OK(WriteFileAtomic("gemma/chat_template.jinja", "{{ 'own' }}"));
  REQUIRE_OK(WriteFileAtomic("gemma/tokenizer.json", "{}"));
  for (const char* const tokenizer : {"gemma", "gemma/tokenizer.json"}) {
    const auto path = ResolveTemplate("auto", tokenizer);
    REQUIRE_OK(path);
    const auto format = LoadChatFormat(*path);
    REQUIRE_OK(format);
    REQUIRE(std::holds_alternative<FolderTemplate>(*format));
    CHECK(std::get<FolderTemplate>(*format).source == "{{ 'own' }}");
  }
  CHECK(ResolveTemplate("gemma", "gemma").value() == "gemma");
  CHECK(std::holds_alternative<NamedTemplate>(LoadChatFormat("gemma").value()));
  CHECK_STATUS(ResolveTemplate("auto", "byte"), absl::StatusCode::kInvalidArgument,
               "byte has none");
}

TEST_CASE("a folder's template for tools lies beside its other one, as transformers saves it") {
  const TempDir folder;
  REQUIRE_OK(WriteFileAtomic(folder.File("chat_template.jinja"), "{{ 'default' }}"));
  const auto read = [&] { return std::get<FolderTemplate>(LoadChatFormat(folder.path()).value()); };
  CHECK(!read().tool_use.has_value());
  REQUIRE_OK(MakeDirectories(folder.File("additional_chat_templates")));
  const std::string path = folder.File("additional_chat_templates/tool_use.jinja");
  REQUIRE_OK(WriteFileAtomic(path, "{{ 'tools' }}"));
  CHECK(read().source == "{{ 'default' }}");
  CHECK(read().tool_use_source == "{{ 'tools' }}");
  CHECK(read().tool_use.has_value());
  REQUIRE_OK(WriteFileAtomic(path, "{{ 'tools' "));
  CHECK_STATUS(LoadChatFormat(folder.path()), absl::StatusCode::kInvalidArgument,
               "the template 'tool_use'");
}

}  // namespace
}  // namespace convene::worker
