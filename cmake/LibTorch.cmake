# LibTorch as one imported target, dtensor_libtorch, read from the folder of a `torch` wheel or a LibTorch archive.
#
# LibTorch's own CMake package stops with a fatal error when a CUDA build meets a machine without the CUDA toolkit,
# and it injects its own -std flag. Neither suits a CPU-only newcomer, so this file looks at the folder itself.
# Folder: DTENSOR_TORCH_DIR (cache or environment), else the virtual environment that scripts/setup.sh makes.

set(DTENSOR_TORCH_DIR "$ENV{DTENSOR_TORCH_DIR}" CACHE PATH "LibTorch: the folder that holds include/ and lib/")
if(NOT DTENSOR_TORCH_DIR)
  file(GLOB dtensor_torch_candidates "${CMAKE_CURRENT_LIST_DIR}/../.venv/lib/python3*/site-packages/torch")
  list(GET dtensor_torch_candidates 0 DTENSOR_TORCH_DIR)
endif()
if(NOT EXISTS "${DTENSOR_TORCH_DIR}/include/ATen/ATen.h")
  message(FATAL_ERROR "No LibTorch at '${DTENSOR_TORCH_DIR}'. Run scripts/setup.sh, or set DTENSOR_TORCH_DIR to the "
                      "folder that holds include/ and lib/ (for the Python wheel: .../site-packages/torch).")
endif()
file(STRINGS "${DTENSOR_TORCH_DIR}/include/torch/headeronly/version.h" dtensor_torch_version
     REGEX "#define TORCH_VERSION_(MAJOR|MINOR)")
message(STATUS "LibTorch: ${DTENSOR_TORCH_DIR}")

add_library(dtensor_libtorch INTERFACE)
target_include_directories(dtensor_libtorch SYSTEM INTERFACE
  "${DTENSOR_TORCH_DIR}/include" "${DTENSOR_TORCH_DIR}/include/torch/csrc/api/include")
target_link_directories(dtensor_libtorch INTERFACE "${DTENSOR_TORCH_DIR}/lib")
target_link_options(dtensor_libtorch INTERFACE "LINKER:-rpath,${DTENSOR_TORCH_DIR}/lib" "LINKER:--no-as-needed")
target_link_libraries(dtensor_libtorch INTERFACE torch torch_cpu c10)
