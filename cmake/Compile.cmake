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

# dtensor_precompile(target torch|aten|tests): one of the precompiled headers, each built once for all targets: LibTorch's
# whole interface, for what uses modules; its operators alone; or what tests include (cmake/precompiled_*.h). Only the sources
# that name one of the headers below get it: loading it costs a file more (1 to 5 s with GCC 12) than most of LibTorch's
# smaller headers. `tests` is not optimized: such tests spend their time in LibTorch and in the rooms, and take a third less to
# compile.
set(dtensor_big_torch
  "torch/(torch\\.h|nn/|optim|csrc/jit)|(dtensor|parallelize)/all\\.h|parallelize/parallelize_module\\.h|support/check\\.h")
set(dtensor_big_tests ${dtensor_big_torch})
set(dtensor_big_aten "ATen/(ATen|Functions|TensorOperators)\\.h|torch/csrc/autograd/|brute_force\\.h")
function(dtensor_precompile target header)
  if(NOT DTENSOR_PCH)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  set(any FALSE)
  foreach(source ${sources})
    get_filename_component(path ${source} ABSOLUTE)
    file(STRINGS ${path} big REGEX "#include [<\"](${dtensor_big_${header}})")
    if(big)
      set(any TRUE)
    else()
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  if(NOT any)
    return()
  endif()
  set(precompiled dtensor_precompiled_${header})
  set(options "")
  if(header STREQUAL "tests")
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
    if(header STREQUAL "tests")
      target_link_libraries(${precompiled} PRIVATE Catch2::Catch2)
    endif()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${precompiled})
  target_compile_options(${target} PRIVATE ${options})
endfunction()
