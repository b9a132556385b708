#include "triptych/error.h"

#include <string_view>
#include <unordered_map>
#include <utility>

namespace triptych {
namespace {

using Factory = std::shared_ptr<const Error> (*)(ErrorFields);

template <class Class>
std::shared_ptr<const Error> make(ErrorFields fields) {
  return std::make_shared<const Class>(std::move(fields));
}

template <class... Classes>
std::unordered_map<std::string_view, Factory> by_reason() {
  return {{Classes::kReason, make<Classes>}...};
}

Factory factory_of_code(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return make<InvalidRequestError>;
    case Code::kDeadlineExceeded:
      return make<DeadlineExceededError>;
    case Code::kNotFound:
      return make<ModelNotFoundError>;
    case Code::kAlreadyExists:
      return make<DuplicateRequestError>;
    case Code::kPermissionDenied:
      return make<PermissionDeniedError>;
    case Code::kResourceExhausted:
      return make<QueueFullError>;
    case Code::kFailedPrecondition:
    case Code::kUnavailable:
      return make<ServiceUnavailableError>;
    case Code::kCancelled:
    case Code::kAborted:
      return make<RequestAbortedError>;
    case Code::kUnimplemented:
      return make<UnimplementedError>;
    case Code::kUnauthenticated:
      return make<UnauthenticatedError>;
    default:
      return make<InternalError>;
  }
}

}  // namespace

std::shared_ptr<const Error> make_error(ErrorFields fields) {
  static const auto factories =
      by_reason<InvalidRequestError, ContextLengthError, NeverFitsError, ModelNotFoundError, MediaNotFoundError,
                DuplicateRequestError, QueueFullError, ServiceUnavailableError, EmbeddingUnavailableError, RequestAbortedError,
                DeadlineExceededError, UnauthenticatedError, PermissionDeniedError, UnimplementedError, InternalError, StartupError,
                UnsupportedModelError>();
  const auto found = factories.find(fields.reason);
  const Factory factory = found != factories.end() ? found->second : factory_of_code(fields.code);
  return factory(std::move(fields));
}

}  // namespace triptych
