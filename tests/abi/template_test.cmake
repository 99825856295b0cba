# A third party's view: install the headers alone, then build the C template outside the tree, by
# one gcc line and through the CMake package; symbol and note must survive strip and --gc-sections.
# In: ROOT, BUILD, C_COMPILER, NM, READELF, STRIP, GENERATOR, MAKE_PROGRAM.
set(work ${BUILD}/template-test)
set(prefix ${work}/prefix)
file(REMOVE_RECURSE ${work})
file(COPY ${ROOT}/tools/templates/plugin-c/strided.c DESTINATION ${work})

include(${CMAKE_CURRENT_LIST_DIR}/outside_build.cmake)

run(${CMAKE_COMMAND} --install ${BUILD} --component abi --prefix ${prefix})
file(GLOB_RECURSE pc ${prefix}/kvasir.pc)
file(GLOB_RECURSE config ${prefix}/kvasirConfig.cmake)
if(NOT pc OR NOT config OR NOT EXISTS ${prefix}/include/kvasir/ext/draft/state.h)
  message(FATAL_ERROR "incomplete installation in ${prefix}")
endif()

find_program(pkg_config pkg-config REQUIRED)
get_filename_component(pc_dir ${pc} DIRECTORY)
set(ENV{PKG_CONFIG_PATH} ${pc_dir})
run(${pkg_config} --cflags kvasir)
string(STRIP "${output}" cflags)
run(${pkg_config} --variable=pluginmap kvasir)
string(STRIP "${output}" map)
if(NOT EXISTS ${map})
  message(FATAL_ERROR "kvasir.pc: pluginmap '${map}' does not exist")
endif()
run(${pkg_config} --variable=plugindir kvasir)
if(NOT output MATCHES "kvasir/plugins")
  message(FATAL_ERROR "kvasir.pc: plugindir '${output}'")
endif()

set(strict -std=c11 -O2 -pedantic -Wall -Wextra -Werror -shared -fPIC -fvisibility=hidden)
run(${C_COMPILER} ${strict} ${cflags} strided.c -o plain.so)
check_plugin(${work}/plain.so)
run(${C_COMPILER} ${strict} -ffunction-sections -fdata-sections -Wl,--gc-sections ${cflags}
    strided.c -o stripped.so)
run(${STRIP} stripped.so)
check_plugin(${work}/stripped.so)

file(WRITE ${work}/cmake/CMakeLists.txt "
cmake_minimum_required(VERSION 3.18)
project(outside C)
find_package(kvasir 0.2 REQUIRED)
kvasir_add_plugin(strided SOURCES ${work}/strided.c)
")
configure_outside(-DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_C_COMPILER=${C_COMPILER})
run(${CMAKE_COMMAND} --build cmake/build)
check_plugin(${work}/cmake/build/strided.so)
