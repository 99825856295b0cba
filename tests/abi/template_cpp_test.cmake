# An author's view of the SDK: install headers and SDK alone, then build the C++ template outside the
# tree, by one g++ line and through the CMake package; only the entry may be exported.
# In: ROOT, BUILD, CXX_COMPILER, NM, READELF, GENERATOR, MAKE_PROGRAM, BEHAVIOUR (the test binary that
# tries templates).
set(work ${BUILD}/template-cpp-test)
set(prefix ${work}/prefix)
file(REMOVE_RECURSE ${work})
file(COPY ${ROOT}/tools/templates/plugin-cpp/strided.cc DESTINATION ${work})

include(${CMAKE_CURRENT_LIST_DIR}/outside_build.cmake)

foreach(component abi sdk)
  run(${CMAKE_COMMAND} --install ${BUILD} --component ${component} --prefix ${prefix})
endforeach()
file(GLOB_RECURSE map ${prefix}/plugin.map)
file(GLOB headers ${prefix}/include/kvasir/sdk/*.h)
if(NOT map OR NOT headers)
  message(FATAL_ERROR "incomplete installation in ${prefix}")
endif()

set(strict -std=c++20 -O2 -pedantic -Wall -Wextra -Werror)
foreach(header ${headers})
  run(${CXX_COMPILER} ${strict} -fsyntax-only -I${prefix}/include -include ${header} -x c++ /dev/null)
endforeach()
run(${CXX_COMPILER} ${strict} -shared -fPIC -fvisibility=hidden -I${prefix}/include
    -Wl,--version-script=${map} strided.cc -o plain.so)
check_plugin(${work}/plain.so)

file(WRITE ${work}/cmake/CMakeLists.txt "
cmake_minimum_required(VERSION 3.18)
project(outside CXX)
find_package(kvasir 0.2 REQUIRED)
set(CMAKE_CXX_STANDARD 20)
kvasir_add_plugin(strided SOURCES ${work}/strided.cc)
")
configure_outside(-DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_COMPILER=${CXX_COMPILER})
run(${CMAKE_COMMAND} --build cmake/build)
check_plugin(${work}/cmake/build/strided.so)

set(ENV{KVASIR_TEST_STRIDED} ${work}/plain.so)
run(${BEHAVIOUR} --test-case=template*)
if(NOT output MATCHES "test cases: +[1-9]")
  message(FATAL_ERROR "the C++ template was not tried:\n${output}")
endif()
