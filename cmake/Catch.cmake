# Catch2 3 as Catch2::Catch2WithMain: the installed package, or what the folder DTENSOR_DEPS holds: catch2/src (a source
# tree) or catch2/extras (the amalgamated file; tests then find all headers in it through forwarding ones).

if(NOT DTENSOR_DEPS)
  find_package(Catch2 3 REQUIRED)
elseif(EXISTS ${DTENSOR_DEPS}/catch2/CMakeLists.txt)
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)  # its options may be set from here
  set(CATCH_INSTALL_DOCS OFF)
  set(CATCH_INSTALL_EXTRAS OFF)
  add_subdirectory(${DTENSOR_DEPS}/catch2 ${PROJECT_BINARY_DIR}/catch2 EXCLUDE_FROM_ALL SYSTEM)
elseif(EXISTS ${DTENSOR_DEPS}/catch2/extras/catch_amalgamated.cpp)
  add_library(dtensor_catch STATIC ${DTENSOR_DEPS}/catch2/extras/catch_amalgamated.cpp)
  foreach(header catch_all catch_approx catch_message catch_session catch_template_test_macros catch_test_macros catch_tostring
          generators/catch_generators_all generators/catch_generators generators/catch_generators_range
          matchers/catch_matchers_all matchers/catch_matchers matchers/catch_matchers_string
          matchers/catch_matchers_exception matchers/catch_matchers_floating_point matchers/catch_matchers_vector)
    file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/catch2/catch2/${header}.hpp CONTENT "#include <catch_amalgamated.hpp>\n")
  endforeach()
  target_include_directories(dtensor_catch SYSTEM PUBLIC ${DTENSOR_DEPS}/catch2/extras ${PROJECT_BINARY_DIR}/catch2)
  add_library(Catch2::Catch2WithMain ALIAS dtensor_catch)
else()
  message(FATAL_ERROR "No Catch2 in ${DTENSOR_DEPS}/catch2. scripts/device_check.sh --prepare fills the folder; or -DDTENSOR_BUILD_TESTS=OFF.")
endif()
