#include "worker_runtime/options/config_keys.h"

#include <set>

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

TEST_CASE("every key has its line of help and a name of its own, and the first one a heading") {
  std::set<std::string> names;
  for (const ConfigKey& key : ConfigKeys()) {
    INFO(key.field->name());
    CHECK(names.insert(key.field->name()).second);
    CHECK_FALSE(key.doc().help().empty());
  }
  CHECK_FALSE(ConfigKeys().front().doc().heading().empty());
}

TEST_CASE("defaults are set, and what is derived or the model's own stays unsaid") {
  const TrainConfig config = DefaultConfig();
  CHECK(config.steps() == 100);
  CHECK(config.learning_rate() == 1e-3);
  CHECK(config.resume() == "auto");
  CHECK_FALSE(config.has_min_learning_rate());
  CHECK_FALSE(config.has_dp_size());
  CHECK_FALSE(config.has_model_shape());
  CHECK(config.data().empty());
}

TEST_CASE("an overlay replaces what it says and keeps the rest") {
  TrainConfig config;
  config.set_steps(5);
  config.set_seed(7);
  config.add_data("a.txt");
  config.mutable_model_shape()->set_layers(4);
  TrainConfig winner;
  winner.set_steps(0);
  winner.add_data("b.txt");
  winner.mutable_model_shape()->set_heads(2);
  Overlay(winner, &config);
  CHECK(config.steps() == 0);
  CHECK(config.seed() == 7);
  REQUIRE(config.data_size() == 1);
  CHECK(config.data(0) == "b.txt");
  CHECK(config.model_shape().layers() == 4);
  CHECK(config.model_shape().heads() == 2);
}

TEST_CASE("a text of the wrong type is refused") {
  TrainConfig config;
  const auto set = [&config](const char* name, const char* text) {
    const ConfigKey* key = FindConfigKey(name);
    REQUIRE(key != nullptr);
    return SetFromText(MessageOf(*key, &config), key->field, text);
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  CHECK_STATUS(set("steps", "1.5"), kInvalid, "must be a whole number");
  CHECK_STATUS(set("steps", "99999999999999999999"), kInvalid, "must be a whole number");
  CHECK_STATUS(set("steps", ""), kInvalid, "must be a whole number");
  CHECK_STATUS(set("learning_rate", "fast"), kInvalid, "must be a number");
  CHECK_STATUS(set("learning_rate", "nan"), kInvalid, "must be a number");
  CHECK_STATUS(set("tied_embeddings", "maybe"), kInvalid, "must be true or false");
  CHECK_FALSE(config.has_steps());
}

}  // namespace
}  // namespace convene::worker
