#include "launcher/launch/exported_variables.h"

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

const Variables kOwn = {{"NCCL_DEBUG", "INFO"},
                        {"CUDA_HOME", "/usr/local/cuda"},
                        {"CUDA_VISIBLE_DEVICES", "0"},
                        {"PYTHONPATH", "/a b:/c"},
                        {"CONVENE_LOG_LEVEL", "debug"},
                        {"CONVENE_TOPOLOGY", "here"},
                        {"CONVENE_AGENT_TOKEN", "x"},
                        {"CONVENE_MEMORY", "/proc/7/fd/8"},
                        {"CONVENE_MAX_NODES", "2"},
                        {"UCX_TLS", "rc"},
                        {"MLFLOW_RUN", "7"},
                        {"MV2_X", "1"},
                        {"HOME", "/root"},
                        {"TOKEN", "secret"}};

TEST_CASE("variables of the libraries pass, those of this machine and of other programs do not") {
  const auto variables = ExportedVariables(kOwn, {}, {});
  REQUIRE_OK(variables);
  CHECK(*variables == Variables{{"NCCL_DEBUG", "INFO"},
                                {"CUDA_HOME", "/usr/local/cuda"},
                                {"PYTHONPATH", "/a b:/c"},
                                {"CONVENE_LOG_LEVEL", "debug"},
                                {"UCX_TLS", "rc"},
                                {"MLFLOW_RUN", "7"},
                                {"MV2_X", "1"}});
}

TEST_CASE("files come after the environment, and --export after the files") {
  const std::vector<VariableFile> files = {{"~/.deepspeed_env", "# mine\n\nNCCL_DEBUG=WARN\nA=1\n"},
                                           {"./.deepspeed_env", "A=x=y z\nB=\n"}};
  const auto variables = ExportedVariables({{"NCCL_DEBUG", "INFO"}, {"TOKEN", "secret"}}, files,
                                           {"TOKEN", "B=two words", "C="});
  REQUIRE_OK(variables);
  CHECK(*variables == Variables{{"NCCL_DEBUG", "WARN"},
                                {"A", "x=y z"},
                                {"B", "two words"},
                                {"C", ""},
                                {"TOKEN", "secret"}});
}

TEST_CASE("a line or flag that is no assignment is told by its place, without its value") {
  const auto line = ExportedVariables({}, {{"f", "A=1\nexport B=secret\n"}}, {});
  CHECK_STATUS(line, absl::StatusCode::kInvalidArgument, "f, line 2: not NAME=VALUE");
  CHECK_THAT(std::string(line.status().message()), !Catch::Contains("secret"));
  CHECK_STATUS(ExportedVariables({}, {}, {"1A=secret"}), absl::StatusCode::kInvalidArgument,
               "--export: not NAME=VALUE");
  CHECK_STATUS(ExportedVariables({}, {}, {"NOT_HERE"}), absl::StatusCode::kInvalidArgument,
               "--export NOT_HERE: no variable");
}

}  // namespace
}  // namespace convene::launcher
