# `cmake --install`: headers, static libraries, and a CMake package: find_package(dtensor) gives dtensor::dtensor.
# LibTorch and the other libraries are no part of it: the package looks for them as this build did, in the same files.

set_target_properties(dtensor_all PROPERTIES EXPORT_NAME dtensor)
install(TARGETS dtensor_all EXPORT dtensor)
set(dtensor_package ${CMAKE_INSTALL_LIBDIR}/cmake/dtensor)
include(CMakePackageConfigHelpers)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/dtensorConfig.cmake.in ${PROJECT_BINARY_DIR}/dtensorConfig.cmake
  INSTALL_DESTINATION ${dtensor_package} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/dtensorConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dtensorConfig.cmake ${PROJECT_BINARY_DIR}/dtensorConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/LibTorch.cmake ${PROJECT_SOURCE_DIR}/cmake/Dependencies.cmake
  DESTINATION ${dtensor_package})
install(EXPORT dtensor FILE dtensorTargets.cmake NAMESPACE dtensor:: DESTINATION ${dtensor_package})
