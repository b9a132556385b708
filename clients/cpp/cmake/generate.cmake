# C++ of protocol buffers, at build time.
set(TRIPTYCH_GENERATED "${PROJECT_BINARY_DIR}/generated")
file(MAKE_DIRECTORY "${TRIPTYCH_GENERATED}")

# triptych_generate(<variable> <root> PROTOS <file>... [SERVICES <file>...]): sets <variable> to the sources. Files are relative to <root>.
# Those of SERVICES also get stubs of gRPC.
function(triptych_generate variable root)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "PROTOS;SERVICES")
  set(sources)
  foreach(proto IN LISTS arg_PROTOS)
    string(REGEX REPLACE "\\.proto$" "" stem "${TRIPTYCH_GENERATED}/${proto}")
    set(outputs "${stem}.pb.cc" "${stem}.pb.h")
    set(plugin)
    if(proto IN_LIST arg_SERVICES)
      list(APPEND outputs "${stem}.grpc.pb.cc" "${stem}.grpc.pb.h")
      set(plugin "--grpc_out=${TRIPTYCH_GENERATED}" "--plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>")
    endif()
    add_custom_command(
      OUTPUT ${outputs}
      COMMAND protobuf::protoc "-I${root}" "-I${TRIPTYCH_PROTOS}" "--cpp_out=${TRIPTYCH_GENERATED}" ${plugin} "${root}/${proto}"
      DEPENDS "${root}/${proto}" protobuf::protoc
      COMMENT "Generating C++ of ${proto}"
      VERBATIM)
    list(APPEND sources ${outputs})
  endforeach()
  # The warnings of generated code are not ours.
  set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "-w")
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()
