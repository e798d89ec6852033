#include "launcher/flags.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "launcher/kept_token.h"
#include "rendezvous/client/places.h"
#include "rendezvous/lock/tls_context.h"
#include "rendezvous/lock/token.h"
#include "rendezvous/net/service_records.h"
#include "tools/base/core_files.h"
#include "tools/base/environment.h"
#include "tools/base/host_port.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

constexpr int64_t kStoreMemoryMin = 1 << 20;
constexpr int kShortestLeaderLease = 2;
constexpr int kLongestLeaderLease = 60;

// Whether the flags for the place of the jobs go together.
absl::Status CheckMemoryFlags(const ServeFlags& flags) {
  const rendezvous::etcd::TlsFiles& tls = flags.etcd_tls;
  if (tls.cert.empty() != tls.key.empty()) {
    return absl::InvalidArgumentError("--etcd-cert and --etcd-key go together: give both");
  }
  if (!tls.cert.empty() && tls.ca.empty()) {
    return absl::InvalidArgumentError("--etcd-cert wants --etcd-ca: the CAs of etcd's members");
  }
  if (!tls.ca.empty() && !flags.journal.has_value()) {
    return absl::InvalidArgumentError("--etcd-ca is of no use without --journal");
  }
  if (flags.leader_lease != ServeFlags::kLeaderLease && !flags.journal.has_value()) {
    return absl::InvalidArgumentError("--leader-lease is of no use without --journal");
  }
  if ((flags.journal.has_value() || flags.standby) && flags.port == 0) {
    return absl::InvalidArgumentError(
        "--port 0 is another port in each turn, which no agent finds: give a fixed one");
  }
  if (flags.standby && flags.state_dir.empty()) {
    return absl::InvalidArgumentError(
        "--standby wants --state-dir, a folder that all of them share");
  }
  if (!flags.journal.has_value() || flags.state_dir.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--journal and --state-dir exclude each other: the jobs are kept in one place");
}

void AddMemoryFlags(FlagReader* reader, ServeFlags* flags) {
  reader->Option("state-dir", &flags->state_dir,
                 "directory of the journal, on a local disk: a daemon that ends, in whatever way, "
                 "and is started again with it goes on with its jobs, and no worker notices",
                 {.value = "DIR", .is_directory = true});
  reader->Switch("standby", &flags->standby,
                 "daemons on several machines take turns with --state-dir on a shared folder (NFS "
                 "with locks): one serves, and the others wait for its lock. --journal promises "
                 "more. Agents get all of them: --rdzv-endpoint a,b,c");
  reader->Custom(
      "journal",
      [flags](const std::string& url) -> absl::Status {
        CONVENE_ASSIGN_OR_RETURN(flags->journal, rendezvous::etcd::ParsePlace(url));
        return absl::OkStatus();
      },
      "the journal in etcd, in place of --state-dir: of several daemons with the same one, on "
      "machines of their own, one leads, and another takes over when it ends or its machine does. "
      "Agents get all of them: --rdzv-endpoint a,b,c. PORT is 2379, PREFIX is convene, where not "
      "given",
      {.value = "etcd://HOST[:PORT],...[/PREFIX]"});
  reader->Custom(
      "leader-lease",
      [flags](const std::string& text) {
        int seconds = 0;
        if (!absl::SimpleAtoi(text, &seconds) || seconds < kShortestLeaderLease ||
            seconds > kLongestLeaderLease) {
          return absl::InvalidArgumentError(absl::StrCat(
              "write whole seconds from ", kShortestLeaderLease, " to ", kLongestLeaderLease));
        }
        flags->leader_lease = absl::Seconds(seconds);
        return absl::OkStatus();
      },
      "with --journal: how long the daemons wait for a leader that says nothing. It has to be "
      "longer than etcd takes to find a leader of its own, 1 to 2 s (default 4)",
      {.value = "SECONDS"});
  reader->Option("etcd-ca", &flags->etcd_tls.ca,
                 "with --journal: the connections to etcd are TLS, and its members have a "
                 "certificate of these CAs, in PEM, with the name or address in --journal",
                 {.value = "FILE"});
  reader->Option("etcd-cert", &flags->etcd_tls.cert,
                 "... this daemon's certificate, where etcd wants one (--client-cert-auth)",
                 {.value = "FILE"});
  reader->Option("etcd-key", &flags->etcd_tls.key,
                 "... the private key of --etcd-cert, in a file that its owner alone may read. The "
                 "three files are read whenever the daemon begins to stand by",
                 {.value = "FILE"});
  reader->Check([flags] {
    if (!flags->etcd_tls.key.empty()) LeaveNoCoreFile();
    return CheckMemoryFlags(*flags);
  });
}

}  // namespace

