# One library per room. A room may include only the rooms it links, so the order of DESIGN's list is enforced by the
# compiler: the source root is not on anyone's include path; each room exports a folder with a link to itself alone.
#
#   dtensor_room(NAME LINKS target... [PRECOMPILED torch|aten] [EXCLUDE file.cpp...])
#
# PRECOMPILED: the precompiled header that its sources get (Compile.cmake). EXCLUDE leaves out sources of the room (a backend
# that is absent here has a stub file in its place).

include(GNUInstallDirs)

function(dtensor_room name)
  cmake_parse_arguments(ROOM "" "PRECOMPILED" "LINKS;EXCLUDE" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${name}/*.cpp)
  foreach(file ${ROOM_EXCLUDE})
    list(REMOVE_ITEM sources ${PROJECT_SOURCE_DIR}/${name}/${file})
  endforeach()
  set(public ${PROJECT_BINARY_DIR}/include/${name})
  file(MAKE_DIRECTORY ${public})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${name} ${public}/${name} SYMBOLIC)
  if(sources)
    add_library(dtensor_${name} STATIC ${sources})
    set(scope PUBLIC)
    target_link_libraries(dtensor_${name} PRIVATE $<BUILD_INTERFACE:dtensor_warnings>)
  else()
    add_library(dtensor_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(dtensor_${name} ${scope}
    $<BUILD_INTERFACE:${public}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(dtensor_${name} ${scope} ${ROOM_LINKS})
  target_compile_features(dtensor_${name} ${scope} cxx_std_20)
  if(sources AND PROJECT_IS_TOP_LEVEL)
    if(ROOM_PRECOMPILED)
      dtensor_precompile(dtensor_${name} ${ROOM_PRECOMPILED})
    endif()
    dtensor_compile_in_groups(dtensor_${name})
  endif()
  set_target_properties(dtensor_${name} PROPERTIES EXPORT_NAME room_${name})
  install(TARGETS dtensor_${name} EXPORT dtensor ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${name} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
endfunction()
