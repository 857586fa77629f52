# LibTorch as an imported target, dtensor_libtorch, read from the folder of a `torch` wheel or a LibTorch archive.
#
# LibTorch's own CMake package stops with a fatal error when a CUDA build meets a machine without the CUDA toolkit,
# and it injects its own -std flag. Neither suits a CPU-only newcomer, so this file looks at the folder itself.
# Folder: DTENSOR_TORCH_DIR (cache or environment), else the virtual environment that scripts/setup.sh makes.
# The installed package includes this very file.
#
# Sets DTENSOR_TORCH_VERSION (2.15), and DTENSOR_TORCH_CUDA (LibTorch holds CUDA) and DTENSOR_CUDA_INCLUDE (folder of
# cuda_runtime_api.h, or empty). Where both are there, dtensor_libtorch_cuda has what code that calls CUDA links.

set(DTENSOR_TORCH_DIR "$ENV{DTENSOR_TORCH_DIR}" CACHE PATH "LibTorch: the folder that holds include/ and lib/")
if(NOT DTENSOR_TORCH_DIR AND DTENSOR_TORCH_DIR_DEFAULT)  # the installed package: the folder it was built with
  set(DTENSOR_TORCH_DIR "${DTENSOR_TORCH_DIR_DEFAULT}")
elseif(NOT DTENSOR_TORCH_DIR)
  file(GLOB dtensor_found "${CMAKE_CURRENT_LIST_DIR}/../.venv/lib/python3*/site-packages/torch")
  if(dtensor_found)
    list(GET dtensor_found 0 DTENSOR_TORCH_DIR)
  endif()
endif()
get_filename_component(DTENSOR_TORCH_DIR "${DTENSOR_TORCH_DIR}" REALPATH)
if(NOT EXISTS "${DTENSOR_TORCH_DIR}/include/ATen/ATen.h")
  message(FATAL_ERROR "No LibTorch at '${DTENSOR_TORCH_DIR}'. Run scripts/setup.sh, or set DTENSOR_TORCH_DIR to the "
                      "folder that holds include/ and lib/ (for the Python wheel: .../site-packages/torch).")
endif()

file(STRINGS "${DTENSOR_TORCH_DIR}/include/torch/headeronly/version.h" dtensor_found
     REGEX "#define TORCH_VERSION_(MAJOR|MINOR) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" DTENSOR_TORCH_VERSION "${dtensor_found}")
if(DTENSOR_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "LibTorch ${DTENSOR_TORCH_VERSION} at ${DTENSOR_TORCH_DIR} is too old: 2.11 or newer is needed.")
endif()

# A wheel has CUDA's headers and libraries beside it (nvidia/...), of the version it was built for: preferred over a
# toolkit on the machine, whose version may differ.
get_filename_component(DTENSOR_NVIDIA_DIR "${DTENSOR_TORCH_DIR}/../nvidia" ABSOLUTE)
set(DTENSOR_TORCH_CUDA OFF)  # whether LibTorch has CUDA
if(EXISTS "${DTENSOR_TORCH_DIR}/lib/libtorch_cuda.so")
  set(DTENSOR_TORCH_CUDA ON)
endif()
# Looked for by a header that cuda_runtime_api.h includes and the wheel may lack (it comes with the compiler's part).
find_path(DTENSOR_CUDA_INCLUDE crt/host_defines.h NO_CACHE
  PATHS "${DTENSOR_NVIDIA_DIR}/cu13/include" "${DTENSOR_NVIDIA_DIR}/cuda_runtime/include" "$ENV{CUDA_HOME}/include"
        /usr/local/cuda/include
  NO_DEFAULT_PATH)
string(REGEX REPLACE "/$" "" DTENSOR_CUDA_INCLUDE "${DTENSOR_CUDA_INCLUDE}")
if(NOT DTENSOR_TORCH_CUDA)
  set(dtensor_cuda "CPU only")
elseif(NOT DTENSOR_CUDA_INCLUDE)
  set(dtensor_cuda "has CUDA; no CUDA headers here, so nothing that calls CUDA is built")
