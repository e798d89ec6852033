// libFuzzer on every reader of bytes from outside but the store (store_fuzz.cc). It is one program,
// because building it costs more than running it: the input's first byte chooses the reader of the
// rest.
//
// A comment at each reader says what it checks besides the sanitizers.
#include <sys/types.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/core/hang_detector.h"
#include "agent/core/rank_reports.h"
#include "agent/hang/progress_page.h"
#include "agent/hang/timer_table.h"
#include "agent/output/error_record.h"
#include "launcher/cluster/host_list.h"
#include "launcher/command_table.h"
#include "launcher/flags.h"
#include "launcher/job_spec.h"
#include "launcher/launch/hostfile.h"
#include "launcher/launch/task.h"
#include "launcher/rendezvous_conf.h"
#include "proto/journal.pb.h"
#include "rendezvous/attend/job_table.h"
#include "rendezvous/etcd/etcd.pb.h"
#include "rendezvous/etcd/ledger.h"
#include "rendezvous/etcd/place.h"
#include "rendezvous/journal/file_journal.h"
#include "rendezvous/journal/record_wire.h"
#include "rendezvous/net/service_records.h"
#include "rendezvous/quorum/messages.h"
#include "rendezvous/server/front.h"
#include "rendezvous/web/http_request.h"
#include "rendezvous/wire/status_json.h"
#include "rendezvous/wire/wire.h"
#include "tests/fuzz/script.h"
#include "tests/sim/counters.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/host_port.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/contract/progress_page.h"
#include "worker_runtime/data/blend.h"
#include "worker_runtime/data/store/describe.h"
#include "worker_runtime/data/store/token_file.h"
#include "worker_runtime/data/store/token_layout.h"
#include "worker_runtime/data/store/token_source.h"
#include "worker_runtime/schedule/lower.h"
#include "worker_runtime/schedule/schedule_csv.h"
#include "worker_runtime/schedule/testing/play.h"
#include "worker_runtime/schedule/testing/write_csv.h"

namespace convene {
namespace {

using rendezvous::Job;
using rendezvous::JobTable;
using rendezvous::MemberId;
using rendezvous::Outbox;

// The folder lies in memory, not on the disk.
std::string TestFolder() {
  if (access("/dev/shm", W_OK) == 0) setenv("TEST_TMPDIR", "/dev/shm", /*overwrite=*/0);
  static const auto* const folder = new testing::TempDir();  // Left behind when a crash is found.
  static const int cleanup = std::atexit([] { RemoveTree(folder->path()).IgnoreError(); });
  static_cast<void>(cleanup);
  return folder->path();
}

// Four bytes decide; a request is refused with a status that there is, or eats what it was given.
void ReadPort(Script script) {
  const size_t piece = script.Byte() + size_t{1};
  const absl::string_view rest = script.Rest();
  const rendezvous::Protocol protocol = rendezvous::ProtocolOf(rest.substr(0, 4));
  CONVENE_CHECK(rest.size() < 4 || protocol != rendezvous::Protocol::kUndecided);
  CONVENE_CHECK(rest.size() < 4 || protocol == rendezvous::ProtocolOf(rest));
  rendezvous::HttpRequestReader reader;
  Script pieces(rest);
  while (!pieces.empty()) {
    absl::string_view input = pieces.Piece(piece);
    while (!input.empty()) {
      const size_t before = input.size();
      const auto outcome = reader.Read(&input);
      if (outcome == rendezvous::HttpRequestReader::Outcome::kRefused) {
        CONVENE_CHECK(reader.refusal() >= 400 && reader.refusal() <= 505);
        return;
      }
      CONVENE_CHECK(input.size() < before);
      if (outcome == rendezvous::HttpRequestReader::Outcome::kNeedsMore) break;
      CONVENE_CHECK(!reader.request().path.empty());
    }
  }
}

// A table of jobs and the agents that speak to it. After each event nothing is due, and the
// counters are right.
class Table {
 public:
  explicit Table(const std::vector<rendezvous::JobRecord>& records) {
    table_.StartRecording();
    table_.set_survives_restart(true);
    for (const rendezvous::JobRecord& record : records) table_.Restore(now_, record);
    Settle();
  }

