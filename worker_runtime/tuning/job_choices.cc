#include "worker_runtime/tuning/job_choices.h"

#include <spdlog/spdlog.h>
#include <xxhash.h>

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// From a rank's count to its choice, which follows at once.
constexpr absl::Duration kLandPatience = absl::Seconds(30);

std::string Hex(uint64_t number) { return absl::StrCat(absl::Hex(number, absl::kZeroPad16)); }

// Rank 0's part: what the nodes have offered.
absl::StatusOr<ChoiceTable> Merged(rendezvous::StoreClient& store, const std::string& offers,
                                   absl::Duration timeout, const std::string& machine) {
  CONVENE_ASSIGN_OR_RETURN(const int64_t count, store.Add(offers, 0));
  std::map<int, ChoiceTable> by_rank;
  for (int64_t number = 1; number <= count; ++number) {
    CONVENE_ASSIGN_OR_RETURN(const std::string text,
                             store.Get(absl::StrCat(offers, "/", number), timeout));
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(text, absl::MaxSplits('\n', 1));
    int rank = 0;
    absl::StatusOr<ChoiceTable> table = ChoiceTable::Decode(parts.second, machine);
    if (table.ok() && absl::SimpleAtoi(parts.first, &rank)) by_rank.emplace(rank, *table);
  }
  ChoiceTable all(machine);
  for (auto table = by_rank.rbegin(); table != by_rank.rend(); ++table) all.PutAll(table->second);
  return all;
}

}  // namespace

// Rank 0 alone reads the offers: each rank for itself would ask the store ranks times nodes times.
absl::StatusOr<ChoiceTable> AgreeOnChoices(rendezvous::StoreClient& store,
                                           const ChoiceSharing& sharing, const ChoiceTable& own,
                                           const std::string& machine) {
  const std::string key = absl::StrCat(sharing.key_prefix, "/products");
  const std::string offers = absl::StrCat(key, "/offers");
  if (sharing.offers) {
    CONVENE_ASSIGN_OR_RETURN(const int64_t number, store.Add(offers, 1));
    CONVENE_RETURN_IF_ERROR(store.Set(absl::StrCat(offers, "/", number),
                                      absl::StrCat(sharing.rank, "\n", own.Encode())));
  }
  CONVENE_RETURN_IF_ERROR(rendezvous::WaitForAll(store, absl::StrCat(key, "/told"),
                                                 sharing.world_size, sharing.timeout,
                                                 "waiting for the tuned products of all ranks"));
  const std::string agreed_key = absl::StrCat(key, "/agreed");
  if (sharing.rank == 0) {
    CONVENE_ASSIGN_OR_RETURN(ChoiceTable all, Merged(store, offers, sharing.timeout, machine));
    CONVENE_RETURN_IF_ERROR(store.Set(agreed_key, all.Encode()));
    return all;
  }
  CONVENE_ASSIGN_OR_RETURN(const std::string text, store.Get(agreed_key, sharing.timeout));
  absl::StatusOr<ChoiceTable> agreed = ChoiceTable::Decode(text, machine);
  return agreed.ok() ? *std::move(agreed) : own;
}

absl::StatusOr<std::unique_ptr<JobChoices>> JobChoices::Start(
    const std::string& machine, std::optional<ChoiceFile> file, const ChoiceSharing& sharing,
    std::shared_ptr<rendezvous::StoreClient> store, Clock* clock) {
  ChoiceTable table = file.has_value() ? file->Read() : ChoiceTable(machine);
  if (store != nullptr) {
    CONVENE_ASSIGN_OR_RETURN(table, AgreeOnChoices(*store, sharing, table, machine));
  }
  return std::unique_ptr<JobChoices>(
      new JobChoices(machine, std::move(file), sharing, std::move(store), std::move(table), clock));
}

JobChoices::JobChoices(const std::string& machine, std::optional<ChoiceFile> file,
                       const ChoiceSharing& sharing, std::shared_ptr<rendezvous::StoreClient> store,
                       ChoiceTable table, Clock* clock)
    : sharing_(sharing),
      keys_(absl::StrCat(sharing.key_prefix, "/product/",
                         Hex(XXH3_64bits(machine.data(), machine.size())), "/")),
      clock_(clock),
      file_(std::move(file)),
      store_(std::move(store)),
      table_(std::move(table)) {}

std::string JobChoices::KeyOf(const std::string& product) const { return keys_ + product; }

void JobChoices::LoseStore(const absl::Status& why) {
  spdlog::warn(
      "rank {}: the job's store no longer carries the choices of products, so ranks may differ in "
      "the last bits: {}",
      sharing_.rank, std::string(why.message()));
  store_.reset();
}

std::optional<uint64_t> JobChoices::Ask(const std::string& key, absl::Duration patience) {
  const absl::StatusOr<std::string> text = store_->Get(key, patience);
  uint64_t algorithm = 0;
  if (text.ok() && absl::SimpleHexAtoi(*text, &algorithm)) return algorithm;
  const bool is_absent =
      patience == absl::ZeroDuration() && absl::IsDeadlineExceeded(text.status());
  if (!is_absent) {
    LoseStore(text.ok() ? absl::InternalError(absl::StrCat("it has no choice as ", key))
                        : text.status());
  }
  return std::nullopt;
}

std::optional<uint64_t> JobChoices::Find(const std::string& product) {
  MutexLock lock(&mutex_);
  std::optional<uint64_t> known = table_.Find(product);
  if (!known.has_value() && store_ != nullptr) {
    known = Ask(KeyOf(product), absl::ZeroDuration());
    if (known.has_value()) {
      table_.Put(product, *known);
      is_new_ = true;
    }
  }
  if (known.has_value()) ++found_;
  asked_ = clock_->Now();
  return known;
}

// A rank asks only when it has timed: its device's queue is then empty. A rank that waited for
// another one's timing could hold up the very collective for which that one waits.
uint64_t JobChoices::Land(const std::string& product, uint64_t algorithm) {
  MutexLock lock(&mutex_);
  ++timed_;
  timing_ += clock_->Now() - asked_;  // The caller's thread has timed since it asked.
  if (store_ != nullptr) {
    const std::string key = KeyOf(product);
    const absl::StatusOr<int64_t> turn = store_->Add(absl::StrCat(key, "/landed"), 1);
    if (turn.ok() && *turn == 1) {
      const absl::Status told = store_->Set(key, Hex(algorithm));
      if (!told.ok()) LoseStore(told);
    } else if (turn.ok()) {
      algorithm = Ask(key, kLandPatience).value_or(algorithm);
    } else {
      LoseStore(turn.status());
    }
  }
  table_.Put(product, algorithm);
  is_new_ = true;
  return algorithm;
}

void JobChoices::Keep() {
  MutexLock lock(&mutex_);
  if (std::exchange(is_new_, false) && file_.has_value() && table_.size() > 0) {
    const absl::Status kept = file_->Keep(table_);
    if (!kept.ok()) {
      spdlog::warn("the choices of products are not kept, and a restart times them anew: {}",
                   std::string(kept.message()));
      file_.reset();
    }
  }
  if (std::exchange(has_told_, true) || sharing_.rank != 0) return;
  spdlog::info("algorithms of products: {} known, {} timed in {:.2f} s; kept {}", found_, timed_,
               absl::ToDoubleSeconds(timing_),
               file_.has_value() ? "in " + file_->path() : "nowhere");
}

}  // namespace convene::worker
