#include "worker_runtime/bench/result.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/report/metrics.h"
#include "worker_runtime/tokenizer/json/json_node.h"

namespace convene::worker {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kRanksMax = 1 << 20;

std::string Exact(double value) { return absl::StrFormat("%.17g", value); }

std::string Texts(const std::vector<std::string>& texts) {
  std::vector<std::string> items;
  for (const std::string& text : texts) items.push_back(JsonText(text));
  return absl::StrCat("[", absl::StrJoin(items, ","), "]");
}

std::string Numbers(const std::vector<double>& values) {
  return absl::StrCat(
      "[", absl::StrJoin(values, ",", [](std::string* out, double value) { *out += Exact(value); }),
      "]");
}

std::string RowJson(const BenchRow& row) {
  return absl::StrCat("{\"operation\":", JsonText(row.operation), ",\"bytes\":", row.bytes,
                      ",\"count\":", row.count, ",\"seconds\":", Exact(row.seconds),
                      ",\"wrong\":", row.wrong.has_value() ? absl::StrCat(*row.wrong) : "null",
                      "}");
}

std::string RowJson(const ComputeRow& row) {
  return absl::StrCat("{\"operation\":", JsonText(row.operation),
                      ",\"dtype\":", JsonText(DTypeName(row.dtype)), ",\"rows\":", row.rows,
                      ",\"width\":", row.width, ",\"flops\":", Exact(row.flops),
                      ",\"bytes\":", Exact(row.bytes), ",\"seconds\":", Exact(row.seconds), "}");
}

template <typename Row>
std::string RowsJson(const std::vector<Row>& rows) {
  return absl::StrJoin(rows, ",\n  ",
                       [](std::string* out, const Row& row) { *out += RowJson(row); });
}

absl::StatusOr<double> PositiveAt(const JsonNode& node) {
  if (!node.value().IsNumber() || node.value().GetDouble() < 0) {
    return node.Error("is no number from 0 on");
  }
  return node.value().GetDouble();
}

absl::StatusOr<std::vector<double>> NumbersAt(const JsonNode& node, const char* key, size_t count) {
  CONVENE_ASSIGN_OR_RETURN(const JsonNode list, node.Get(key));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<JsonNode> items, list.Elements());
  if (items.size() != count) return list.Error(absl::StrCat("has not ", count, " numbers"));
  std::vector<double> numbers;
  for (const JsonNode& item : items) {
    CONVENE_ASSIGN_OR_RETURN(numbers.emplace_back(), PositiveAt(item));
  }
  return numbers;
}

absl::StatusOr<std::vector<std::string>> TextsAt(const JsonNode& node, const char* key) {
  CONVENE_ASSIGN_OR_RETURN(const JsonNode list, node.Get(key));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<JsonNode> items, list.Elements());
  std::vector<std::string> texts;
  for (const JsonNode& item : items) {
    CONVENE_ASSIGN_OR_RETURN(texts.emplace_back(), item.String());
  }
  return texts;
}

absl::StatusOr<BenchRow> RowOf(const JsonNode& node) {
  BenchRow row;
  CONVENE_ASSIGN_OR_RETURN(row.operation, node.GetString("operation"));
  CONVENE_ASSIGN_OR_RETURN(row.bytes, node.GetNumber("bytes", kMost));
  CONVENE_ASSIGN_OR_RETURN(row.count, node.GetNumber("count", kMost));
  CONVENE_ASSIGN_OR_RETURN(const JsonNode seconds, node.Get("seconds"));
  CONVENE_ASSIGN_OR_RETURN(row.seconds, PositiveAt(seconds));
  if (row.seconds == 0) return seconds.Error("is 0");
  if (const auto wrong = node.Find("wrong")) {
    CONVENE_ASSIGN_OR_RETURN(row.wrong, wrong->Number(kMost));
  }
  return row;
}

absl::StatusOr<double> NumberAt(const JsonNode& node, const char* key, bool may_be_0) {
  CONVENE_ASSIGN_OR_RETURN(const JsonNode number, node.Get(key));
  CONVENE_ASSIGN_OR_RETURN(const double value, PositiveAt(number));
  if (value == 0 && !may_be_0) return number.Error("is 0");
  return value;
}