  void Wait(absl::Duration duration) {
    now_ = now_ + duration;
    Settle();
  }

  void Hear(size_t speaker, const rendezvous::pb::AgentMessage& message) {
    const absl::StatusOr<rendezvous::AgentEnvelope> envelope = rendezvous::FromWire(message);
    if (!envelope.ok()) return;
    MemberId& id = speakers_[speaker];
    if (const auto* hello = std::get_if<rendezvous::Hello>(&envelope->body)) {
      Leave(speaker);
      id = last_id_ = last_id_.Next();
      jobs_.push_back(hello->job_id);
      const absl::Status joined = table_.Join(now_, id, envelope->incarnation, *hello, &outbox_);
      if (!joined.ok()) id = MemberId();
    } else {
      table_.Receive(now_, id, envelope->incarnation, envelope->epoch,
                     std::get<rendezvous::AgentEvent>(envelope->body), &outbox_);
    }
    Settle();
  }

  void Leave(size_t speaker) {
    table_.Disconnect(now_, std::exchange(speakers_[speaker], MemberId()), &outbox_);
    Settle();
  }

  // Checks that the table's records can be read and that another table goes on with them.
  void Restart() {
    const rendezvous::RecordChanges changes = table_.TakeChanges(now_);
    for (const std::string& id : changes.forgotten) written_.erase(id);
    for (const rendezvous::JobRecord& record : changes.jobs) {
      written_[record.founder.job_id] = rendezvous::ToWire(record, absl::UnixEpoch());
    }
    CONVENE_CHECK(!rendezvous::StatusJson(*table_.Views(now_, "")).empty());
    table_ = JobTable();
    table_.StartRecording();
    table_.set_survives_restart(true);
    for (const auto& [id, wire] : written_) {
      const absl::StatusOr<rendezvous::JobRecord> record =
          rendezvous::FromWire(wire, absl::UnixEpoch());
      CONVENE_CHECK(record.ok());
      table_.Restore(now_, *record);
    }
    Settle();
  }

 private:
  void Settle() {
    for (int ticks = 0; table_.wake_at() <= now_; ++ticks) {
      CONVENE_CHECK(ticks < 4);
      table_.Tick(now_, &outbox_);
    }
    outbox_ = Outbox();
    for (const std::string& id : jobs_) {
      if (const Job* job = table_.Find(id)) sim::CheckCounters(job->state());
    }
  }

