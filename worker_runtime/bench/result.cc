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
  std::vector<std::string> rows;
  for (const BenchRow& row : result.rows) rows.push_back(RowJson(row));
  std::string text = absl::StrCat(
      "{\"ranks\":", result.ranks, ",\"hosts\":", Texts(result.hosts),
      ",\"transport\":", JsonText(result.transport), ",\"device\":", JsonText(result.device),
      ",\n \"dtype\":", JsonText(result.dtype), ",\"op\":", JsonText(result.op),
      ",\n \"rows\":[\n  ", absl::StrJoin(rows, ",\n  "), "\n ]");
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
  if (const auto pairs = root.Find("pairs")) {
    CONVENE_ASSIGN_OR_RETURN(result.pairs, PairsOf(*pairs));
  }
  return result;
}

}  // namespace convene::worker
