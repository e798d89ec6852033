// A fresh directory for one test, removed with everything in it.
#pragma once

#include <cstdlib>
#include <string>

#include "tools/base/check.h"
#include "tools/base/files.h"

namespace convene::testing {

class TempDir {
 public:
  TempDir() {
    const char* base = std::getenv("TEST_TMPDIR");
    path_ = std::string(base == nullptr ? "/tmp" : base) + "/convene.XXXXXX";
    CONVENE_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~TempDir() { RemoveTree(path_).IgnoreError(); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace convene::testing