  MonotonicTime now_ = MonotonicTime::FromEpoch(absl::Hours(1));
  JobTable table_;
  Outbox outbox_;
  std::map<size_t, MemberId> speakers_;
  std::vector<std::string> jobs_;
  std::map<std::string, rendezvous::v1::JobRecord> written_;
  MemberId last_id_;
};

// The journal is refused, or a daemon can go on with its records.
void ReadJournal(Script script) {
  const std::string folder = TestFolder();
  std::ofstream(folder + "/journal", std::ios::binary | std::ios::trunc) << script.Rest();
  const auto opened = rendezvous::FileJournal::Open({folder});
  if (!opened.ok()) return;
  Table table(opened->jobs);
  table.Wait(absl::Seconds(10));
  table.Wait(absl::Hours(24));
}

// One record, without the checksum that hides it from the fuzzer.
void ReadRecord(Script script) {
  rendezvous::v1::JobRecord wire;
  const absl::string_view bytes = script.Rest();
  if (!wire.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const absl::StatusOr<rendezvous::JobRecord> record =
      rendezvous::FromWire(wire, absl::UnixEpoch());
  if (!record.ok()) return;
  Table table({*record});
  table.Wait(absl::Seconds(10));
  table.Wait(absl::Hours(24));
}

// Messages of agents in any order. Each step: the sender or an event, a length, a message.
void ReadMessages(Script script) {
  Table table({});
  while (!script.empty()) {
    const uint8_t step = script.Byte();
    if (step >= 240) {
      table.Wait(absl::Milliseconds(1 << (step - 240)));
    } else if (step >= 232) {
      table.Leave(step - 232);
    } else if (step == 231) {
      table.Restart();
    } else {
      const absl::string_view bytes = script.Piece(script.Byte());
      rendezvous::pb::AgentMessage message;
      if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
        table.Hear(step % 8, message);
      }
    }
  }
  table.Restart();
  table.Wait(absl::Hours(24));
}

// A progress page with any content, looked at again and again.
void ReadPages(Script script) {
  static auto* const page = agent::ProgressPage::Create(TestFolder())->release();
  const auto flags = script.Byte();
  agent::HangLimits limits;
  limits.startup = absl::Seconds(flags % 16 * 10);
  agent::HangDetector detector(limits, absl::Seconds(1));
  agent::RankReports reports;
  MonotonicTime now = MonotonicTime::FromEpoch(absl::Hours(1));
  detector.BeginEpoch(0, 2, now);
  while (!script.empty()) {
    now = now + absl::Milliseconds(100 * script.Byte());
    const absl::string_view bytes = script.Piece(sizeof(contract::ProgressPage));
    std::fstream(page->path(), std::ios::binary | std::ios::in | std::ios::out) << bytes;
    std::map<int, agent::WorkerReading> readings;
    if (const auto reading = page->Read()) {
      CONVENE_CHECK(!reading->phase.empty() && reading->step >= 0);
      readings[0] = *reading;
    }
    const auto verdict = detector.Look(readings, now);
    CONVENE_CHECK(!verdict.has_value() || !verdict->local_ranks.empty());
    detector.Progress(now);
    if (reports.IsDue(now)) CONVENE_CHECK(reports.Report(readings, now).size() == readings.size());
  }
}

void ReadErrorFile(Script script) {
  const std::string json(script.Rest());
  const auto record = agent::ParseErrorRecord(json);
  CONVENE_CHECK(!record.has_value() || (!record->lines.empty() && record->lines.size() <= 3));
  agent::WithErrorCode(json, -9);
}

// Words and PET_ variables, each ended by a zero byte.
// A command that gives its flags to `use`.
template <typename Flags>
launcher::Command Row(const std::string& name, const FlagReader::Rules& rules,
                      std::function<void(const Flags&)> use) {
  const auto add_flags = [use = std::move(use)](FlagReader* reader) -> launcher::Action {
    const auto flags = std::make_shared<Flags>();
    launcher::AddFlags(reader, flags.get());
    return [flags, use] {
      use(*flags);
      return 0;
    };
  };
  return {name, "", "", rules, add_flags};
}

void ReadCommandLine(Script script) {
  const bool as_torchrun = script.Byte() % 2 == 1;
  std::vector<std::string> words;
  std::map<std::string, std::string> environment;
  for (const absl::string_view word : absl::StrSplit(script.Rest(), '\0')) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (!word.empty() && word[0] >= 'A' && word[0] <= 'Z') {
      environment.insert(pair);
    } else {
      words.emplace_back(word);
    }
  }
  const EnvironmentLookup lookup =
      [&environment](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  };
  const auto check_spec = [&](const launcher::RunFlags& flags) {
    launcher::Machine machine;
    machine.host_name = "here";
    const auto spec = launcher::MakeJobSpec(flags, lookup, machine, "random");
    CONVENE_CHECK(spec.ok() || !spec.status().message().empty());
  };
  const FlagReader::Rules rules = {.like_argparse = as_torchrun, .variable_prefix = "PET_"};
  launcher::Program program = {"convene", "", {Row<launcher::RunFlags>("run", rules, check_spec)}};
  if (!as_torchrun) {
    const auto nothing = [](const auto&) {};
    program.commands.push_back(Row<launcher::ServeFlags>("serve", {}, nothing));
    program.commands.push_back(Row<launcher::StatusFlags>("status", {}, nothing));
    program.commands.push_back(Row<launcher::LogsFlags>("logs", {}, nothing));
  }
  const auto call = launcher::ReadCall(program, words, lookup);
  CONVENE_CHECK(call.ok() || !call.status().message().empty());
  if (call.ok() && call->action != nullptr) call->action().status().IgnoreError();
}

void ReadConf(Script script) {
  std::vector<std::string> reasons;
  const auto reader = static_cast<launcher::ConfReader>(script.Byte() % 3);
  launcher::ParseRendezvousConf(std::string(script.Rest()), reader, &reasons)
      .status()
      .IgnoreError();
}

// Another daemon's answer, as `convene status` prints it.
void ReadStatus(Script script) {
  const absl::string_view bytes = script.Rest();
  rendezvous::pb::JobStatus status;
  if (!status.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  rendezvous::StatusJson({rendezvous::FromWire(status)});
}

// Requests that processes write to the FIFO of the file timer.
void ReadTimers(Script script) {
  agent::TimerTable table;
  MonotonicTime now = MonotonicTime::FromEpoch(absl::Hours(1));
  for (const absl::string_view line : absl::StrSplit(script.Rest(), '\n')) {
    now = now + absl::Milliseconds(line.size());
    const auto request = agent::ParseTimerRequest(std::string(line));
    if (!request.has_value()) continue;
    CONVENE_CHECK(request->pid > 0 && request->signal >= 0);
    table.Apply(*request, absl::UnixEpoch(), now);
    int64_t last = 0;
    for (const auto& expired : table.TakeExpired(now)) {
      CONVENE_CHECK(expired.pid > last && expired.late >= absl::ZeroDuration());
      last = expired.pid;
    }
    CONVENE_CHECK(table.next_due() > now);
  }
}

// A pipeline schedule: refused, or it can be written and lowered, and comes to an end by the rules
// of NCCL and by those of Gloo.
void ReadSchedule(Script script) {
  using worker::SendRule;
  const absl::StatusOr<worker::Schedule> schedule = worker::ReadCsv(script.Rest());
  if (!schedule.ok()) return;
  const absl::StatusOr<worker::Schedule> again = worker::ReadCsv(worker::WriteCsv(*schedule));
  CONVENE_CHECK(again.ok() && again->ranks == schedule->ranks &&
                again->placement == schedule->placement);
  for (const int receives_ahead : {0, 2}) {
    const auto plans = worker::Lower(*schedule, receives_ahead);
    CONVENE_CHECK(plans.ok());
    for (const SendRule rule : {SendRule::kBuffered, SendRule::kWaitsForReceive}) {
      CONVENE_CHECK(worker::Play(*schedule, *plans, rule, /*seed=*/7).ok());
    }
  }
}

void Put(const std::string& path, absl::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Documents and sequences of tokens must follow each other, and everything that they hold can be
// read.
void WalkTokens(const worker::TokenSource& source) {
  CONVENE_CHECK(source.token_count() >= 0);
  int64_t begin = 0;
  for (int64_t document = 0; document < source.document_count(); ++document) {
    const int64_t end = source.document_end(document);
    CONVENE_CHECK(end >= begin && end <= source.token_count());
    begin = end;
  }
  begin = 0;
  for (int64_t sequence = 0; sequence < source.sequence_count(); ++sequence) {
    const int64_t end = source.sequence_end(sequence);
    CONVENE_CHECK(end >= begin && end <= source.token_count());
    begin = end;
  }
  std::vector<int32_t> ids(source.token_count());
  std::vector<uint8_t> counted(source.token_count());
  source.Read(0, source.token_count(), ids.data());
  source.ReadCounted(0, source.token_count(), counted.data());
  for (const int32_t id : ids) CONVENE_CHECK(id >= -1);
  for (const uint8_t bit : counted) CONVENE_CHECK(bit <= 1);
  source.content_hash();
  worker::VerifyTokens(source, nullptr).status().IgnoreError();
}

// A file of ours, with the checksums set right that would hide its parts from the fuzzer.
std::string WithChecksums(std::string bytes) {
  worker::TokenFileHeader header;
  if (bytes.size() < sizeof(header)) return bytes;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (worker::CountsFit(header, static_cast<int64_t>(bytes.size()))) {
    const worker::TokenFileParts parts = worker::PartsOf(header);
    const auto hash = [&bytes](int64_t begin, int64_t size) {
      const absl::string_view all = bytes;
      const absl::string_view part = all.substr(std::min<size_t>(begin, all.size()), size);
      return XXH3_64bits(part.data(), part.size());
    };
    header.identity_hash = hash(sizeof(header), header.identity_bytes);
    header.document_hash = hash(parts.documents, parts.counted - parts.documents);
    header.checksum = worker::ChecksumOf(header);
  }
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

// Files of tokens: ours, Megatron's, llm.c's, nanotron's; and a state to write on from. Each part
// but the last begins with its length in one byte.
void ReadTokenFiles(Script script) {
  const std::string folder = TestFolder();
  const uint8_t kind = script.Byte() % 5;
  std::string path = absl::StrCat(folder, "/tokens");
  if (kind == 0) {
    Put(path, WithChecksums(std::string(script.Rest())));
  } else if (kind == 1) {
    path += ".m";
    Put(path + ".idx", script.Piece(script.Byte()));
    Put(path + ".bin", script.Rest());
  } else if (kind == 2) {
    Put(path, script.Rest());
  } else if (kind == 3) {
    path += ".ds";
    const uint8_t present = script.Byte();
    for (const auto& [bit, suffix] :
         {std::pair(1, ".index"), std::pair(2, ".metadata"), std::pair(4, ".loss")}) {
      unlink((path + suffix).c_str());
      if ((present & bit) != 0) Put(path + suffix, script.Piece(script.Byte()));
    }
    Put(path, script.Rest());
  } else {
    Put(path, script.Piece(script.Byte()));
    Put(path + ".documents", script.Piece(script.Byte()));
    Put(path + ".counted", script.Piece(script.Byte()));
    auto writer = worker::TokenFileWriter::Resume(path, script.Rest());
    if (!writer.ok()) return;
    CONVENE_CHECK(writer->Append({0}, {}).ok() && writer->Finish().ok());
  }
  const auto source = worker::OpenTokenSource(path);
  CONVENE_CHECK(source.ok() || !source.status().message().empty());
  if (source.ok()) WalkTokens(**source);
}

void ReadBlend(Script script) {
  const auto paths = worker::ParseBlend(script.Rest());
  if (!paths.ok()) return;
  std::vector<double> shares;
  for (const worker::WeightedPath& path : *paths) {
    CONVENE_CHECK(!path.path.empty());
    if (path.weight.has_value()) shares.push_back(*path.weight);
  }
  if (shares.empty()) return;
  const worker::Blend blend(worker::WeightsOfShares(shares));
  for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{1} << 50}) {
    const worker::Blend::Place place = blend.At(position);
    CONVENE_CHECK(place.source >= 0 && place.source < static_cast<int>(shares.size()) &&
                  place.index >= 0 && place.index <= position);
  }
}

// An agent can dial every place of the list that DNS gave.
void ReadServices(Script script) {
  const auto places = rendezvous::ParseServiceAnswer(script.Rest());
  if (!places.ok()) return;
  CONVENE_CHECK(!places->empty() && places->size() <= rendezvous::kMostServiceRecords);
  for (const HostPort& place : *places) {
    const auto read = ParseHostPort(FormatHostPort(place.host, place.port), std::nullopt);
    CONVENE_CHECK(read.ok() && read->host == place.host && read->port == place.port);
  }
}

// No host that a list names is an option of ssh.
void CheckHosts(const std::vector<launcher::LaunchHost>& hosts) {
  for (const launcher::LaunchHost& host : hosts) {
    CONVENE_CHECK(!launcher::HostOf(host).empty() && host.name[0] != '-');
  }
}

// Lists of hosts: a file's, LSF's, Slurm's, and a choice of the first.
void ReadHosts(Script script) {
  const std::string choice(script.Piece(script.Byte()));
  const std::string text(script.Rest());
  if (const auto hosts = launcher::ParseLsfHosts(text); hosts.ok()) CheckHosts(*hosts);
  if (const auto names = launcher::ExpandHostList(text); names.ok()) {
    CONVENE_CHECK(names->size() <= launcher::kMostHosts);
  }
  const auto hosts = launcher::ParseHostfile(text, "hosts");
  if (!hosts.ok()) return;
  CheckHosts(*hosts);
  for (const bool includes : {true, false}) {
    const auto chosen = launcher::ChooseHosts(
        *hosts, {.include = includes ? choice : "", .exclude = includes ? "" : choice});
    CONVENE_CHECK(!chosen.ok() || (!chosen->empty() && chosen->size() <= hosts->size()));
  }
}

// A task of `convene launch`, in two pieces: what is read is written as the same bytes. And the
// lines that come back.
void ReadTask(Script script) {
  const size_t first = script.Byte();
  const std::string text(script.Rest());
  launcher::HeartbeatFilter filter;
  const std::string lines =
      filter.Add(text.substr(0, first)) + filter.Add(text.substr(std::min(first, text.size())));
  launcher::ReadNews(lines + filter.End());
  launcher::TaskReader reader;
  size_t taken = 0;
  for (const absl::string_view piece :
       {absl::string_view(text).substr(0, first),
        absl::string_view(text).substr(std::min(first, text.size()))}) {
    if (reader.task().has_value()) break;
    const auto count = reader.Add(piece);
    if (!count.ok()) return;
    CONVENE_CHECK(*count <= piece.size());
    taken += *count;
  }
  if (!reader.task().has_value()) return;
  launcher::TaskReader again;
  CONVENE_CHECK(again.Add(launcher::EncodeTask(*reader.task())).ok());
  CONVENE_CHECK(again.task() == reader.task() && taken <= text.size());
}

// The contents of etcd under the daemon's prefix, as another program may have left it: pairs of a
// key and a value. It is refused, or a daemon can write all of it again.
void ReadLedger(Script script) {
  const rendezvous::etcd::Place place;
  std::vector<etcdserverpb::KeyValue> found;
  while (!script.empty() && found.size() < 64) {
    etcdserverpb::KeyValue pair;
    const uint8_t kind = script.Byte();
    pair.set_key(
        absl::StrCat(kind % 2 == 0 ? place.jobs() : place.parts(), script.Piece(script.Byte())));
    pair.set_value(std::string(script.Piece(script.Byte())));
    found.push_back(std::move(pair));
  }
  rendezvous::etcd::Ledger ledger(place, 7, 3);
  const auto records = ledger.Load(found);
  if (!records.ok()) return;
  for (const rendezvous::v1::JobRecord& record : *records)
    ledger.Want(record.founder().job_id(), record);
  while (!ledger.is_settled()) {
    etcdserverpb::TxnResponse applied;
    ledger.Next();
    applied.set_succeeded(true);
    CONVENE_CHECK(ledger.Answered(applied).ok());
  }
}

using Reader = void (*)(Script);
constexpr Reader kReaders[] = {ReadPort,      ReadJournal,     ReadRecord, ReadMessages, ReadPages,
                               ReadErrorFile, ReadCommandLine, ReadConf,   ReadStatus,   ReadTimers,
                               ReadSchedule,  ReadTokenFiles,  ReadBlend,  ReadServices, ReadHosts,
                               ReadTask,      ReadLedger};

}  // namespace
}  // namespace convene

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  convene::Script script(absl::string_view(reinterpret_cast<const char*>(data), size));
  const uint8_t reader = script.Byte();
  convene::kReaders[reader % std::size(convene::kReaders)](script);
  return 0;
}
