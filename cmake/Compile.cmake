# How everything here is compiled: warnings, sanitizers, the precompiled header, and faster tools where present.

set(DTENSOR_SANITIZE "" CACHE STRING "Sanitizers, as in -fsanitize=: address,undefined or thread")
option(DTENSOR_PCH "Use a precompiled header where LibTorch's big headers are included" ON)
option(DTENSOR_UNITY "Compile the rooms' files in groups of six" ON)

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
    # ccache takes precompiled headers only when told to trust them. Depend mode: what a file includes, the compiler tells; it is
    # not preprocessed once more to find out.
    set(CMAKE_CXX_COMPILER_LAUNCHER
        ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1 ${DTENSOR_CCACHE})
  endif()
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=mold DTENSOR_MOLD)
  if(DTENSOR_MOLD)
    add_link_options(-fuse-ld=mold)
  endif()
endif()

# dtensor_precompile(target HEADER): one of the precompiled headers, each built once for all targets (cmake/precompiled_*.h).
#   aten              LibTorch's operators. Loading it costs a file 1.5 s with GCC 12, less than LibTorch's smallest header with
#                     a tensor in it.
#   torch             its whole interface: 5 s, so only for what includes torch/torch.h itself
#   tests             tensors, autograd and Catch2, for tests. Not optimized: they spend their time in LibTorch and in the rooms,
#   tests_of_modules  and take a third less to compile. With torch/torch.h: 6 s.
function(dtensor_precompile target header)
  if(NOT DTENSOR_PCH)
    return()
  endif()
  set(precompiled dtensor_precompiled_${header})
  set(options "")
  if(header MATCHES "^tests")
    set(options $<$<CONFIG:Release>:-O0>)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND options -fpch-preprocess)  # for ccache
  endif()
  if(NOT TARGET ${precompiled})
    file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/${precompiled}.cpp CONTENT "")
    add_library(${precompiled} OBJECT ${PROJECT_BINARY_DIR}/${precompiled}.cpp)
    target_link_libraries(${precompiled} PRIVATE dtensor_libtorch dtensor_warnings)
    target_precompile_headers(${precompiled} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled_${header}.h)
    target_compile_features(${precompiled} PRIVATE cxx_std_20)
    target_compile_options(${precompiled} PRIVATE ${options})
    if(header MATCHES "^tests")
      target_link_libraries(${precompiled} PRIVATE Catch2::Catch2)
    endif()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${precompiled})
  target_compile_options(${target} PRIVATE ${options})
endfunction()

# dtensor_compile_in_groups(target): several files a compilation. A file alone spends most of its time on templates that its
# neighbours need too; five together take as long as one or two. So names in anonymous namespaces differ within a room, and a
# file that defines macros for LibTorch's headers sets SKIP_UNITY_BUILD_INCLUSION. To see that each file includes what it uses,
# switch it off.
function(dtensor_compile_in_groups target)
  if(DTENSOR_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${target} PRIVATE -Wno-subobject-linkage)  # takes the included files for headers
    endif()
  endif()
endfunction()
