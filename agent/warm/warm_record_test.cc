#include "agent/warm/warm_record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::agent {
namespace {

WarmRecord OneRecord() {
  return {MarksOf({"CHOICE=7", "EMPTY="}, {}), {"jax", "tensorflow"}, std::string("\n\0\nx", 4)};
}

bool IsSame(const WarmRecord& one, const WarmRecord& other) {
  return one.variables == other.variables && one.left_out == other.left_out &&
         one.modules == other.modules;
}

TEST_CASE("what a record tells comes back from its text") {
  CHECK(IsSame(*DecodeWarmRecord(EncodeWarmRecord(OneRecord())), OneRecord()));
  CHECK(IsSame(*DecodeWarmRecord(EncodeWarmRecord({})), {}));
}

TEST_CASE("a record has no values of variables") {
  CHECK(EncodeWarmRecord({MarksOf({"KEY=geheim"}, {}), {}, ""}).find("geheim") ==
        std::string::npos);
}

TEST_CASE("a torn record is refused wherever it is torn, and one of another version") {
  const std::string whole = EncodeWarmRecord(OneRecord());
  for (size_t length = 0; length < whole.size(); ++length) {
    CHECK(absl::IsDataLoss(DecodeWarmRecord(whole.substr(0, length)).status()));
    std::string wrong = whole;
    wrong[length] = static_cast<char>(wrong[length] ^ 1);
    CHECK(absl::IsDataLoss(DecodeWarmRecord(wrong).status()));
  }
  const std::string other = absl::StrCat("convene-warm 0 ", whole.substr(whole.find(' ', 13) + 1));
  CHECK(DecodeWarmRecord(other).status().message() == "it is no record of this version of Convene");
}

TEST_CASE("variables that choose imports count, and those of a rank, a run or a shell do not") {
  const VariableMarks marks =
      MarksOf({"RANK=1", "CHOICE=7", "CONVENE_EPOCH=3", "SLURM_JOB_ID=5", "PWD=/x", "_=/bin/x",
               "LOCAL_WORLD_SIZE=8", "PYTHONPATH=/p", "no entry", "PBS_JOBID=5.host", "LSB_JOBID=5",
               "LS_JOBPID=7", "PALS_APID=x", "FLUX_JOB_ID=f5"},
              {"RANK"});
  CHECK(marks.size() == 2);
  CHECK(ChangedVariable(marks, MarksOf({"CHOICE=7", "PYTHONPATH=/p"}, {})).empty());
  CHECK(ChangedVariable(marks, MarksOf({"CHOICE=8", "PYTHONPATH=/p"}, {})) == "CHOICE");
  CHECK(ChangedVariable(marks, MarksOf({"CHOICE=7"}, {})) == "PYTHONPATH");
  CHECK(ChangedVariable(marks, MarksOf({"CHOICE=7", "NEW=", "PYTHONPATH=/p"}, {})) == "NEW");
}

// The file of a command in a folder of its own.
class Kept {
 public:
  std::unique_ptr<WarmRecordFile> Of(const std::vector<std::string>& arguments) const {
    return std::make_unique<WarmRecordFile>(cache(), "/bin/python3", arguments, "/work");
  }
  void Keep(const std::vector<std::string>& arguments) const { Of(arguments)->Keep(OneRecord()); }
  std::string cache() const { return folder_.path() + "/a/convene"; }