void AddFlags(FlagReader* reader, ServeFlags* flags) {
  reader->Option("host", &flags->host, "address to listen on (default 0.0.0.0: all of them)",
                 {.value = "ADDRESS"});
  reader->Option("port", &flags->port,
                 absl::StrCat("TCP port, 0 for any free one, which the log tells (default ",
                              kDefaultRendezvousPort, ")"),
                 {.value = "PORT", .least = 0, .most = 65535});
  AddMemoryFlags(reader, flags);
  AddStoreMemoryFlag(reader, &flags->store_bytes_max);
  reader->Switch(
      "no-store", &flags->no_store,
      "no key-value store on this port: a script or a stock torchrun that connects to it "
      "as to a TCPStore is closed. The workers of `convene run` have their store from "
      "the node of rank 0, and notice nothing");
  reader->Check([flags]() -> absl::Status {
    if (!flags->no_store || flags->store_bytes_max == 0) return absl::OkStatus();
    return absl::InvalidArgumentError("--store-memory is of no use with --no-store");
  });
  AddCredentialFlags(reader, &flags->credentials);
}

void AddCredentialFlags(FlagReader* reader, rendezvous::Credentials* credentials) {
  AddJoinTokenFlag(reader, &credentials->join_token);
  reader->Option("tls-cert", &credentials->tls_cert,
                 "this process's certificate in PEM: all connections are TLS, and only processes "
                 "with a certificate of the CA in --tls-ca join, read and look; together with a "
                 "join token a member needs both. A daemon's certificate has the name of its "
                 "endpoint (default $CONVENE_TLS_CERT; tools/certs makes a small CA)",
                 {.value = "FILE", .variables = {"CONVENE_TLS_CERT"}});
  reader->Option("tls-key", &credentials->tls_key,
                 "the private key of --tls-cert, without a passphrase, in a file that its owner "
                 "alone may read (default $CONVENE_TLS_KEY)",
                 {.value = "FILE", .variables = {"CONVENE_TLS_KEY"}});
  reader->Option("tls-ca", &credentials->tls_ca,
                 "the certificates of the CAs by which this process takes others. The three files "
                 "are read again when they change (default $CONVENE_TLS_CA)",
                 {.value = "FILE", .variables = {"CONVENE_TLS_CA"}});
  reader->Check([credentials]() -> absl::Status {
    const rendezvous::Credentials& given = *credentials;
    const size_t named = !given.tls_cert.empty() + !given.tls_key.empty() + !given.tls_ca.empty();
    if (named == 0) return absl::OkStatus();
    LeaveNoCoreFile();
    if (named < 3) {
      return absl::InvalidArgumentError(
          "--tls-cert, --tls-key and --tls-ca go together: name all three files");
    }
    return rendezvous::TlsContext::Make(given, rendezvous::TlsContext::Side::kServer).status();
  });
}

void AddJoinTokenFlag(FlagReader* reader, std::string* token) {
  reader->Custom(
      "join-token-file",
      [token](const std::string& path) -> absl::Status {
        LeaveNoCoreFile();
        CONVENE_ASSIGN_OR_RETURN(*token, rendezvous::ReadTokenFile(path));
        return absl::OkStatus();
      },
      "a file with the secret that all nodes of the run and its daemon share: their connections "
      "are "
      "TLS, and nobody else joins, reads or looks (default $CONVENE_JOIN_TOKEN_FILE, or the secret "
      "itself in $CONVENE_JOIN_TOKEN, which no worker gets; make one with: openssl rand -base64 "
      "32)",
      {.value = "FILE", .variables = {"CONVENE_JOIN_TOKEN_FILE"}});
  reader->Check([token]() -> absl::Status {
    const std::string given = rendezvous::TakeTokenVariable();
    if (!given.empty()) LeaveNoCoreFile();
    if (given.empty() || !token->empty()) return absl::OkStatus();
    *token = given;
    return rendezvous::CheckToken(given, rendezvous::kTokenVariable);
  });
}

