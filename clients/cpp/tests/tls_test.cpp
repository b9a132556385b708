#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "fake_server.h"

namespace triptych {
namespace {

using testing::FakeServer;

std::string content(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// Certificates of an authority, of a server named "frontend.test" and of a client, made by the program openssl.
class Tls : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = std::filesystem::path(::testing::TempDir()) /
                 ("triptych_tls_" + std::to_string(::testing::UnitTest::GetInstance()->random_seed()));
    std::filesystem::create_directories(directory_);
    const std::string script = "cd '" + directory_.string() + R"(' && exec >openssl.log 2>&1 && set -ex
      new="openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
      $new -x509 -days 2 -subj /CN=authority -keyout authority.key -out authority.pem
      echo "subjectAltName=DNS:frontend.test" > server.ext
      for name in server client; do
        $new -subj /CN=$name -keyout $name.key -out $name.csr
        ext=; if [ $name = server ]; then ext="-extfile server.ext"; fi
        openssl x509 -req -days 2 -CA authority.pem -CAkey authority.key -CAcreateserial $ext -in $name.csr -out $name.pem
      done)";
    ASSERT_EQ(std::system(script.c_str()), 0) << content(directory_ / "openssl.log");
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(directory_); }

  static std::shared_ptr<grpc::ServerCredentials> credentials(bool ask_client) {
    grpc::SslServerCredentialsOptions options(ask_client ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                                         : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
    options.pem_root_certs = content(directory_ / "authority.pem");
    options.pem_key_cert_pairs.push_back({content(directory_ / "server.key"), content(directory_ / "server.pem")});
    return grpc::SslServerCredentials(options);
  }

  static v1::ChatResponse call(FakeServer& server, const TlsOptions& tls) {
    server.on_chat = [](auto&, auto&, v1::ChatResponse& response) {
      response.set_model("m");
      return grpc::Status::OK;
    };
    auto options = server.options();
    options.tls = tls;
    return Client(options).chat({});
  }

  static TlsOptions trust() { return {directory_ / "authority.pem", {}, {}, "frontend.test"}; }

  static inline std::filesystem::path directory_;
};

TEST_F(Tls, TrustsAPrivateAuthority) {
  FakeServer server(credentials(false));
  EXPECT_EQ(call(server, trust()).model(), "m");
}

TEST_F(Tls, RefusesAnotherNameOrAuthority) {
  FakeServer server(credentials(false));
  auto tls = trust();
  tls.server_name = "other.test";
  EXPECT_THROW(call(server, tls), ServiceUnavailableError);
  tls = trust();
  tls.root_certificates.clear();
  EXPECT_THROW(call(server, tls), ServiceUnavailableError);
}

TEST_F(Tls, ShowsItsOwnCertificate) {
  FakeServer server(credentials(true));
  auto tls = trust();
  EXPECT_THROW(call(server, tls), ServiceUnavailableError);
  tls.certificate = directory_ / "client.pem";
  tls.private_key = directory_ / "client.key";
  EXPECT_EQ(call(server, tls).model(), "m");
}

TEST_F(Tls, ChecksItsFiles) {
  ClientOptions options;
  options.tls = trust();
  options.tls->certificate = directory_ / "client.pem";
  EXPECT_THROW(Client{options}, std::invalid_argument);
  options.tls->private_key = directory_ / "missing.key";
  EXPECT_THROW(Client{options}, std::runtime_error);
}

}  // namespace
}  // namespace triptych
