# What is built in this repository, and not for programs that use the client.
find_package(GTest REQUIRED)
include(GoogleTest)

set(warnings -Wall -Wextra -Wpedantic -Werror)
target_compile_options(triptych_client PRIVATE ${warnings})

# The contracts of the mock and of conformance cases, which no client needs.
triptych_generate(testing "${TRIPTYCH_PROTOS}"
  PROTOS triptych/mock/v1/mock.proto triptych/conformance/v1/conformance.proto)
add_library(triptych_conformance_protos STATIC ${testing})
target_link_libraries(triptych_conformance_protos PUBLIC triptych::client)

function(triptych_program name)
  add_executable(${name} ${ARGN})
  target_compile_options(${name} PRIVATE ${warnings})
  target_link_libraries(${name} PRIVATE triptych::client)
endfunction()

triptych_program(chat_with_picture examples/chat_with_picture.cpp)
triptych_program(load bench/load.cpp)
triptych_program(conformance conformance/main.cpp)
target_link_libraries(conformance PRIVATE triptych_conformance_protos)

triptych_program(unit_tests
  tests/accumulate_test.cpp tests/async_test.cpp tests/callback_reader_test.cpp tests/calls_test.cpp tests/error_test.cpp tests/stream_test.cpp tests/tls_test.cpp)
target_include_directories(unit_tests PRIVATE src)
target_link_libraries(unit_tests PRIVATE GTest::gtest_main)
# Style and bugs: cmake --build build/clients/cpp --target lint
find_program(CLANG_FORMAT clang-format)
find_program(CLANG_TIDY clang-tidy)
file(GLOB_RECURSE own CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}"
  include/*.h src/*.h src/*.cpp tests/*.h tests/*.cpp conformance/*.h conformance/*.cpp examples/*.cpp bench/*.cpp)
set(tidied ${own})
list(FILTER tidied INCLUDE REGEX "^(src|conformance|examples|bench)/.*\\.cpp$")
add_custom_target(lint
  COMMAND ${CLANG_FORMAT} --dry-run --Werror ${own}
  COMMAND ${CLANG_TIDY} -p "${PROJECT_BINARY_DIR}" --quiet ${tidied}
  WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
  DEPENDS triptych_client triptych_conformance_protos
  VERBATIM)

gtest_discover_tests(unit_tests PROPERTIES TIMEOUT 60 DISCOVERY_TIMEOUT 60)
