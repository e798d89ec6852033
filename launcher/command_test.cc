#include "launcher/command.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::launcher {
namespace {

using Words = std::vector<std::string>;

EnvironmentLookup Variable(const std::string& wanted, const std::string& value) {
  return [=](const std::string& name) -> std::optional<std::string> {
    if (name == wanted) return value;
    return std::nullopt;
  };
}

const EnvironmentLookup kNothing = Variable("", "");

TEST_CASE("a Python script runs unbuffered under the interpreter of choice") {
  const testing::TempDir directory;
  const std::string script = directory.File("train.py");
  REQUIRE_OK(WriteFileAtomic(script, ""));
  RunFlags flags;
  flags.command = {script, "--lr", "1"};
  CHECK(ResolveCommand(flags, kNothing, "", "").value() ==
        Words{"python3", "-u", script, "--lr", "1"});
  CHECK(ResolveCommand(flags, Variable("PYTHON_EXEC", "/py"), "", "").value()[0] == "/py");
  flags.no_python = true;
  CHECK(ResolveCommand(flags, kNothing, "", "").value() == flags.command);
}

TEST_CASE("torchrun runs any name under Python, unless it is told otherwise") {
  const testing::TempDir directory;
  const std::string script = directory.File("train");
  REQUIRE_OK(WriteFileAtomic(script, ""));
  RunFlags flags;
  flags.command = {script};
  CHECK(ResolveCommand(flags, kNothing, "", "").value() == Words{script});
  flags.as_torchrun = true;
  CHECK(ResolveCommand(flags, kNothing, "", "").value() == Words{"python3", "-u", script});
  flags.no_python = true;
  CHECK(ResolveCommand(flags, kNothing, "", "").value() == Words{script});
  flags.command = {"sh"};
  flags.no_python = false;
  CHECK_STATUS(ResolveCommand(flags, Variable("PATH", "/bin"), "", ""), absl::StatusCode::kNotFound,
               "write --no-python before it");
}

TEST_CASE("--run-path runs the script by runpy, whatever --no-python says") {
  const testing::TempDir directory;
  const std::string script = directory.File("train");
  REQUIRE_OK(WriteFileAtomic(script, ""));
  RunFlags flags;
  flags.run_path = flags.no_python = true;
  flags.command = {script, "--lr"};
  const Words words = ResolveCommand(flags, kNothing, "", "").value();
  REQUIRE(words.size() == 6);
  CHECK(words[2] == "-c");
  CHECK_THAT(words[3], Catch::Contains("runpy.run_path"));
  CHECK(words[4] == script);
  CHECK(words[5] == "--lr");
}

TEST_CASE("a missing script is named before anything starts") {
  RunFlags flags;
  flags.command = {"/nowhere/train.py"};
  CHECK_STATUS(ResolveCommand(flags, kNothing, "", ""), absl::StatusCode::kNotFound,
               "/nowhere/train.py");
}

TEST_CASE("a module runs under Python, any other program by itself") {
  RunFlags flags;
  flags.command = {"pkg.train", "x"};
  CHECK(ResolveCommand(flags, kNothing, "", "").value() == flags.command);
  flags.module = true;
  CHECK(ResolveCommand(flags, kNothing, "", "").value() ==
        Words{"python3", "-u", "-m", "pkg.train", "x"});
}

TEST_CASE("called from a virtual environment's bin a script runs under the python3 beside it") {
  const testing::TempDir directory;
  RunFlags flags;
  flags.command = {"pkg.train"};
  flags.module = true;
  const std::string bin = directory.File("bin");
  const auto python_of = [&](const EnvironmentLookup& environment) {
    return ResolveCommand(flags, environment, "", bin).value()[0];
  };
  REQUIRE_OK(MakeDirectories(bin));
  REQUIRE_OK(WriteFileAtomic(bin + "/python3", "#!/bin/sh\n"));
  REQUIRE(chmod((bin + "/python3").c_str(), 0755) == 0);
  CHECK(python_of(kNothing) == "python3");
  REQUIRE_OK(WriteFileAtomic(directory.File("pyvenv.cfg"), ""));
  CHECK(python_of(kNothing) == bin + "/python3");
  CHECK(python_of(Variable("PYTHON_EXEC", "/py")) == "/py");
  REQUIRE(unlink((bin + "/python3").c_str()) == 0);
  CHECK(python_of(kNothing) == "python3");
}

TEST_CASE("the trainer is found in PATH, beside the launcher, or in Bazel's tree") {
  const testing::TempDir directory;
  RunFlags flags;
  flags.command = {"convene-train", "c.yaml"};
  const std::string own = directory.File("launcher");
  CHECK(ResolveCommand(flags, kNothing, own, "").value()[0] == "convene-train");
  const auto install = [](const std::string& path) {
    REQUIRE_OK(MakeDirectories(ParentDirectory(path)));
    REQUIRE_OK(WriteFileAtomic(path, "#!/bin/sh\n"));
    REQUIRE(chmod(path.c_str(), 0755) == 0);
  };
  install(directory.File("worker_runtime/trainer/convene-train"));
  REQUIRE_OK(MakeDirectories(own));
  CHECK(ResolveCommand(flags, kNothing, own, "").value()[0] ==
        own + "/../worker_runtime/trainer/convene-train");
  install(own + "/convene-train");
  CHECK(ResolveCommand(flags, kNothing, own, "").value() ==
        Words{own + "/convene-train", "c.yaml"});
  CHECK(ResolveCommand(flags, Variable("PATH", "/nowhere:" + own), "", "").value()[0] ==
        "convene-train");
}

}  // namespace
}  // namespace convene::launcher
