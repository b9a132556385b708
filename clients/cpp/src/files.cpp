#include "files.h"

#include <fstream>
#include <stdexcept>

namespace triptych::detail {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  // A directory can be opened, but not read.
  if (!file || !std::filesystem::is_regular_file(path)) throw std::runtime_error("cannot read the file " + path.string());
  std::string bytes(std::filesystem::file_size(path), '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw std::runtime_error("cannot read the file " + path.string());
  return bytes;
}

}  // namespace triptych::detail
