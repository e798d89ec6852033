#include "worker_runtime/report/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "proto/tensorboard.pb.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

constexpr char kVersion[] = "brain.Event:2";

// CRC-32C (Castagnoli), reflected; RFC 3720, section 12.1.
uint32_t Crc32c(absl::string_view bytes) {
  static const auto* const table = [] {
    auto* const made = new std::array<uint32_t, 256>;
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78 : 0);
      (*made)[i] = crc;
    }
    return made;
  }();
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) {
    crc = (crc >> 8) ^ (*table)[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  }
  return ~crc;
}

std::string Number32(uint32_t number) {
  std::string text(sizeof(number), '\0');
  std::memcpy(text.data(), &number, sizeof(number));
  return text;
}

std::string MaskedCrc(absl::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return Number32(((crc >> 15) | (crc << 17)) + 0xa282ead8);
}

// "validation_loss" among the validations is "loss".
std::string TagOf(const MetricsRecord& record, absl::string_view key) {
  if (std::holds_alternative<StepMetrics>(record)) return absl::StrCat("train/", key);
  if (std::holds_alternative<CheckpointMetrics>(record)) {
    return absl::StrCat("checkpoint/", absl::StripPrefix(key, "checkpoint_"));
  }
  const auto& set = std::get<ValidationMetrics>(record).validation_set;
  return absl::StrCat("validation/", set.has_value() ? absl::StrCat(*set, "/") : "",
                      absl::StripPrefix(key, "validation_"));
}

tensorboard::Event EventAt(int64_t step, absl::Time now) {
  tensorboard::Event event;
  event.set_wall_time(absl::ToUnixMicros(now) / 1e6);
  event.set_step(step);
  return event;
}

}  // namespace

std::string EventRecord(absl::string_view bytes) {
  const std::string length =
      absl::StrCat(Number32(static_cast<uint32_t>(bytes.size())), Number32(0));
  return absl::StrCat(length, MaskedCrc(length), bytes, MaskedCrc(bytes));
}

absl::StatusOr<EventFile> EventFile::Create(const std::string& directory, int64_t resumed_step,
                                            absl::Time now) {
  CONVENE_RETURN_IF_ERROR(MakeDirectories(directory));
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  const std::string path = absl::StrFormat("%s/events.out.tfevents.%010d.%s.%d.0", directory,
                                           absl::ToUnixSeconds(now), host, getpid());
  CONVENE_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC));
  tensorboard::Event version = EventAt(0, now);
  version.set_file_version(kVersion);
  tensorboard::Event start = EventAt(resumed_step + 1, now);
  start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  const std::string begin = absl::StrCat(EventRecord(version.SerializeAsString()),
                                         EventRecord(start.SerializeAsString()));
  CONVENE_RETURN_IF_ERROR(WriteAll(fd.get(), begin, path));
  EventFile file(path, std::move(fd));
  file.size_ = static_cast<int64_t>(begin.size());
  return file;
}

absl::Status EventFile::Append(const MetricsRecord& record, absl::Time now) {
  const int64_t step = std::visit([](const auto& metrics) { return metrics.step; }, record);
  tensorboard::Event event = EventAt(step, now);
  ForEachNumber(record, [&](const char* key, double value) {
    tensorboard::Scalar* const scalar = event.mutable_summary()->add_value();
    scalar->set_tag(TagOf(record, key));
    scalar->set_simple_value(static_cast<float>(value));
  });
  const std::string bytes = EventRecord(event.SerializeAsString());
  const absl::Status written = WriteAll(fd_.get(), bytes, path_);
  if (written.ok()) {
    size_ += static_cast<int64_t>(bytes.size());
    return written;
  }
  // A reader stops at a torn record for good.
  if (ftruncate(fd_.get(), size_) == 0) lseek(fd_.get(), size_, SEEK_SET);
  return written;
}

}  // namespace convene::worker
