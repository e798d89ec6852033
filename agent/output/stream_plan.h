// PURE. Plans a worker's output and input. For output: torchrun's --redirects, --tee,
// --local-ranks-filter and --duplicate-{stdout,stderr}-filters, to the letter.
#pragma once

#include <optional>

#include "agent/options.h"
#include "agent/output/console.h"

namespace convene::agent {

//   redirected | teed | shown ranks have it | others
//   no         | no   | console             | nowhere
//   yes        | no   | file                | file
//   either     | yes  | file and console    | file
struct StreamPlan {
  bool on_console = true;
  bool has_prefix = true;
  bool in_file = false;
  bool filtered = false;  // the duplicate filters look at its lines: it is teed and shown
};

StreamPlan PlanStream(const LogOptions& options, OutputStream stream, int local_rank);

// This command's stdin.
struct InputFacts {
  bool is_open = false;
  bool is_terminal = false;
  bool in_foreground = false;  // the shell lets this command read from its terminal

  // A pipe or a file is every worker's, as under torchrun.
  bool is_shared() const { return is_open && !is_terminal; }
};

// The local rank of the worker that gets a terminal: a single one, or `debug_rank`. Several workers
// would each get a part of the typed text. Ctrl-C in it stays this command's: workers are in
// sessions of their own.
std::optional<int> TerminalWorker(const InputFacts& own, int local_world_size,
                                  std::optional<int> debug_rank);

// Whether any worker has a log file.
bool WritesFiles(const LogOptions& options, int local_world_size);

}  // namespace convene::agent
