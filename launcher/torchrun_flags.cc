#include "absl/strings/str_cat.h"
#include "launcher/flags.h"
#include "rendezvous/quorum/messages.h"

namespace convene::launcher {
namespace {

using agent::NumaBinding;

void AddNodeFlags(FlagReader* reader, RunFlags* flags) {
  reader->Group("Nodes and where they meet");
  reader->Option("nnodes", &flags->nnodes, "nodes: N, or MIN:MAX for an elastic job (default 1)",
                 {.value = "N|MIN:MAX"});
  reader->Switch("standalone", &flags->standalone,
                 "the job is this node alone, without a rendezvous and an address");
  reader->Option(
      "rdzv-endpoint", &flags->rdzv_endpoint,
      absl::StrCat("where the nodes meet; the node that owns HOST serves it when no "
                   "other process does. Several: daemons (`convene serve --journal`) "
                   "that take turns, and no node serves. srv:_SERVICE._tcp.DOMAIN: those that "
                   "DNS names (default port ",
                   kDefaultRendezvousPort, ")"),
      {.value = "HOST[:PORT],..."});
  reader->Option("rdzv-id", &flags->rdzv_id, "the job's name, the same on every node",
                 {.value = "ID"});
  reader->Option("rdzv-backend", &flags->rdzv_backend,
                 "all mean Convene's own rendezvous; static meets at --master-addr",
                 {.choices = {"convene", "c10d", "static", "etcd", "etcd-v2"}});
  reader->Option("rdzv-conf", &flags->rdzv_conf,
                 "join_timeout, last_call_timeout, keep_alive_interval, read_timeout, timeout "
                 "(seconds), keep_alive_max_attempt, is_host, rank; others have no effect",
                 {.value = "K=V,..."});
  reader->Option("node-rank", &flags->node_rank, "this node's place in the order of nodes",
                 {.value = "R", .least = 0, .most = rendezvous::kMostNodesPerJob - 1});
  reader->Option("master-addr", &flags->master_addr,
                 "host of the first node, where static jobs meet (default 127.0.0.1)",
                 {.value = "HOST"});
  reader->Option("master-port", &flags->master_port,
                 "port where static jobs meet and have their workers' store (default 29500); on "
                 "one node, or with --rdzv-endpoint: port of the store (default any free one; with "
                 "--rdzv-backend static the port of the endpoint)",
                 {.value = "PORT", .least = 0, .most = 65535});
  reader->Option("local-addr", &flags->local_addr,
                 "name or address by which other nodes reach this one", {.value = "ADDRESS"});
}

void AddWorkerFlags(FlagReader* reader, RunFlags* flags) {
  reader->Group("Workers");
  reader->Option(
      "nproc-per-node", &flags->nproc_per_node,
      "workers on this node: a number, gpu, xpu, cpu, or auto (GPUs, else CPUs). Default: "
      "1; under srun, one for each of several tasks on a node, else one for each GPU that "
      "Slurm gave",
      {.value = "N"});
  reader->Switch("module", &flags->module, "the program is a Python module", {.letter = 'm'});
  reader->Switch("no-python", &flags->no_python, "run the program by itself, not under Python");
  reader->Switch("run-path", &flags->run_path,
                 "run the script by Python's runpy.run_path; wins over --no-python");
  reader->Option("role", &flags->options.hello.role,
                 "ROLE_NAME of the workers (default \"default\"); ROLE_RANK counts within it",
                 {.value = "NAME"});
  reader->Switch("virtual-local-rank", &flags->options.virtual_local_rank,
                 "each worker sees one device only, and LOCAL_RANK 0");
  reader->Choice<NumaBinding>("numa-binding", &flags->options.numa_binding,
                              {{"node", NumaBinding::kNode},
                               {"socket", NumaBinding::kSocket},
                               {"exclusive", NumaBinding::kExclusive},
                               {"core-complex", NumaBinding::kCoreComplex}},
                              "bind each worker to CPUs near its device",
                              {.from_environment = false});
  reader->Option("start-method", &flags->start_method, "no effect: workers are always new programs",
                 {.choices = {"spawn", "fork", "forkserver"}});
}

void AddFailureFlags(FlagReader* reader, RunFlags* flags) {
  reader->Group("Failures and the end");
  reader->Option("max-restarts", &flags->options.hello.max_restarts,
                 "failures the job may survive (default 0)", {.value = "N", .least = 0});
  reader->Option("monitor-interval", &flags->monitor_interval_seconds,
                 "no effect: exits are events here, nothing polls", {.value = "SECONDS"});
  reader->Option("shutdown-timeout", &flags->shutdown_timeout,
                 "time from the signal to a worker to its SIGKILL (default "
                 "TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30)",
                 {.value = "SECONDS", .variables = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT"}});
  reader->Option("signals-to-handle", &flags->signals_to_handle,
                 "signals that stop the workers in order and then this command (default "
                 "SIGTERM,SIGINT,SIGHUP,SIGQUIT)",
                 {.value = "NAMES"});
}

void AddLogFlags(FlagReader* reader, RunFlags* flags) {
  reader->Group("Output");
  reader->Option("log-dir", &flags->options.log.directory,
                 "write the workers' output and errors to files below DIR",
                 {.value = "DIR", .is_directory = true});
  reader->Option("redirects", &flags->redirects,
                 "to files only: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank: 0:1,1:2",
                 {.value = "STREAMS", .letter = 'r'});
  reader->Option("tee", &flags->tee, "to files and the console, written as --redirects",
                 {.value = "STREAMS", .letter = 't'});
  reader->Option("log-line-prefix-template", &flags->log_line_prefix_template,
                 "prefix of each line on the console, from ${role_name} ${local_rank} ${rank} "
                 "${hostname} ${time}",
                 {.value = "TEXT", .variables = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"}});
  AddRanksFlag(reader, "local-ranks-filter", rendezvous::kMostWorkersPerNode,
               &flags->options.log.shown_local_ranks,
               "only these workers on the console: 0,3 or 0-7");
  reader->Option("duplicate-stdout-filters", &flags->duplicate_stdout_filters,
                 "lines with one of these words also go to filtered_stdout.log; ,, is a comma",
                 {.value = "WORD,..."});
  reader->Option("duplicate-stderr-filters", &flags->duplicate_stderr_filters,
                 "the same for stderr", {.value = "WORD,..."});
  reader->Option("event-log-handler", &flags->event_log_handler,
                 "no effect: this command's log has the events", {.value = "NAME"});
  reader->Option("logs-specs", &flags->logs_specs,
                 "only default: plug-ins of torchrun are Python and cannot run here",
                 {.value = "NAME", .from_environment = false});
}

}  // namespace

void AddTorchrunFlags(FlagReader* reader, RunFlags* flags) {
  AddNodeFlags(reader, flags);
  AddWorkerFlags(reader, flags);
  AddFailureFlags(reader, flags);
  AddLogFlags(reader, flags);
}

}  // namespace convene::launcher
