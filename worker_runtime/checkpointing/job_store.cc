#include "worker_runtime/checkpointing/job_store.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

constexpr absl::Duration kStoreTimeout = absl::Seconds(60);
// More names would not help, and each is a question to the store.
constexpr int64_t kRanksNamedMax = 64;

std::string DataKey(const std::string& key_prefix) {
  return absl::StrCat(key_prefix, "/have-data");
}
std::string NewsKey(const std::string& key_prefix) {
  return absl::StrCat(key_prefix, "/data-news");
}

// "node-7 (4 ranks), node-9 (1 rank)".
absl::StatusOr<std::string> HostsOf(rendezvous::StoreClient& store, const std::string& key,
                                    int64_t ranks, absl::Duration timeout) {
  std::map<std::string, int> hosts;
  for (int64_t number = 1; number <= std::min(ranks, kRanksNamedMax); ++number) {
    CONVENE_ASSIGN_OR_RETURN(const std::string host,
                             store.Get(absl::StrCat(key, "/", number), timeout));
    ++hosts[host];
  }
  std::string text =
      absl::StrJoin(hosts, ", ", [](std::string* out, const std::pair<std::string, int>& host) {
        absl::StrAppend(out, host.first, " (", host.second,
                        host.second == 1 ? " rank)" : " ranks)");
      });
  if (ranks > kRanksNamedMax)
    absl::StrAppend(&text, " and ", ranks - kRanksNamedMax, " ranks more");
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<rendezvous::StoreClient>> OpenJobStore(const Contract& contract) {
  return rendezvous::StoreClient::Connect(contract.master_addr, contract.master_port,
                                          kStoreTimeout);
}

// Under torchrun there is no epoch: its restart count keeps attempts apart.
std::string KeyPrefix(const Contract& contract) {
  return absl::StrCat("convene-train/", contract.run_id, "/", contract.epoch.value(), "/",
                      contract.restart_count);
}

absl::Status TellOfData(rendezvous::StoreClient& store, const std::string& key_prefix,
                        const std::string& news) {
  return store.Set(NewsKey(key_prefix), news);
}

absl::Status WaitForData(rendezvous::StoreClient& store, const std::string& key_prefix,
                         int world_size, const DataWait& wait) {
  const std::string key = DataKey(key_prefix);
  MonotonicTime last_news = wait.clock->Now();
  absl::Status all = rendezvous::WaitForAll(store, key, world_size, wait.look_interval,
                                            "waiting for the data of all ranks");
  std::pair<int64_t, std::string> heard;
  while (absl::IsDeadlineExceeded(all)) {
    CONVENE_ASSIGN_OR_RETURN(const int64_t ready, store.Add(key, 0));
    const absl::StatusOr<std::string> news = store.Get(NewsKey(key_prefix), absl::ZeroDuration());
    if (!news.ok() && !absl::IsDeadlineExceeded(news.status())) return news.status();
    std::pair<int64_t, std::string> now_heard = {ready, news.value_or("")};
    const MonotonicTime now = wait.clock->Now();
    if (now_heard != heard) {
      heard = std::move(now_heard);
      last_news = now;
      wait.heard(heard.first, heard.second);
    } else if (now - last_news >= wait.silence_max) {
      return absl::DeadlineExceededError(
          absl::StrCat(heard.first, " of ", world_size,
                       " ranks have their data, and the others came no further ", "within ",
                       absl::FormatDuration(wait.silence_max), " (the last word: ",
                       heard.second.empty() ? "none" : heard.second, "); see what these nodes do"));
    }
    all = store.Get(absl::StrCat(key, "/all"), wait.look_interval).status();
  }
  return all;
}

absl::Status AgreeOnDevices(rendezvous::StoreClient& store, const std::string& key_prefix,
                            int world_size, const std::string& host_name, bool has_gpu,
                            absl::Duration timeout) {
  const std::string without_key = absl::StrCat(key_prefix, "/devices/without-gpu");
  if (!has_gpu) {
    CONVENE_ASSIGN_OR_RETURN(const int64_t number, store.Add(without_key, 1));
    CONVENE_RETURN_IF_ERROR(store.Set(absl::StrCat(without_key, "/", number), host_name));
  }
  CONVENE_RETURN_IF_ERROR(rendezvous::WaitForAll(store, absl::StrCat(key_prefix, "/devices/told"),
                                                 world_size, timeout,
                                                 "waiting for the devices of all ranks"));
  CONVENE_ASSIGN_OR_RETURN(const int64_t without, store.Add(without_key, 0));
  if (without == 0 || without == world_size) return absl::OkStatus();
  CONVENE_ASSIGN_OR_RETURN(const std::string hosts, HostsOf(store, without_key, without, timeout));
  return absl::FailedPreconditionError(absl::StrCat(
      without, " of ", world_size, " ranks have no GPU to train on: ", hosts,
      ". All ranks train on GPUs, or none: mend these hosts (nvidia-smi, CUDA_VISIBLE_DEVICES), "
      "leave them out, or train on the CPUs of all with --device cpu"));
}

// Rank 0 alone reads all values: each rank for itself would ask the store world_size^2 times.
absl::StatusOr<int64_t> AgreeOnLeast(rendezvous::StoreClient& store, const std::string& key,
                                     int rank, int world_size, int64_t value,
                                     absl::Duration timeout) {
  const auto key_of = [&](int of_rank) { return absl::StrCat(key, "/", of_rank); };
  const auto get = [&](const std::string& from) -> absl::StatusOr<int64_t> {
    CONVENE_ASSIGN_OR_RETURN(const std::string text, store.Get(from, timeout));
    int64_t number = 0;
    if (absl::SimpleAtoi(text, &number)) return number;
    return absl::InternalError(absl::StrCat("the store has no number as ", from, ": ", text));
  };
  const std::string least_key = absl::StrCat(key, "/least");
  if (rank != 0) {
    CONVENE_RETURN_IF_ERROR(store.Set(key_of(rank), absl::StrCat(value)));
    return get(least_key);
  }
  for (int other = 1; other < world_size; ++other) {
    CONVENE_ASSIGN_OR_RETURN(const int64_t theirs, get(key_of(other)));
    value = std::min(value, theirs);
  }
  CONVENE_RETURN_IF_ERROR(store.Set(least_key, absl::StrCat(value)));
  return value;
}

}  // namespace convene::worker
