// The figures of a benchmark, for tools/gpu_check.
#pragma once

#include <cstdio>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace convene::worker::cuda {

// A file with one JSON object a line. Each is in the file when Add returns: a benchmark that is
// stopped before its end keeps the figures that it has made.
class Figures {
 public:
  // `path`: null where nobody wants a file. `only`: how the names of the wanted figures begin;
  // empty: all figures.
  explicit Figures(const char* path, std::string only = "") : only_(std::move(only)) {
    if (path == nullptr) return;
    file_ = std::fopen(path, "w");
    if (file_ == nullptr) status_ = absl::UnknownError(absl::StrCat("cannot write ", path));
  }
  ~Figures() {
    if (file_ != nullptr) std::fclose(file_);
  }
  Figures(const Figures&) = delete;
  Figures& operator=(const Figures&) = delete;

  // Whether the figure `name`, or one of the figures whose names begin so, is wanted. A benchmark
  // asks before it measures.
  bool Wants(absl::string_view name) const {
    return absl::StartsWith(name, only_) || absl::StartsWith(only_, name);
  }
  // `fields`: ", \"tflops\": 1.5" and so on.
  void Add(const std::string& name, const std::string& fields) {
    if (file_ == nullptr) return;
    const std::string line = absl::StrCat("{\"name\": \"", name, "\"", fields, "}\n");
    if (std::fputs(line.c_str(), file_) < 0 || std::fflush(file_) != 0) {
      status_ = absl::UnknownError("cannot write the figures");
    }
  }
  // The first thing that could not be written.
  const absl::Status& status() const { return status_; }

 private:
  const std::string only_;
  std::FILE* file_ = nullptr;
  absl::Status status_;
};

}  // namespace convene::worker::cuda
