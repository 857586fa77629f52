# How everything here is compiled: warnings, sanitizers, the precompiled header, and faster tools where present.

set(DTENSOR_SANITIZE "" CACHE STRING "Sanitizers, as in -fsanitize=: address,undefined or thread")
option(DTENSOR_PCH "Use a precompiled header where LibTorch's big headers are included" ON)

add_library(dtensor_warnings INTERFACE)
target_compile_options(dtensor_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow)

# Everything -fPIC, programs too: a precompiled header serves only units with the same code model.
add_compile_options(-fPIC)

if(DTENSOR_SANITIZE)
  # vptr checks need the type information of LibTorch's hidden classes.
  add_compile_options(-fsanitize=${DTENSOR_SANITIZE} -fno-sanitize=vptr -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${DTENSOR_SANITIZE})
endif()

if(PROJECT_IS_TOP_LEVEL)
  find_program(DTENSOR_CCACHE ccache)
  if(DTENSOR_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # ccache takes precompiled headers only when told to trust them.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${DTENSOR_CCACHE})
  endif()
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=mold DTENSOR_MOLD)
  if(DTENSOR_MOLD)
    add_link_options(-fuse-ld=mold)
  endif()
endif()

# dtensor_precompile(target): one precompiled header, built once, serves all targets. Only the sources that name one of
# the headers below get it: loading it costs a file more (5 s with GCC 12) than most of LibTorch's smaller headers.
function(dtensor_precompile target)
  if(NOT DTENSOR_PCH)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    get_filename_component(path ${source} ABSOLUTE)
    file(STRINGS ${path} big REGEX "#include [<\"](torch/(torch\\.h|nn|optim)|dtensor/all\\.h|parallelize/all\\.h|support/check\\.h)")
    if(NOT big)
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  if(NOT TARGET dtensor_precompiled)
    file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/precompiled.cpp CONTENT "")
    add_library(dtensor_precompiled OBJECT ${PROJECT_BINARY_DIR}/precompiled.cpp)
    target_link_libraries(dtensor_precompiled PRIVATE dtensor_libtorch dtensor_warnings)
    target_precompile_headers(dtensor_precompiled PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.h)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(dtensor_precompiled PRIVATE -fpch-preprocess)
    endif()
  endif()
  target_precompile_headers(${target} REUSE_FROM dtensor_precompiled)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fpch-preprocess)  # for ccache
  endif()
endfunction()
