#include "triptych/media.h"

#include <utility>

#include "files.h"

namespace triptych {
namespace {

v1::ContentPart media(v1::Modality modality, std::string bytes) {
  v1::ContentPart part;
  part.mutable_media()->set_modality(modality);
  part.mutable_media()->set_data(std::move(bytes));
  return part;
}

}  // namespace

v1::ContentPart text(std::string value) {
  v1::ContentPart part;
  part.set_text(std::move(value));
  return part;
}

v1::ContentPart image_from_bytes(std::string bytes) { return media(v1::MODALITY_IMAGE, std::move(bytes)); }
v1::ContentPart audio_from_bytes(std::string bytes) { return media(v1::MODALITY_AUDIO, std::move(bytes)); }
v1::ContentPart video_from_bytes(std::string bytes) { return media(v1::MODALITY_VIDEO, std::move(bytes)); }

v1::ContentPart image_from_file(const std::filesystem::path& path) { return image_from_bytes(detail::read_file(path)); }
v1::ContentPart audio_from_file(const std::filesystem::path& path) { return audio_from_bytes(detail::read_file(path)); }
v1::ContentPart video_from_file(const std::filesystem::path& path) { return video_from_bytes(detail::read_file(path)); }

}  // namespace triptych
