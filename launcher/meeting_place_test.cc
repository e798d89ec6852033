#include "launcher/meeting_place.h"

#include <string>

#include "catch2/catch.hpp"

namespace convene::launcher {
namespace {

using Kind = MeetingVerdict::Kind;

// Two nodes; the names of this machine are head and head.cluster.
MeetingPlace Place(const std::string& host, const std::string& leads_to) {
  MeetingPlace place;
  place.given = "--rdzv-endpoint " + host + ":29400";
  place.host = host;
  place.own_names = {"head", "head.cluster"};
  place.nodes = 2;
  place.leads_to = leads_to;
  place.own_address = "10.0.0.1";
  return place;
}

TEST_CASE("hosts that are each machine itself") {
  for (const char* host :
       {"localhost", "LocalHost", "127.0.0.1", "127.0.1.1", "::1", "0.0.0.0", "::"}) {
    CHECK(IsThisMachineEverywhere(host));
  }
  for (const char* host : {"", "head", "localhost.example.org", "10.127.0.1", "::2", "128.0.0.1"}) {
    CHECK_FALSE(IsThisMachineEverywhere(host));
  }
}

TEST_CASE("where several nodes can meet, and where each one meets itself") {
  struct Row {
    const char* what;
    const char* host;
    const char* leads_to;
    int nodes, scheduled, here;
    Kind kind;
  };
  const Row rows[] = {
      {"one node", "localhost", "127.0.0.1", 1, 1, 1, Kind::kFine},
      {"another machine", "node7", "", 2, 1, 1, Kind::kFine},
      {"perhaps two agents of one machine", "localhost", "127.0.0.1", 2, 1, 1, Kind::kWarning},
      {"what `hostname -i` says on Debian", "127.0.1.1", "127.0.1.1", 2, 1, 1, Kind::kWarning},
      {"an alias in /etc/hosts", "rendezvous", "127.0.0.1", 2, 1, 1, Kind::kWarning},
      {"two machines, one task each", "localhost", "127.0.0.1", 2, 2, 1, Kind::kRefusal},
      {"the same, by an alias", "rendezvous", "127.0.0.1", 2, 2, 1, Kind::kRefusal},
      {"the same, by --nnodes 1:4", "::1", "::1", 4, 2, 1, Kind::kRefusal},
      {"four tasks of two machines for 1:4", "localhost", "127.0.0.1", 4, 2, 2, Kind::kRefusal},
      {"on each machine a job of two tasks", "localhost", "127.0.0.1", 2, 2, 2, Kind::kWarning},
      {"tasks of one machine", "localhost", "127.0.0.1", 2, 1, 2, Kind::kWarning},
      {"Debian's own name", "head", "127.0.1.1", 2, 1, 1, Kind::kNote},
      {"the same under a scheduler", "HEAD.cluster", "127.0.1.1", 2, 2, 1, Kind::kNote},
  };
  for (const Row& row : rows) {
    INFO(row.what);
    MeetingPlace place = Place(row.host, row.leads_to);
    place.nodes = row.nodes;
    place.scheduled_nodes = row.scheduled;
    place.agents_here = row.here;
    const MeetingVerdict verdict = JudgeMeetingPlace(place);
    CHECK(verdict.kind == row.kind);
    CHECK(verdict.why.empty() == (row.kind == Kind::kFine));
    if (row.kind == Kind::kWarning || row.kind == Kind::kRefusal) {
      CHECK_THAT(verdict.why, Catch::StartsWith(place.given) &&
                                  Catch::Contains("scontrol show hostnames") &&
                                  Catch::Contains("this machine is head"));
    }
  }
}

TEST_CASE("an own port that another process serves is no reason to refuse") {
  MeetingPlace tunnel = Place("localhost", "127.0.0.1");
  tunnel.scheduled_nodes = 2;
  tunnel.only_dials = true;
  CHECK(JudgeMeetingPlace(tunnel).kind == Kind::kWarning);
}

TEST_CASE("a machine that calls itself localhost has no name of its own") {
  MeetingPlace place = Place("localhost", "127.0.0.1");
  place.own_names = {"localhost"};
  CHECK(JudgeMeetingPlace(place).kind == Kind::kWarning);
  CHECK_THAT(JudgeMeetingPlace(place).why, Catch::Contains("each meet only themselves"));
}

TEST_CASE("a machine that only itself can reach is told so") {
  MeetingPlace place = Place("head", "127.0.1.1");
  place.own_address = "127.0.0.1";
  CHECK(JudgeMeetingPlace(place).kind == Kind::kWarning);
  CHECK_THAT(JudgeMeetingPlace(place).why, Catch::Contains("--local-addr ADDRESS"));
  place = Place("node7", "");
  place.local_addr = "localhost";
  CHECK(JudgeMeetingPlace(place).kind == Kind::kWarning);
  CHECK_THAT(JudgeMeetingPlace(place).why, Catch::StartsWith("--local-addr localhost"));
}

}  // namespace
}  // namespace convene::launcher