 private:
  testing::TempDir folder_;
};

unsigned ModeOf(const std::string& path) {
  struct stat info = {};
  CHECK(stat(path.c_str(), &info) == 0);
  return info.st_mode & 0777;
}

TEST_CASE("a record is kept for its own command, for its owner alone") {
  const Kept kept;
  CHECK(absl::IsNotFound(kept.Of({"python3", "a.py"})->Load().status()));
  kept.Keep({"python3", "a.py"});
  CHECK(IsSame(*kept.Of({"python3", "a.py"})->Load(), OneRecord()));
  CHECK(absl::IsNotFound(kept.Of({"python3", "a.py", "--more"})->Load().status()));
  CHECK(absl::IsNotFound(kept.Of({"python3", "a.p", "y"})->Load().status()));
  CHECK(ModeOf(kept.cache() + "/warm") == 0700);
  CHECK(ModeOf(kept.Of({"python3", "a.py"})->path()) == 0600);
}

TEST_CASE("the newest of several records is kept") {
  const Kept kept;
  {
    const auto file = kept.Of({});
    for (int i = 0; i < 50; ++i) file->Keep({{}, {}, absl::StrCat(i)});
  }
  CHECK(kept.Of({})->Load()->modules == "49");
  kept.Of({})->Drop();
  CHECK(absl::IsNotFound(kept.Of({})->Load().status()));
}

TEST_CASE("a record that others may write is refused") {
  const Kept kept;
  kept.Keep({});
  const auto file = kept.Of({});
  chmod(file->path().c_str(), 0620);
  CHECK(absl::IsPermissionDenied(file->Load().status()));
  chmod(file->path().c_str(), 0644);
  CHECK(file->Load().ok());
  chmod((kept.cache() + "/warm").c_str(), 0777);
  CHECK(absl::IsPermissionDenied(file->MakeFolder()));
  CHECK(WriteFileAtomic(file->path(), "").ok());
  kept.Keep({});  // It writes into no such folder.
  CHECK(ReadFile(file->path())->empty());
}

TEST_CASE("a folder that cannot be made is told") {
  const testing::TempDir folder;
  CHECK(WriteFileAtomic(folder.path() + "/file", "").ok());
  const WarmRecordFile file(folder.path() + "/file/convene", "/bin/python3", {}, "/work");
  CHECK_THAT(std::string(file.MakeFolder().message()), Catch::Contains(folder.path() + "/file"));
}

TEST_CASE("files of an older version, which had values of variables, are removed") {
  const Kept kept;
  CHECK(kept.Of({})->MakeFolder().ok());
  const std::string old = kept.cache() + "/warm/0123456789abcdef.record";
  CHECK(WriteFileAtomic(old, "convene-warm 1 ").ok());
  kept.Keep({"a.py"});
  CHECK_FALSE(IsFile(old));
  CHECK(kept.Of({"a.py"})->Load().ok());
}

TEST_CASE("a write that hangs is waited for with a limit") {
  const Kept kept;
  std::promise<void> goes_on;
  const ScopedFileFault fault([hangs = goes_on.get_future().share()](FileOp op, const auto&) {
    if (op == FileOp::kRename) hangs.wait();
    return 0;
  });
  const auto file = kept.Of({});
  CHECK(file->IsWritten(absl::ZeroDuration()));
  file->Keep(OneRecord());
  CHECK_FALSE(file->IsWritten(absl::Milliseconds(1)));
  goes_on.set_value();
  CHECK(file->IsWritten(absl::Minutes(1)));
}

TEST_CASE("a record that is no file, or too long, is refused") {
  const Kept kept;
  kept.Keep({});
  const auto file = kept.Of({});
  CHECK(WriteFileAtomic(file->path(), std::string(WarmRecordFile::kMostBytes + 1, 'x')).ok());
  CHECK(absl::IsDataLoss(file->Load().status()));
  CHECK(RenameFile(file->path(), kept.cache() + "/elsewhere").ok());
  CHECK(symlink("../elsewhere", file->path().c_str()) == 0);
  CHECK_FALSE(file->Load().ok());
}

TEST_CASE("the records used least lately make room") {
  const Kept kept;
  const auto first = kept.Of({"0"});
  for (size_t i = 0; i < WarmRecordFile::kMostFiles + 3; ++i) {
    const std::string name = absl::StrCat(i);
    kept.Keep({name});
    const timespec old[2] = {{static_cast<time_t>(1000 + i), 0},
                             {static_cast<time_t>(1000 + i), 0}};
    utimensat(AT_FDCWD, kept.Of({name})->path().c_str(), old, 0);
    CHECK(first->Load().ok());  // A use.
  }
  CHECK(ListDirectory(kept.cache() + "/warm")->size() == WarmRecordFile::kMostFiles);
  CHECK(kept.Of({"1"})->Load().status().code() == absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace convene::agent
