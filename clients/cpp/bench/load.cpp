// Many streams of the mock at once, in callback form: load [ADDRESS [STREAMS [TOKENS [ROUNDS]]]]
// Prints tokens per second, and the CPU time that this program took. Start the mock with: python -m triptych_mock --port 50051
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "triptych/client.h"

namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Counts {
  std::atomic<long> tokens = 0;
  std::atomic<long> failed = 0;
};

/// Runs one round of streams and waits for them.
void run_round(const triptych::Client& client, const triptych::v1::ChatStreamRequest& request, long streams, Counts& counts) {
  std::vector<triptych::AsyncCall> calls;
  for (long i = 0; i < streams; ++i) {
    calls.push_back(client.chat_async(
        request,
        [&](const triptych::v1::ChatStreamResponse& response) {
          for (const auto& choice : response.choices()) counts.tokens += choice.text().empty() ? 0 : 1;
        },
        [&](const triptych::StreamEnd& end) { counts.failed += end.error ? 1 : 0; }));
  }
  for (auto& call : calls) call.wait();
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int index, long otherwise) { return argc > index ? std::strtol(argv[index], nullptr, 10) : otherwise; };
  triptych::ClientOptions options;
  if (argc > 1) options.address = argv[1];
  const long streams = number(2, 256);
  const std::string script = R"({"mock": {"numTokens": )" + std::to_string(number(3, 200)) + "}}";
  triptych::v1::ChatStreamRequest request;
  *request.mutable_chat() = triptych::chat_request(triptych::message("user", script));

  const triptych::Client client(options);
  Counts counts;
  run_round(client, request, 1, counts);  // connects
  counts.tokens = 0;
  const double cpu_before = cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  for (long round = 0; round < number(4, 4); ++round) run_round(client, request, streams, counts);
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double cpu = cpu_seconds() - cpu_before;
  const auto tokens = static_cast<double>(counts.tokens);
  std::printf(
      "%ld streams: %.0f tokens in %.2f s, %.0f tokens/s; client CPU %.2f s (%.0f %% of one core, %.1f us per token); %ld failed\n",
      streams, tokens, wall, tokens / wall, cpu, 100 * cpu / wall, 1e6 * cpu / tokens, counts.failed.load());
  return counts.failed == 0 ? 0 : 1;
}
