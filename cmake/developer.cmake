# How our own executables are built. Nothing here reaches a user of the library.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  set(CMAKE_CXX_FLAGS_RELEASE -O2 CACHE STRING "Optimised, with assertions" FORCE)
endif()
set(CMAKE_CXX_EXTENSIONS OFF)

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(gdn_warnings INTERFACE)
target_compile_options(gdn_warnings INTERFACE -Wall -Wextra -Wpedantic -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # g++ 12 reports the first two about its own AVX-512 headers, the third about sums of strings.
  target_compile_options(gdn_warnings INTERFACE -Wno-maybe-uninitialized -Wno-uninitialized -Wno-restrict)
endif()

# gdn_add_executable(name sources... [FLAGS flag...] [LIBRARIES library...])
function(gdn_add_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "FLAGS;LIBRARIES")
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE gdn::gdn gdn_warnings ${arg_LIBRARIES})
  if(GDN_NATIVE)
    target_compile_options(${name} PRIVATE -march=native)
  endif()
  target_compile_options(${name} PRIVATE ${arg_FLAGS})
endfunction()

# gdn_add_test(name sources... [LABELS label...] [FLAGS flag...] [LIBRARIES library...])
# One Catch2 executable and one ctest entry. The label is `fast` unless others are given.
function(gdn_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LABELS;FLAGS;LIBRARIES")
  gdn_add_executable(${name} ${arg_UNPARSED_ARGUMENTS} FLAGS ${arg_FLAGS} LIBRARIES gdn_catch_main ${arg_LIBRARIES})
  add_test(NAME ${name} COMMAND ${name})
  gdn_label(${name} ${arg_LABELS})
endfunction()

# gdn_label(test [label...]): labels of a ctest entry, `fast` if none are given.
function(gdn_label name)
  if(NOT ARGN)
    set(ARGN fast)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARGN}" TIMEOUT 1200)
endfunction()