absl::StatusOr<ComputeRow> ComputeRowOf(const JsonNode& node) {
  ComputeRow row;
  CONVENE_ASSIGN_OR_RETURN(row.operation, node.GetString("operation"));
  const absl::StatusOr<std::string> dtype = node.GetString("dtype");
  CONVENE_RETURN_IF_ERROR(dtype.status());
  row.dtype = *dtype == DTypeName(DType::kFloat32) ? DType::kFloat32 : DType::kBFloat16;
  if (*dtype != DTypeName(row.dtype)) return node.Error("has a dtype that is not fp32 or bf16");
  CONVENE_ASSIGN_OR_RETURN(row.rows, node.GetNumber("rows", kMost));
  CONVENE_ASSIGN_OR_RETURN(row.width, node.GetNumber("width", kMost));
  if (row.rows == 0 || row.width == 0) return node.Error("has no rows, or no width");
  CONVENE_ASSIGN_OR_RETURN(row.bytes, NumberAt(node, "bytes", /*may_be_0=*/false));
  CONVENE_ASSIGN_OR_RETURN(row.flops, NumberAt(node, "flops", row.operation == kPass));
  CONVENE_ASSIGN_OR_RETURN(row.seconds, NumberAt(node, "seconds", /*may_be_0=*/false));
  return row;
}

absl::StatusOr<PairTable> PairsOf(const JsonNode& node) {
  PairTable table;
  CONVENE_ASSIGN_OR_RETURN(table.members, TextsAt(node, "members"));
  CONVENE_ASSIGN_OR_RETURN(table.bytes, node.GetNumber("bytes", kMost));
  const size_t links = table.members.size() * table.members.size();
  CONVENE_ASSIGN_OR_RETURN(table.bytes_per_second, NumbersAt(node, "bytes_per_second", links));
  CONVENE_ASSIGN_OR_RETURN(table.latency_seconds, NumbersAt(node, "latency_seconds", links));
  return table;
}

}  // namespace

std::string BenchJson(const BenchResult& result) {
  std::string text = absl::StrCat(
      "{\"ranks\":", result.ranks, ",\"hosts\":", Texts(result.hosts),
      ",\"transport\":", JsonText(result.transport), ",\"device\":", JsonText(result.device),
      ",\n \"dtype\":", JsonText(result.dtype), ",\"op\":", JsonText(result.op),
      ",\"memory_bytes\":", Exact(result.memory_bytes), ",\n \"rows\":[\n  ", RowsJson(result.rows),
      "\n ],\n \"compute\":[\n  ", RowsJson(result.compute), "\n ]");
  if (result.pairs.has_value()) {
    absl::StrAppend(&text, ",\n \"pairs\":{\"members\":", Texts(result.pairs->members),
                    ",\"bytes\":", result.pairs->bytes,
                    ",\n  \"bytes_per_second\":", Numbers(result.pairs->bytes_per_second),
                    ",\n  \"latency_seconds\":", Numbers(result.pairs->latency_seconds), "}");
  }
  return text + "}\n";
}

absl::StatusOr<BenchResult> ParseBenchJson(absl::string_view text) {
  CONVENE_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Parse(text));
  const JsonNode root = document.root();
  BenchResult result;
  CONVENE_ASSIGN_OR_RETURN(const int64_t ranks, root.GetNumber("ranks", kRanksMax));
  if (ranks < 1) return root.Error("\"ranks\" is 0");
  result.ranks = static_cast<int>(ranks);
  CONVENE_ASSIGN_OR_RETURN(result.hosts, TextsAt(root, "hosts"));
  CONVENE_ASSIGN_OR_RETURN(result.transport, root.GetString("transport"));
  CONVENE_ASSIGN_OR_RETURN(result.device, root.GetString("device"));
  CONVENE_ASSIGN_OR_RETURN(result.dtype, root.GetString("dtype"));
  CONVENE_ASSIGN_OR_RETURN(result.op, root.GetString("op"));
  CONVENE_ASSIGN_OR_RETURN(const JsonNode rows, root.Get("rows"));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<JsonNode> items, rows.Elements());
  for (const JsonNode& item : items) {
    CONVENE_ASSIGN_OR_RETURN(result.rows.emplace_back(), RowOf(item));
  }
  if (const auto compute = root.Find("compute")) {
    CONVENE_ASSIGN_OR_RETURN(result.memory_bytes, NumberAt(root, "memory_bytes", true));
    CONVENE_ASSIGN_OR_RETURN(const std::vector<JsonNode> measured, compute->Elements());
    for (const JsonNode& item : measured) {
      CONVENE_ASSIGN_OR_RETURN(result.compute.emplace_back(), ComputeRowOf(item));
    }
  }
  if (const auto pairs = root.Find("pairs")) {
    CONVENE_ASSIGN_OR_RETURN(result.pairs, PairsOf(*pairs));
  }
  return result;
}

}  // namespace convene::worker
