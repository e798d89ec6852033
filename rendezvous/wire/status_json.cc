#include "rendezvous/wire/status_json.h"

#include <google/protobuf/util/json_util.h>

#include "rendezvous/wire/wire.h"
#include "tools/base/check.h"

namespace convene::rendezvous {

namespace {

std::string Json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  // This fails only for messages with Any or a bad Timestamp in them.
  CONVENE_CHECK(google::protobuf::util::MessageToJsonString(message, &json, options).ok());
  return json;
}

}  // namespace

std::string StatusJson(const std::vector<JobView>& views) {
  pb::StatusReply reply;
  for (const JobView& view : views) ToWire(view, reply.add_jobs());
  return Json(reply);
}

std::string EventJson(const EventView& event) {
  JobView view;
  view.events.push_back(event);
  pb::JobStatus status;
  ToWire(view, &status);
  return Json(status.events(0));
}

std::string IncidentJson(const IncidentView& incident) {
  JobView view;
  view.incidents.push_back(incident);
  pb::JobStatus status;
  ToWire(view, &status);
  return Json(status.incidents(0));
}

bool ReadIncidentJson(const std::string& json, IncidentView* incident) {
  pb::JobStatus status;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // of a later version
  if (!google::protobuf::util::JsonStringToMessage(json, status.add_incidents(), options).ok() ||
      status.incidents(0).number() < 1) {
    return false;
  }
  *incident = FromWire(status).incidents.front();
  return true;
}

}  // namespace convene::rendezvous
