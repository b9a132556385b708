#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>

namespace triptych {

/// gRPC status codes.
enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

/// What is known of an error.
struct ErrorFields {
  Code code = Code::kUnknown;
  /// One sentence for people. It names the field, the limit and the value.
  std::string message;
  /// UPPER_SNAKE_CASE constant for programs. Empty if the error comes from the transport.
  std::string reason;
  /// The offending field, e.g. `messages[0].role`, the limit that was exceeded, and what was given. Empty where there is none.
  std::string field;
  std::string limit;
  std::string value;
  /// When to try again, in seconds. Absent if a retry will not help.
  std::optional<double> retry_after_s;
  /// Of the call, as the services' logs have it. Empty if neither the caller nor the service gave one.
  std::string request_id;
  /// Whether a service of Triptych sent details with the status. If not, the error comes from the transport.
  bool has_details = false;
};

/// Base of all errors of calls. The subclasses have the names of docs/contracts.md.
class Error : public std::exception {
 public:
  explicit Error(ErrorFields fields) : fields_(std::make_shared<const ErrorFields>(std::move(fields))) {}

  const char* what() const noexcept override { return fields_->message.c_str(); }
  /// Name of the class, e.g. `QueueFullError`.
  virtual const char* name() const noexcept = 0;
  /// Throws a copy of this error as its own class.
  [[noreturn]] virtual void raise() const = 0;

  Code code() const noexcept { return fields_->code; }
  const std::string& message() const noexcept { return fields_->message; }
  const std::string& reason() const noexcept { return fields_->reason; }
  const std::string& field() const noexcept { return fields_->field; }
  const std::string& limit() const noexcept { return fields_->limit; }
  const std::string& value() const noexcept { return fields_->value; }
  std::optional<double> retry_after_s() const noexcept { return fields_->retry_after_s; }
  const std::string& request_id() const noexcept { return fields_->request_id; }
  bool has_details() const noexcept { return fields_->has_details; }

