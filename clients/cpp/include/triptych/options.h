#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "triptych/v1/generation.pb.h"

namespace triptych {

namespace detail {
class CancellationState;
/// A variable of the environment, or `otherwise` if it is not set or empty.
std::string environment(const char* name, const char* otherwise);
}  // namespace detail

/// Paths of PEM files.
struct TlsOptions {
  /// Certificates of the authority that signed the server's certificate. Empty: the authorities that gRPC trusts.
  std::string root_certificates;
  /// The client's own certificate and key, for servers that ask for one. Both or neither.
  std::string certificate;
  std::string private_key;
  /// Name in the server's certificate, if it is not the host of the address.
  std::string server_name;
};

struct ClientOptions {
  /// host:port of a gateway, or another target of gRPC (`dns:///...`). Default: $TRIPTYCH_ADDRESS, or 127.0.0.1:50051.
  std::string address = detail::environment("TRIPTYCH_ADDRESS", "127.0.0.1:50051");
  /// Absent: no TLS.
  std::optional<TlsOptions> tls;
  /// Sent as `authorization: Bearer KEY`. Empty: not sent. Default: $TRIPTYCH_API_KEY.
  std::string api_key = detail::environment("TRIPTYCH_API_KEY", "");
  /// Deadline of calls that have none of their own. Absent: none.
  std::optional<std::chrono::milliseconds> timeout;
};

/// Cancels calls from any thread. Copies share one state, and one Cancellation may be given to many calls.
class Cancellation {
 public:
  Cancellation();

  /// Ends the calls that have this Cancellation, also those that start later, with RequestAbortedError (code kCancelled).
  void cancel() const;

 private:
  friend class detail::CancellationState;
  std::shared_ptr<detail::CancellationState> state_;
};

/// Options of one call.
struct CallOptions {
  /// Deadline. Absent: the client's.
  std::optional<std::chrono::milliseconds> timeout;
  /// Sent as `x-request-id`. Empty: the server chooses an id.
  std::string request_id;
  /// Lets another thread cancel the call, also while it waits for its first response.
  std::optional<Cancellation> cancellation;
  /// Filled with the trailing metadata's reports on media when `chat` or `complete` succeeded. Streams have their own
  /// `trailing_media()`.
  std::vector<v1::MediaReport>* trailing_media = nullptr;
};

}  // namespace triptych
