#include "launcher/incidents/torch_dumps.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
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

// Of each group the first collective that some rank did not start, and in which ranks it is not the
// same. Python reads its own format; a dump has no objects, so none is made. Two dumps at a time
// are in memory; of all dumps together ROOM collectives stay, each as three values.
constexpr char kProgram[] = R"(import json, os, pickle, sys
ROOM = 200000
class Plain(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no dump does")
def some(ranks):
    ranks = sorted(ranks)
    more = f" and {len(ranks) - 16} more" if len(ranks) > 16 else ""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks[:16])) + more
def told(entry):
    where = [f for f in entry.get("frames", []) if "/torch/" not in f["filename"]]
    line = f", {where[0]['filename']}:{where[0]['line']}" if where else ""
    return f"{entry['profiling_name']} of {entry['input_sizes']}{line}"
sys.excepthook = lambda kind, error, _: print(f"the dumps {prefix}* are not as PyTorch writes them: {kind.__name__}: {error}")
folder, prefix = sys.argv[1:]
groups, members, older, dumps, is_broken = {}, {}, {}, set(), False
files = [file for file in sorted(os.listdir(folder)) if file.startswith(prefix) and file[len(prefix):].isdigit()]
for file in files:
    number, own = int(file[len(prefix):]), {}
    try:
        with open(os.path.join(folder, file), "rb") as opened:
            dump = Plain(opened).load()
        configs = dump["pg_config"]
        for entry in dump["entries"]:
            if entry["is_p2p"]:
                continue
            name = str(entry["process_group"][0])
            # Gloo's recorder names the whole group "" here.
            config = configs.get(name) or configs.get("", {})
            members.setdefault(name, set()).update(json.loads(config.get("ranks", "[]")))
            own.setdefault(name, []).append(entry)
        for name, entries in own.items():
            newest = entries[-max(1, ROOM // len(files) // len(own)):]
            if len(newest) < len(entries):
                older.setdefault(name, {})[number] = len(entries) - len(newest)
            groups.setdefault(name, {})[number] = {
                entry["collective_seq_id"]: (entry["profiling_name"], sys.intern(told(entry)), entry["retired"]) for entry in newest}
        dumps.add(number)
    except Exception as error:
        print(f"{file} cannot be read: {type(error).__name__}: {error}")
        is_broken = True
for name, ranks in groups.items():
    for rank in members[name] & dumps:
        ranks.setdefault(rank, {})
    lost = members[name] - dumps
    if lost:
        print(f"group {name}: {some(lost)} left no dump")
    if name in older:
        more = sum(older[name].values())
        print(f"group {name}: the newest collectives were compared; {more} older ones of {some(older[name])} were left out, for want of room")
    first = 1 + min(max(entries, default=0) for entries in ranks.values())
    waiting = {rank for rank, entries in ranks.items() if max(entries, default=0) >= first}
    if waiting:
        entry = next((ranks[rank][first] for rank in sorted(waiting) if first in ranks[rank]), None)
        what = f", {entry[1]}," if entry else ""
        print(f"group {name}: collective {first}{what} was started by {some(waiting)}, and not by {some(set(ranks) - waiting)}")
    for number in sorted(set.intersection(*(set(entries) for entries in ranks.values()))):
        kinds = {}
        for rank, entries in ranks.items():
            kinds.setdefault(entries[number][0], set()).add(rank)
        if len(kinds) > 1:
            is_what = "; ".join(f"{ranks[min(of)][number][1]} on {some(of)}" for of in kinds.values())
            print(f"group {name}: collective {number} is not the same on all ranks: {is_what}")
            break
        open_on = {rank for rank, entries in ranks.items() if not entries[number][2]}
        if open_on and not waiting:
            print(f"group {name}: all ranks with a dump started collective {number}, {ranks[min(open_on)][number][1]}; it did not end on {some(open_on)}")
            break
if not dumps and not is_broken:
    print(f"no file is named {prefix} and a rank's number")
sys.exit(is_broken or not dumps)
)";

struct Words {
  std::vector<std::string> lines;  // each once, at most kLinesMax
  int exit_code = 0;
};

// The words of a command, on both outputs.
absl::StatusOr<Words> WordsOf(const std::string& command) {
  // The exit code comes first: of many words the end is cut off.
  CONVENE_ASSIGN_OR_RETURN(
      const auto stream,
      worker::OpenCommand(
          {.path = "",
           .command = absl::StrCat("words=$(", command, " 2>&1); echo $?; printf '%s' \"$words\"")},
          kPatience));
  std::string text(kBytesMax, '\0');
  CONVENE_ASSIGN_OR_RETURN(const size_t size, stream->Read(text.data(), text.size()));
  text.resize(size);
  Words words;
  const size_t code_end = std::min(text.find('\n'), text.size());
  if (!absl::SimpleAtoi(absl::string_view(text).substr(0, code_end), &words.exit_code)) {
    return absl::InternalError("the shell gives no exit code");
  }
  absl::flat_hash_set<std::string> seen;
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(text).substr(code_end), '\n', absl::SkipWhitespace())) {
    if (words.lines.size() == kLinesMax || !seen.emplace(line).second) continue;
    // torchfrtrace says this in every run.
    if (!absl::StartsWith(line, "tabulate is not installed")) words.lines.emplace_back(line);
  }
  return words;
}