void AddStoreMemoryFlag(FlagReader* reader, size_t* bytes_max) {
  reader->Custom(
      "store-memory",
      [bytes_max](const std::string& text) {
        int64_t bytes = 0;
        if (!ParseSize(text, &bytes).ok() || bytes < kStoreMemoryMin) {
          return absl::InvalidArgumentError("write a size of at least 1M, such as 512M or 4G");
        }
        *bytes_max = static_cast<size_t>(bytes);
        return absl::OkStatus();
      },
      "memory for what clients keep in the key-value store that this program serves; a client that "
      "asks for more is disconnected, with a line in the log. Values over 64 KiB get three "
      "quarters "
      "of it, smaller ones the rest; of each part one run may hold as much as is free (default a "
      "quarter of the memory that this program may use, at most 2G)",
      {.value = "SIZE"});
}

namespace {

// Of a run that this user's `convene launch` has locked, where the flags name nothing that opens
// a door. A run's name alone tells its place, too.
absl::Status TakeKeptToken(const FlagReader& reader, std::string* endpoint,
                           rendezvous::Credentials* credentials, const std::string& job_id) {
  if (!credentials->join_token.empty() || !credentials->tls_ca.empty()) return absl::OkStatus();
  const bool names_endpoint =
      std::any_of(reader.given().begin(), reader.given().end(),
                  [](const auto& given) { return given.first == "endpoint"; });
  CONVENE_ASSIGN_OR_RETURN(const std::optional<KeptToken> kept,
                           FindKeptToken(KeptTokensFolder(ProcessEnvironment()),
                                         names_endpoint ? *endpoint : "", job_id));
  if (!kept.has_value()) return absl::OkStatus();
  LeaveNoCoreFile();
  *endpoint = kept->endpoint;
  credentials->join_token = kept->token;
  return absl::OkStatus();
}

}  // namespace

void AddPlaceFlags(FlagReader* reader, std::string* endpoint, rendezvous::Credentials* credentials,
                   std::string* job_id) {
  reader->Option(
      "endpoint", endpoint,
      absl::StrCat(
          "place of the rendezvous, or several of which one answers, or srv:_SERVICE._tcp.DOMAIN "
          "for those that DNS names (default "
          "$CONVENE_ENDPOINT, $PET_RDZV_ENDPOINT, localhost:",
          kDefaultRendezvousPort, ")"),
      {.value = "HOST[:PORT],...", .variables = {"CONVENE_ENDPOINT", "PET_RDZV_ENDPOINT"}});
  reader->Check([endpoint]() -> absl::Status {
    if (endpoint->empty()) *endpoint = "localhost";
    if (rendezvous::IsService(*endpoint)) return absl::OkStatus();
    const auto places = rendezvous::ParsePlaces(*endpoint, kDefaultRendezvousPort);
    CONVENE_RETURN_IF_ERROR(Annotate(places.status(), "--endpoint"));
    *endpoint = rendezvous::FormatPlaces(*places);
    return absl::OkStatus();
  });
  reader->Option("rdzv-id", job_id, "the same as RUN", {.value = "RUN"});
  AddCredentialFlags(reader, credentials);
  reader->Check([=] { return TakeKeptToken(*reader, endpoint, credentials, *job_id); });
}

void AddFlags(FlagReader* reader, StatusFlags* flags) {
  reader->Word("[RUN]", &flags->job_id);
  AddPlaceFlags(reader, &flags->endpoint, &flags->credentials, &flags->job_id);
  reader->Switch("watch", &flags->watch,
                 "go on: redraw the screen each second, or print a line for each change when "
                 "stdout is no terminal");
  reader->Switch("json", &flags->json, "print it as JSON, on one line");
}

}  // namespace convene::launcher
