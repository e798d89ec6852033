#include "launcher/data/data_command.h"

namespace convene::launcher {
namespace {

constexpr char kDescription[] =
    "Make, show, check and convert files of training tokens. convene-train's --data takes these "
    "files, and also Megatron-LM's, llm.c's and nanotron's.";

Program DataProgram() {
  return {
      "convene data",
      kDescription,
      {CommandRow("prepare", "make a token file of text or JSON lines",
                  "Make a token file of texts: plain text or JSON lines, packed by gzip or zstd "
                  "or not. INPUT may be a pattern for thousands of files. The command takes all "
                  "CPUs and little memory, and goes on where it was after a kill: give the same "
                  "command again. FILE is the same from any number of threads.",
                  PrepareCommand),
       CommandRow("show", "what a token file is, and a sample of it",
                  "Show what a token file is (of any format that convene-train reads), and one "
                  "of its documents as text.",
                  ShowCommand),
       CommandRow("verify", "compare token files with their checksums",
                  "Read token files to their ends: each must be whole, its ids within its "
                  "vocabulary, its documents in order, and its checksums right where the format "
                  "has any.",
                  VerifyCommand),
       CommandRow("blend", "show what a mixture of token files gives",
                  "Show each file's share in the samples, and how often its tokens are read "
                  "while as many tokens pass as all files have.",
                  BlendCommand),
       CommandRow("convert", "write a token file in another program's format",
                  "Write the documents of INPUT, a token file of any known format, to OUTPUT in "
                  "the format of Convene, Megatron-LM, llm.c or nanotron.",
                  ConvertCommand),
       CommandRow(
           "cache", "list and prune the token files that convene-train keeps",
           "List the token files that convene-train has made of texts and keeps in its "
           "cache: the size, when each was last used, whether a process uses it now, and what "
           "it was made from. A line below a file says that it is surplus, and why; with "
           "--prune such files are removed. A file in use is never removed.",
           CacheCommand)}};
}

}  // namespace

Command DataRow() {
  return ProgramRow("data", "make, show and convert files of training tokens", kDescription,
                    DataProgram);
}

}  // namespace convene::launcher
