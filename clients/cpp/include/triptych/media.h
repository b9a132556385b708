#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "triptych/v1/generation.pb.h"

/// Parts of a chat. The file of a media part travels inside the request, which has at most 64 MiB.
namespace triptych {

v1::ContentPart text(std::string value);

/// A media part from the bytes of a file: JPEG, PNG, WAV, MP4 ...
v1::ContentPart image_from_bytes(std::string bytes);
v1::ContentPart audio_from_bytes(std::string bytes);
v1::ContentPart video_from_bytes(std::string bytes);

/// The same from a path. Throws std::runtime_error with the path if the file cannot be read.
v1::ContentPart image_from_file(const std::filesystem::path& path);
v1::ContentPart audio_from_file(const std::filesystem::path& path);
v1::ContentPart video_from_file(const std::filesystem::path& path);

namespace detail {

inline v1::ContentPart part(v1::ContentPart value) { return value; }
inline v1::ContentPart part(std::string value) { return text(std::move(value)); }

}  // namespace detail

/// A message of parts and texts, in the order in which the model sees them:
///
///     message("user", image_from_file("shapes.png"), "Where is the triangle?")
template <class... Parts>
v1::ChatMessage message(std::string role, Parts&&... parts) {
  v1::ChatMessage result;
  result.set_role(std::move(role));
  ((*result.add_content() = detail::part(std::forward<Parts>(parts))), ...);
  return result;
}

/// A request of these messages.
template <class... Messages>
v1::ChatRequest chat_request(Messages&&... messages) {
  v1::ChatRequest result;
  ((*result.add_messages() = std::forward<Messages>(messages)), ...);
  return result;
}

}  // namespace triptych
