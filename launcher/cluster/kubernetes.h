// PURE. Reads the variables that Kubernetes and its operators give the containers of a job.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/cluster/detected_job.h"
#include "tools/base/environment.h"

namespace convene::launcher {

// Whether this process runs in a pod: Kubernetes names its API server to every container.
bool InPod(const EnvironmentLookup& environment);

// The environment without what others put into it by mistake. For a Service NAME Kubernetes puts
// NAME_PORT=tcp://IP:PORT into every later pod of the namespace (so did Docker's links): a variable
// with such an address counts as not set. In a pod, two slips of Kubeflow's operator are mended:
// PET_STANDALONE="" means on, and PET_N_PROC_PER_NODE stands for PET_NPROC_PER_NODE.
EnvironmentLookup MeantEnvironment(EnvironmentLookup environment);

// The name with its domain that `hosts_file` (as /etc/hosts) gives the host; "" where it gives
// none. A kubelet writes a pod's name there if the pod has a subdomain.
std::string FullNameIn(absl::string_view hosts_file, absl::string_view host_name);

// Fills the fields that are still open, from each of these in turn:
// - PyTorchJob (and Volcano's PyTorch plug-in), in a pod: MASTER_ADDR, MASTER_PORT, RANK, which
//   counts pods, and WORLD_SIZE, which counts pods where PET_NNODES is not set. Where LOCAL_RANK is
//   set a launcher started this process: then the variables are the launcher's, and count workers;
// - Volcano: VC_TASK_INDEX with the lists VC_<TASK>_HOSTS;
// - JobSet: JOBSET_*, which our manifest takes from the pod's annotations;
// - an Indexed Job: JOB_COMPLETION_INDEX; a StatefulSet, if CONVENE_STATEFULSET names it. The pods
//   of both are NAME-INDEX, so the name of the first one follows from this one's.
// InvalidArgument where a variable is no number, where variables contradict each other, and where
// this host is no pod of the StatefulSet.
absl::Status DetectKubernetes(const EnvironmentLookup& environment, ProcessFacts process,
                              DetectedJob* job);

}  // namespace convene::launcher