else()
  set(dtensor_cuda "has CUDA; CUDA headers from ${DTENSOR_CUDA_INCLUDE}")
endif()
if(DTENSOR_REQUIRE_CUDA AND NOT (DTENSOR_TORCH_CUDA AND DTENSOR_CUDA_INCLUDE))  # preset gpu
  message(FATAL_ERROR "CUDA cannot be used: the LibTorch at ${DTENSOR_TORCH_DIR}: ${dtensor_cuda}.")
endif()
message(STATUS "LibTorch ${DTENSOR_TORCH_VERSION}: ${DTENSOR_TORCH_DIR} (${dtensor_cuda})")

if(NOT TARGET dtensor_libtorch)
  # Two targets for one reason: LibTorch ships its own copy of fmt, of another version than the one our text code
  # links. What dtensor_libtorch lists first comes first on the include path, so <fmt/...> is always dtensor_fmt's.
  add_library(dtensor_libtorch_folder INTERFACE IMPORTED GLOBAL)
  target_include_directories(dtensor_libtorch_folder INTERFACE
    "${DTENSOR_TORCH_DIR}/include" "${DTENSOR_TORCH_DIR}/include/torch/csrc/api/include")
  target_link_directories(dtensor_libtorch_folder INTERFACE "${DTENSOR_TORCH_DIR}/lib")
  target_link_options(dtensor_libtorch_folder INTERFACE
    "LINKER:-rpath,${DTENSOR_TORCH_DIR}/lib" "LINKER:--no-as-needed")
  target_link_libraries(dtensor_libtorch_folder INTERFACE torch torch_cpu c10)
  add_library(dtensor_libtorch INTERFACE IMPORTED GLOBAL)
  target_link_libraries(dtensor_libtorch INTERFACE dtensor_fmt dtensor_libtorch_folder)

  # Users of the installed package need CUDA's libraries, but not its headers.
  if(DTENSOR_TORCH_CUDA AND (DTENSOR_CUDA_INCLUDE OR DTENSOR_INSTALLED))
    # libcudart is linked by its path: the wheels lack the plain name that -lcudart looks for. The wheel's own comes
    # before the toolkit's: a program loads one, and LibTorch was built for that. It also keeps the toolkit's folder, which
    # may hold an older NCCL, off the path where linkers look for what LibTorch's libraries need.
    file(GLOB dtensor_found
      "${DTENSOR_NVIDIA_DIR}/cu13/lib/libcudart.so*" "${DTENSOR_NVIDIA_DIR}/cuda_runtime/lib/libcudart.so*")
    if(NOT dtensor_found)
      file(GLOB dtensor_found "${DTENSOR_CUDA_INCLUDE}/../lib/libcudart.so*" "${DTENSOR_CUDA_INCLUDE}/../lib64/libcudart.so*")
    endif()
    add_library(dtensor_libtorch_cuda INTERFACE IMPORTED GLOBAL)
    if(DTENSOR_CUDA_INCLUDE)
      target_include_directories(dtensor_libtorch_cuda INTERFACE "${DTENSOR_CUDA_INCLUDE}")
    endif()
    target_link_libraries(dtensor_libtorch_cuda INTERFACE dtensor_libtorch torch_cuda c10_cuda)
    file(GLOB dtensor_cuda LIST_DIRECTORIES true "${DTENSOR_NVIDIA_DIR}/*/lib")
    foreach(folder ${dtensor_cuda})
      target_link_options(dtensor_libtorch_cuda INTERFACE "LINKER:-rpath-link,${folder}")
    endforeach()
    if(dtensor_found)
      list(GET dtensor_found 0 dtensor_found)
      get_filename_component(dtensor_found "${dtensor_found}" REALPATH)
      get_filename_component(dtensor_cuda "${dtensor_found}" DIRECTORY)
      target_link_libraries(dtensor_libtorch_cuda INTERFACE "${dtensor_found}")
      target_link_options(dtensor_libtorch_cuda INTERFACE "LINKER:-rpath,${dtensor_cuda}")
    endif()
  endif()
endif()
unset(dtensor_found)
unset(dtensor_cuda)