 private:
  std::shared_ptr<const ErrorFields> fields_;  // shared, because the copy of an exception must not throw
};

namespace detail {

/// Gives a class of the tree its name, from `Self::kName`, and its way of being thrown.
template <class Self, class Base = Error>
class ErrorBase : public Base {
 public:
  using Base::Base;
  const char* name() const noexcept override { return Self::kName; }
  [[noreturn]] void raise() const override { throw static_cast<const Self&>(*this); }
};

}  // namespace detail

/// The request is at fault. A retry will not help.
struct InvalidRequestError : detail::ErrorBase<InvalidRequestError> {
  static constexpr const char* kName = "InvalidRequestError";
  static constexpr const char* kReason = "INVALID_REQUEST";
  using ErrorBase::ErrorBase;
};

/// The prompt, or prompt and output together, are longer than the model's context.
struct ContextLengthError final : detail::ErrorBase<ContextLengthError, InvalidRequestError> {
  static constexpr const char* kName = "ContextLengthError";
  static constexpr const char* kReason = "CONTEXT_LENGTH_EXCEEDED";
  using ErrorBase::ErrorBase;
};

/// The request needs more KV cache than the engine has in total.
struct NeverFitsError final : detail::ErrorBase<NeverFitsError, InvalidRequestError> {
  static constexpr const char* kName = "NeverFitsError";
  static constexpr const char* kReason = "KV_CACHE_CAPACITY_EXCEEDED";
  using ErrorBase::ErrorBase;
};

/// No model of that name is served here.
struct ModelNotFoundError final : detail::ErrorBase<ModelNotFoundError> {
  static constexpr const char* kName = "ModelNotFoundError";
  static constexpr const char* kReason = "MODEL_NOT_FOUND";
  using ErrorBase::ErrorBase;
};

/// The cache has no embedding for this key, and the request came without the file: send the file.
struct MediaNotFoundError final : detail::ErrorBase<MediaNotFoundError> {
  static constexpr const char* kName = "MediaNotFoundError";
  static constexpr const char* kReason = "MEDIA_NOT_FOUND";
  using ErrorBase::ErrorBase;
};

/// A live request already has this id.
struct DuplicateRequestError final : detail::ErrorBase<DuplicateRequestError> {
  static constexpr const char* kName = "DuplicateRequestError";
  static constexpr const char* kReason = "DUPLICATE_REQUEST";
  using ErrorBase::ErrorBase;
};

/// The queue is at its limit. Try again after `retry_after_s()`.
struct QueueFullError final : detail::ErrorBase<QueueFullError> {
  static constexpr const char* kName = "QueueFullError";
  static constexpr const char* kReason = "QUEUE_FULL";
  using ErrorBase::ErrorBase;
};

/// A service that the request needs is unavailable, draining or asleep.
struct ServiceUnavailableError final : detail::ErrorBase<ServiceUnavailableError> {
  static constexpr const char* kName = "ServiceUnavailableError";
  static constexpr const char* kReason = "SERVICE_UNAVAILABLE";
  using ErrorBase::ErrorBase;
};

/// A required embedding is no longer held, or its encoder is unavailable.
struct EmbeddingUnavailableError final : detail::ErrorBase<EmbeddingUnavailableError> {
  static constexpr const char* kName = "EmbeddingUnavailableError";
  static constexpr const char* kReason = "EMBEDDING_UNAVAILABLE";
  using ErrorBase::ErrorBase;
};

/// The request was aborted, or the client cancelled the call. After a cancellation the code is `kCancelled`.
struct RequestAbortedError final : detail::ErrorBase<RequestAbortedError> {
  static constexpr const char* kName = "RequestAbortedError";
  static constexpr const char* kReason = "ABORTED";
  using ErrorBase::ErrorBase;
};

/// The call took longer than its deadline. The work was aborted.
struct DeadlineExceededError final : detail::ErrorBase<DeadlineExceededError> {
  static constexpr const char* kName = "DeadlineExceededError";
  static constexpr const char* kReason = "DEADLINE_EXCEEDED";
  using ErrorBase::ErrorBase;
};

/// The call has no key, or one that is not valid.
struct UnauthenticatedError final : detail::ErrorBase<UnauthenticatedError> {
  static constexpr const char* kName = "UnauthenticatedError";
  static constexpr const char* kReason = "UNAUTHENTICATED";
  using ErrorBase::ErrorBase;
};

/// The caller is known, and may not do this.
struct PermissionDeniedError final : detail::ErrorBase<PermissionDeniedError> {
  static constexpr const char* kName = "PermissionDeniedError";
  static constexpr const char* kReason = "PERMISSION_DENIED";
  using ErrorBase::ErrorBase;
};

/// The request is valid, but this service or model does not support it.
struct UnimplementedError final : detail::ErrorBase<UnimplementedError> {
  static constexpr const char* kName = "UnimplementedError";
  static constexpr const char* kReason = "UNIMPLEMENTED";
  using ErrorBase::ErrorBase;
};

/// An unexpected error. The service's log has the traceback.
struct InternalError final : detail::ErrorBase<InternalError> {
  static constexpr const char* kName = "InternalError";
  static constexpr const char* kReason = "INTERNAL";
  using ErrorBase::ErrorBase;
};

/// A service cannot start. Never the error of a call.
struct StartupError : detail::ErrorBase<StartupError> {
  static constexpr const char* kName = "StartupError";
  static constexpr const char* kReason = "STARTUP";
  using ErrorBase::ErrorBase;
};

/// A service cannot run its model correctly. Never the error of a call.
struct UnsupportedModelError final : detail::ErrorBase<UnsupportedModelError, StartupError> {
  static constexpr const char* kName = "UnsupportedModelError";
  static constexpr const char* kReason = "UNSUPPORTED_MODEL";
  using ErrorBase::ErrorBase;
};

/// The error with these fields. The class goes by the reason. If that is empty or unknown, it goes by the code.
std::shared_ptr<const Error> make_error(ErrorFields fields);

}  // namespace triptych
