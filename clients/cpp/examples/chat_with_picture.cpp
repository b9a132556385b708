// Streams an answer about a picture: chat_with_picture [ADDRESS [PICTURE [QUESTION]]]
#include <iostream>
#include <string>

#include "triptych/client.h"

int main(int argc, char** argv) {
  const auto argument = [&](int index, const char* otherwise) { return argc > index ? argv[index] : otherwise; };
  try {
    triptych::ClientOptions options;
    options.address = argument(1, "127.0.0.1:50051");
    const triptych::Client client(options);

    auto request = triptych::chat_request(triptych::message(
        "user", triptych::image_from_file(argument(2, "examples/three-shapes.png")), argument(3, "Where is the triangle?")));
    request.mutable_options()->mutable_sampling()->set_temperature(0);

    triptych::ChatAccumulator accumulator;
    for (const auto& response : client.chat_stream(request)) {
      for (const auto& choice : response.choices()) std::cout << choice.text() << std::flush;
      accumulator.add(response);
    }
    const auto& usage = accumulator.response().usage();
    std::cerr << "\n" << usage.image_tokens() << " of " << usage.prompt_tokens() << " prompt tokens are the picture's\n";
  } catch (const triptych::Error& error) {
    std::cerr << error.name() << ": " << error.what() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
