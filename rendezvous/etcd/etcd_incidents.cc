#include "rendezvous/etcd/etcd_incidents.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "rendezvous/wire/status_json.h"
#include "spdlog/spdlog.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous::etcd {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(1);
// One request of etcd's takes 128 operations by default.
constexpr size_t kMostThatGo = 64;

}  // namespace

MonotonicTime EtcdIncidents::Deadline() const {
  return std::min(Clock::Real().Now() + kPatience, tenure_->until());
}

absl::Status EtcdIncidents::Change(const etcdserverpb::TxnRequest& request,
                                   MonotonicTime deadline) {
  CONVENE_ASSIGN_OR_RETURN(const auto response, client_->Txn(request, deadline));
  // Also after a decision whose answer was lost: the fence looks for the decision before it.
  if (!response.succeeded()) return absl::AbortedError("the journal in etcd is not as it was left");
  return absl::OkStatus();
}

etcdserverpb::RangeRequest EtcdIncidents::ReportsOf(const std::string& job_id) const {
  etcdserverpb::RangeRequest request;
  request.set_key(place_.incidents() + IncidentPrefix(job_id));
  request.set_range_end(EndOfPrefix(request.key()));
  return request;
}

absl::StatusOr<std::vector<std::string>> EtcdIncidents::KeysThatGo(const std::string& job_id,
                                                                   int64_t number,
                                                                   MonotonicTime deadline) {
  etcdserverpb::RangeRequest request = ReportsOf(job_id);
  request.set_keys_only(true);
  CONVENE_ASSIGN_OR_RETURN(const auto found, client_->Range(request, deadline));
  const std::string folder = place_.incidents();
  std::vector<std::string> names;
  for (const etcdserverpb::KeyValue& kv : found.kvs()) {
    names.push_back(kv.key().substr(folder.size()));
  }
  std::vector<std::string> keys = NamesThatGo(names, job_id, number);
  keys.resize(std::min(keys.size(), kMostThatGo));  // the oldest; the next report takes others
  for (std::string& key : keys) key.insert(0, folder);
  return keys;
}

absl::Status EtcdIncidents::Write(const std::string& job_id, const IncidentView& incident) {
  const std::string report = IncidentJson(incident);
  if (report.size() > Ledger::kRequestBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a report of ", report.size(), " bytes is too large for one request to etcd"));
  }
  const MonotonicTime deadline = Deadline();
  CONVENE_ASSIGN_OR_RETURN(const auto going, KeysThatGo(job_id, incident.number, deadline));
  etcdserverpb::TxnRequest request = ledger_->Fenced();
  etcdserverpb::PutRequest* put = request.add_success()->mutable_request_put();
  put->set_key(place_.incidents() + IncidentName(job_id, incident.number));
  put->set_value(report);
  for (const std::string& key : going) {
    request.add_success()->mutable_request_delete_range()->set_key(key);
  }
  return Change(request, deadline);
}

absl::StatusOr<std::vector<IncidentView>> EtcdIncidents::Read(const std::string& job_id) {
  etcdserverpb::RangeRequest request = ReportsOf(job_id);
  request.set_revision(tenure_->term());  // as EtcdJournal reads
  const auto found = client_->Range(request, read_by_);
  if (!found.ok()) {
    if (!std::exchange(has_complained_, true)) {
      spdlog::warn(
          "the reports of earlier incidents are not all read from etcd, and are not shown: {}",
          std::string(found.status().message()));
    }
    return found.status();
  }
  std::vector<std::string> reports;
  for (const etcdserverpb::KeyValue& kv : found->kvs()) reports.push_back(kv.value());
  return ReadReports(reports);
}

absl::Status EtcdIncidents::Forget(const std::string& job_id) {
  etcdserverpb::TxnRequest request = ledger_->Fenced();
  auto* const range = request.add_success()->mutable_request_delete_range();
  range->set_key(place_.incidents() + IncidentPrefix(job_id));
  range->set_range_end(EndOfPrefix(range->key()));
  const absl::Status forgotten = Change(request, Deadline());
  if (!forgotten.ok() && !keeps_forgotten_) {
    spdlog::warn("the reports of run {} stay in etcd until it takes changes: {}", job_id,
                 std::string(forgotten.message()));
  }
  keeps_forgotten_ = !forgotten.ok();
  return forgotten;
}

}  // namespace convene::rendezvous::etcd
