#include "launcher/incidents/torch_dumps.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/custody/program.h"
#include "tools/base/environment.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/prepare/command_stream.h"

namespace convene::launcher {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);
constexpr size_t kBytesMax = 64 << 10;
constexpr size_t kLinesMax = 200;

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadTorchDumps(const std::string& prefix) {
  const std::string folder = ParentDirectory(prefix);
  const std::string name = prefix.substr(prefix.rfind('/') + 1);
  const absl::StatusOr<std::vector<std::string>> files = ListDirectory(folder);
  CONVENE_RETURN_IF_ERROR(Annotate(files.status(), "--torch-dumps"));
  const auto is_dump = [&](const std::string& file) { return absl::StartsWith(file, name); };
  if (std::none_of(files->begin(), files->end(), is_dump)) {
    return absl::NotFoundError(absl::StrCat(
        "--torch-dumps: no file in ", folder, " begins with \"", name,
        "\": give what TORCH_FR_DUMP_TEMP_FILE is for the workers, and copy the dumps of other "
        "nodes there (PyTorch writes them where TORCH_FR_BUFFER_SIZE is set and a collective "
        "takes too long)"));
  }
  const auto program =
      agent::FindProgram("torchfrtrace", ProcessEnvironment()("PATH").value_or(""));
  if (!program.ok()) {
    return absl::NotFoundError(
        "--torch-dumps: torchfrtrace is not in PATH; it comes with PyTorch: activate the "
        "environment in which torch is installed");
  }
  // A rank that was killed left no dump. Its words are on both outputs.
  const std::string command = absl::StrCat(
      worker::CommandFor("{} --allow-incomplete-ranks ", *program),
      worker::CommandFor("--prefix={} ", name),
      worker::CommandFor("{} 2>&1 || echo \"torchfrtrace ended with exit code $?\"", folder));
  CONVENE_ASSIGN_OR_RETURN(const auto stream,
                           worker::OpenCommand({.path = "", .command = command}, kPatience));
  std::string text(kBytesMax, '\0');
  CONVENE_ASSIGN_OR_RETURN(const size_t size, stream->Read(text.data(), text.size()));
  text.resize(size);
  std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipWhitespace());
  std::erase_if(lines, [](const std::string& line) {
    return absl::StartsWith(line, "tabulate is not installed");  // It says so in every run.
  });
  if (lines.size() > kLinesMax) lines.resize(kLinesMax);
  if (lines.empty()) lines = {"torchfrtrace finds no collective that some ranks did not join"};
  return lines;
}

}  // namespace convene::launcher
