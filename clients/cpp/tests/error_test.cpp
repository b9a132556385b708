#include <gtest/gtest.h>

#include "fake_server.h"

namespace triptych {
namespace {

using testing::FakeServer;
using testing::status_with_details;

/// Makes a call that ends with the status, and expects the class to be thrown.
template <class Class>
void expect_class(const grpc::Status& status) {
  FakeServer server;
  server.on_chat = [&](auto&, auto&, auto&) { return status; };
  try {
    server.client().chat({});
    ADD_FAILURE() << "no error";
  } catch (const Class& error) {
    EXPECT_STREQ(error.name(), Class::kName);
    EXPECT_EQ(static_cast<int>(error.code()), status.error_code());
  }
}

TEST(Errors, ClassGoesByReason) {
  using grpc::StatusCode;
  expect_class<InvalidRequestError>(status_with_details(StatusCode::INVALID_ARGUMENT, "m", "INVALID_REQUEST"));
  expect_class<ContextLengthError>(status_with_details(StatusCode::INVALID_ARGUMENT, "m", "CONTEXT_LENGTH_EXCEEDED"));
  expect_class<NeverFitsError>(status_with_details(StatusCode::INVALID_ARGUMENT, "m", "KV_CACHE_CAPACITY_EXCEEDED"));
  expect_class<MediaNotFoundError>(status_with_details(StatusCode::NOT_FOUND, "m", "MEDIA_NOT_FOUND"));
  expect_class<EmbeddingUnavailableError>(status_with_details(StatusCode::FAILED_PRECONDITION, "m", "EMBEDDING_UNAVAILABLE"));
  expect_class<QueueFullError>(status_with_details(StatusCode::RESOURCE_EXHAUSTED, "m", "QUEUE_FULL"));
}

TEST(Errors, ClassGoesByCodeIfTheReasonIsUnknownOrMissing) {
  using grpc::StatusCode;
  expect_class<QueueFullError>(status_with_details(StatusCode::RESOURCE_EXHAUSTED, "m", "A_NEWER_REASON"));
  expect_class<ModelNotFoundError>({StatusCode::NOT_FOUND, "m"});
  expect_class<PermissionDeniedError>({StatusCode::PERMISSION_DENIED, "m"});
  expect_class<UnauthenticatedError>({StatusCode::UNAUTHENTICATED, "m"});
  expect_class<UnimplementedError>({StatusCode::UNIMPLEMENTED, "m"});
  expect_class<InternalError>({StatusCode::DATA_LOSS, "m"});
}

TEST(Errors, HaveAllFieldsOfTheDetails) {
  FakeServer server;
  server.on_chat = [](auto&, auto&, auto&) {
    return status_with_details(grpc::StatusCode::INVALID_ARGUMENT, "top_p must be at most 1, not 2 \xE2\x80\x93 sorry",
                               "INVALID_REQUEST");
  };
  try {
    server.client().chat({});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "top_p must be at most 1, not 2 \xE2\x80\x93 sorry");
    EXPECT_EQ(error.reason(), "INVALID_REQUEST");
    EXPECT_EQ(error.field(), "top_p");
    EXPECT_EQ(error.limit(), "1");
    EXPECT_EQ(error.value(), "2");
    EXPECT_EQ(error.retry_after_s(), 1.5);
    EXPECT_EQ(error.request_id(), "of the server");
    EXPECT_TRUE(error.has_details());
  }
}

TEST(Errors, OfTheTransportHaveNoDetails) {
  FakeServer server;
  server.on_chat = [](auto&, auto&, auto&) { return grpc::Status(grpc::StatusCode::NOT_FOUND, "gone"); };
  CallOptions call;
  call.request_id = "mine";
  try {
    server.client().chat({}, call);
    FAIL();
  } catch (const ModelNotFoundError& error) {
    EXPECT_EQ(error.message(), "gone");
    EXPECT_EQ(error.reason(), "");
    EXPECT_EQ(error.request_id(), "mine");
    EXPECT_EQ(error.retry_after_s(), std::nullopt);
    EXPECT_FALSE(error.has_details());
  }
}

TEST(Errors, AreCaughtAsTheirBaseAndRaisedAsTheirClass) {
  ErrorFields fields;
  fields.reason = "CONTEXT_LENGTH_EXCEEDED";
  const auto error = make_error(fields);
  EXPECT_THROW(error->raise(), InvalidRequestError);
  EXPECT_THROW(error->raise(), ContextLengthError);
}

}  // namespace
}  // namespace triptych