// Our own reading, with Python's standard library alone. False: it failed.
bool ReadHere(const std::string& folder, const std::string& name, std::vector<std::string>* lines) {
  const auto python = agent::FindProgram("python3", ProcessEnvironment()("PATH").value_or(""));
  const auto words =
      // Isolated: no json.py of the current folder, or of PYTHONPATH, is run.
      python.ok()
          ? WordsOf(absl::StrCat(worker::CommandFor("{} -I -X utf8 -c ", *python),
                                 worker::CommandFor("{} ", kProgram),
                                 worker::CommandFor("{} ", folder), worker::CommandFor("{}", name)))
          : python.status();
  if (!words.ok()) {
    lines->push_back(absl::StrCat("the dumps were not read here: ", words.status().message()));
    return false;
  }
  lines->insert(lines->end(), words->lines.begin(), words->lines.end());
  if (words->lines.empty()) lines->push_back("all ranks started and ended the same collectives");
  return words->exit_code == 0;
}

// torch's own. False: it failed.
bool AskTorch(const std::string& folder, const std::string& name, std::vector<std::string>* lines) {
  const auto program =
      agent::FindProgram("torchfrtrace", ProcessEnvironment()("PATH").value_or(""));
  if (!program.ok()) {
    lines->push_back(
        "torchfrtrace was not asked: it is not in PATH; it comes with PyTorch: activate the "
        "environment in which torch is installed");
    return false;
  }
  // A rank that was killed left no dump.
  const absl::StatusOr<Words> words = WordsOf(
      absl::StrCat(worker::CommandFor("{} --allow-incomplete-ranks ", *program),
                   worker::CommandFor("--prefix={} ", name), worker::CommandFor("{}", folder)));
  if (!words.ok() || words->exit_code != 0) {
    // Of a traceback the last line says what it was.
    lines->push_back(absl::StrCat("torchfrtrace failed: ", !words.ok() ? words.status().message()
                                                           : words->lines.empty()
                                                               ? "it says nothing"
                                                               : words->lines.back()));
    return false;
  }
  lines->push_back(words->lines.empty() ? "torchfrtrace finds nothing" : "torchfrtrace:");
  for (const std::string& line : words->lines) lines->push_back(absl::StrCat("  ", line));
  return true;
}

}  // namespace

absl::StatusOr<TorchReading> ReadTorchDumps(const std::string& prefix) {
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
  TorchReading reading;
  const bool was_read = ReadHere(folder, name, &reading.lines);
  reading.is_read = AskTorch(folder, name, &reading.lines) || was_read;
  return reading;
}

}  // namespace convene::launcher
