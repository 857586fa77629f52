# Which backends comm/ is built with. A backend whose headers are missing is replaced by its stub file (no_gloo.cpp,
# no_nccl.cpp), so the sources have no #ifdefs.
#
#   DTENSOR_GLOO, DTENSOR_NCCL   AUTO (default: if the headers are there), ON (stop if they are not), OFF
#   DTENSOR_GLOO_INCLUDE, DTENSOR_NCCL_INCLUDE   folders of gloo/config.h and nccl.h, where they are not found
#
# Sets DTENSOR_COMM_EXCLUDE (sources to leave out) and DTENSOR_COMM_LINKS.
# LibTorch's library has Gloo in it; what it lacks are the headers (Debian: libgloo-dev). NCCL's headers come with the
# nvidia-nccl package that a CUDA wheel of LibTorch brings along.

set(DTENSOR_GLOO AUTO CACHE STRING "Gloo, for CPU tensors of processes: AUTO, ON or OFF")
set(DTENSOR_NCCL AUTO CACHE STRING "NCCL, for CUDA tensors: AUTO, ON or OFF")
set_property(CACHE DTENSOR_GLOO DTENSOR_NCCL PROPERTY STRINGS AUTO ON OFF)

find_path(DTENSOR_GLOO_INCLUDE gloo/config.h HINTS "${DTENSOR_DEPS}/include")
find_path(DTENSOR_NCCL_INCLUDE nccl.h  # the version LibTorch was built for, before any other
  HINTS "${DTENSOR_NVIDIA_DIR}/nccl/include" "$ENV{NCCL_HOME}/include" PATHS /usr/local/cuda/include)

set(DTENSOR_COMM_EXCLUDE "")
set(DTENSOR_COMM_LINKS "")

set(dtensor_gloo_missing "")
if(NOT DTENSOR_GLOO_INCLUDE)
  set(dtensor_gloo_missing "gloo/config.h is not found (libgloo-dev, or DTENSOR_GLOO_INCLUDE)")
elseif(NOT EXISTS "${DTENSOR_TORCH_DIR}/include/torch/csrc/distributed/c10d/ProcessGroupGloo.hpp")
  set(dtensor_gloo_missing "this LibTorch has no ProcessGroupGloo.hpp")
endif()
set(dtensor_nccl_missing "")
if(NOT DTENSOR_TORCH_CUDA)
  set(dtensor_nccl_missing "this LibTorch is for CPUs only")
elseif(NOT DTENSOR_CUDA_INCLUDE)
  set(dtensor_nccl_missing "CUDA's headers are not found")
elseif(NOT DTENSOR_NCCL_INCLUDE)
  set(dtensor_nccl_missing "nccl.h is not found (DTENSOR_NCCL_INCLUDE)")
elseif(NOT TARGET dtensor_libtorch_cuda)
  set(dtensor_nccl_missing "LibTorch's CUDA libraries cannot be linked")
endif()

# The rest happens once per backend: choose the file, say so.
foreach(backend GLOO NCCL)
  string(TOLOWER ${backend} name)
  if("${DTENSOR_${backend}}" STREQUAL "AUTO")
    set(wanted TRUE)
  else()
    set(wanted ${DTENSOR_${backend}})
    if(wanted AND dtensor_${name}_missing)
      message(FATAL_ERROR "DTENSOR_${backend}=ON, but ${dtensor_${name}_missing}.")
    endif()
  endif()
  if(wanted AND NOT dtensor_${name}_missing)
    set(DTENSOR_WITH_${backend} ON)
    list(APPEND DTENSOR_COMM_EXCLUDE no_${name}.cpp)
    message(STATUS "Backend ${name}: yes (${DTENSOR_${backend}_INCLUDE})")
  else()
    set(DTENSOR_WITH_${backend} OFF)
    list(APPEND DTENSOR_COMM_EXCLUDE ${name}.cpp)
    if(wanted)
      message(STATUS "Backend ${name}: no, ${dtensor_${name}_missing}")
    else()
      message(STATUS "Backend ${name}: no, DTENSOR_${backend}=OFF")
    endif()
  endif()
endforeach()

# Definitions and include folders for the one file that needs each: they would reach others' headers otherwise.
function(dtensor_backend_source name definition folder)
  set(source ${PROJECT_SOURCE_DIR}/comm/${name}.cpp)
  # A precompiled header serves only files with the same definitions.
  set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS ${definition})
  if(NOT folder IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)  # -isystem /usr/include would hide the compiler's own
    set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -isystem${folder})
  endif()
endfunction()
if(DTENSOR_WITH_GLOO)
  dtensor_backend_source(gloo USE_C10D_GLOO "${DTENSOR_GLOO_INCLUDE}")
endif()
if(DTENSOR_WITH_NCCL)
  dtensor_backend_source(nccl USE_C10D_NCCL "${DTENSOR_NCCL_INCLUDE}")
  list(APPEND DTENSOR_COMM_LINKS dtensor_libtorch_cuda)
endif()
