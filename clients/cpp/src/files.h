#pragma once

#include <filesystem>
#include <string>

namespace triptych::detail {

/// The bytes of a file. Throws std::runtime_error with the path if it cannot be read.
std::string read_file(const std::filesystem::path& path);

}  // namespace triptych::detail
