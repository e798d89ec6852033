#include "launcher/rendezvous_conf.h"

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using Lines = std::vector<std::string>;

RendezvousConf Good(const std::string& text, Lines* reasons = nullptr,
                    ConfReader reader = ConfReader::kConvene) {
  Lines unused;
  const auto conf = ParseRendezvousConf(text, reader, reasons == nullptr ? &unused : reasons);
  REQUIRE_OK(conf);
  return *conf;
}

void Refused(const std::string& text, const std::string& expected,
             ConfReader reader = ConfReader::kConvene) {
  Lines reasons;
  CHECK_STATUS(ParseRendezvousConf(text, reader, &reasons), absl::StatusCode::kInvalidArgument,
               expected);
}

TEST_CASE("each key with a meaning arrives, spaces around it or not") {
  const RendezvousConf conf = Good(
      "join_timeout=90, last_call_timeout = 0.5,keep_alive_interval=2,read_timeout=7,is_host=false,"
      "rank=3");
  CHECK(conf.join_timeout == absl::Seconds(90));
  CHECK(conf.last_call == absl::Milliseconds(500));
  CHECK(conf.lease == absl::Seconds(6));
  CHECK(conf.connect_timeout == absl::Seconds(7));
  CHECK(conf.is_host == false);
  CHECK(conf.rank == 3);
}

TEST_CASE("nothing given is nothing said") {
  Lines reasons;
  const RendezvousConf conf = Good("", &reasons);
  CHECK_FALSE(conf.join_timeout.has_value());
  CHECK_FALSE(conf.lease.has_value());
  CHECK(reasons.empty());
}

TEST_CASE("timeout is the join timeout of static jobs, join_timeout wins") {
  CHECK(Good("timeout=900").join_timeout == absl::Seconds(900));
  CHECK(Good("join_timeout=5,timeout=900").join_timeout == absl::Seconds(5));
}

TEST_CASE("half of the keep-alive pair takes torchrun's other half") {
  CHECK(Good("keep_alive_interval=2").lease == absl::Seconds(6));
  CHECK(Good("keep_alive_max_attempt=4").lease == absl::Seconds(20));
}

TEST_CASE("torchrun's other keys are taken with one line for all") {
  Lines reasons;
  Good("close_timeout=30,heartbeat_timeout=5,store_type=file,protocol=https", &reasons);
  CHECK(reasons == Lines{"--rdzv-conf close_timeout=30,heartbeat_timeout=5,store_type=file,"
                         "protocol=https has no effect here"});
}

TEST_CASE("an unknown key is a slip, but torchrun takes it") {
  Refused("join_timout=5", "did you mean join_timeout?");
  Refused("zzz=5", "known are join_timeout");
  Lines reasons;
  Good("zzz=5", &reasons, ConfReader::kC10d);
  CHECK(reasons == Lines{"--rdzv-conf zzz=5 has no effect here"});
}

TEST_CASE("what a backend of torchrun's never reads has no effect, whatever its value") {
  Lines reasons;
  RendezvousConf conf =
      Good("'join_timeout=5,last_call_timeout=1,timeout=60s,rank=x'", &reasons, ConfReader::kC10d);
  CHECK(conf.last_call == absl::Seconds(1));
  CHECK_FALSE(conf.join_timeout.has_value());
  CHECK_FALSE(conf.rank.has_value());
  CHECK(reasons == Lines{"--rdzv-conf 'join_timeout=5,timeout=60s,rank=x' has no effect here"});
  conf = Good("timeout=900,join_timeout=soon,rank=3,is_host=maybe", nullptr, ConfReader::kStatic);
  CHECK(conf.join_timeout == absl::Minutes(15));
  CHECK_FALSE(conf.rank.has_value());
  Refused("join_timeout='5'", "join_timeout='5'", ConfReader::kC10d);
  Refused("timeout=60s", "timeout=60s", ConfReader::kStatic);
  Refused("timeout", "needs =VALUE", ConfReader::kC10d);
}

TEST_CASE("values out of range are named") {
  Refused("join_timeout", "needs =VALUE");
  Refused("close_timeout=", "needs =VALUE");
  Refused("join_timeout=soon", "join_timeout=soon");
  Refused("join_timeout=nan", "join_timeout=nan");
  Refused("is_host=maybe", "--rdzv-conf: is_host=maybe: write 1 or 0");
  Refused("rank=-1", "rank=-1");
  Refused("keep_alive_max_attempt=1", "at least 2");
  Refused("keep_alive_interval=0.1", "from 1s to 1h");
}

}  // namespace
}  // namespace convene::launcher
