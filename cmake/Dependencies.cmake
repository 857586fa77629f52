# The other libraries, each as one imported target: dtensor_fmt, dtensor_json (nlohmann-json and valijson),
# dtensor_cli11, dtensor_spdlog. They come from the system (Debian's packages), or with -DDTENSOR_DEPS=DIR from the
# folder DIR/include alone, all header-only: for machines without a network (docs/building.md).
# The installed package includes this very file.

set(DTENSOR_DEPS "" CACHE PATH "Folder with include/{fmt,nlohmann,valijson,CLI,spdlog} and catch2/, instead of the system")
if(DTENSOR_DEPS)
  get_filename_component(DTENSOR_DEPS "${DTENSOR_DEPS}" ABSOLUTE BASE_DIR "${CMAKE_SOURCE_DIR}")
  message(STATUS "Header-only dependencies: ${DTENSOR_DEPS}")
endif()

# dtensor_header_library(name header): an imported target for a library that is found by this header.
function(dtensor_header_library name header)
  if(TARGET ${name})
    return()
  endif()
  if(DTENSOR_DEPS)
    find_path(folder ${header} PATHS ${DTENSOR_DEPS}/include NO_DEFAULT_PATH NO_CACHE)
  else()
    find_path(folder ${header} NO_CACHE)
  endif()
  if(NOT folder AND NOT DTENSOR_INSTALLED)  # users of the installed libraries need only some of these headers
    message(FATAL_ERROR "<${header}> is missing. Run scripts/setup.sh, or give a folder by -DDTENSOR_DEPS (docs/dependencies.md).")
  endif()
  add_library(${name} INTERFACE IMPORTED GLOBAL)
  if(folder)
    target_include_directories(${name} INTERFACE ${folder})
  endif()
endfunction()

if(DTENSOR_DEPS)
  dtensor_header_library(dtensor_fmt fmt/format.h)
  target_compile_definitions(dtensor_fmt INTERFACE FMT_HEADER_ONLY=1)
  dtensor_header_library(dtensor_spdlog spdlog/spdlog.h)
  target_compile_definitions(dtensor_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
  target_link_libraries(dtensor_spdlog INTERFACE dtensor_fmt)
else()
  find_package(fmt REQUIRED)
  find_package(spdlog REQUIRED)
  if(NOT TARGET dtensor_fmt)
    # A system's include folder cannot be put before another (compilers ignore the request), and LibTorch's folder has
    # an fmt/ of its own. A folder that holds nothing but a link to the system's fmt/ can.
    find_path(dtensor_fmt_folder fmt/format.h NO_CACHE)
    set(dtensor_fmt_link ${CMAKE_CURRENT_BINARY_DIR}/dtensor_fmt)
    file(MAKE_DIRECTORY ${dtensor_fmt_link})
    file(CREATE_LINK ${dtensor_fmt_folder}/fmt ${dtensor_fmt_link}/fmt SYMBOLIC)
    add_library(dtensor_fmt INTERFACE IMPORTED GLOBAL)
    target_include_directories(dtensor_fmt INTERFACE ${dtensor_fmt_link})
    target_link_libraries(dtensor_fmt INTERFACE fmt::fmt)
    add_library(dtensor_spdlog INTERFACE IMPORTED GLOBAL)
    target_link_libraries(dtensor_spdlog INTERFACE dtensor_fmt spdlog::spdlog)
  endif()
endif()
dtensor_header_library(dtensor_json nlohmann/json.hpp)
dtensor_header_library(dtensor_valijson valijson/validator.hpp)
target_link_libraries(dtensor_json INTERFACE dtensor_valijson)
dtensor_header_library(dtensor_cli11 CLI/CLI.hpp)
