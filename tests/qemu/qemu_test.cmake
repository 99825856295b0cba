# Runs BINARY (of its test suites SUITES, if given), or a prompt through RUN (the kvasir binary), as on a Haswell processor.
if(NOT QEMU)
  message("SKIPPED: qemu-x86_64 not found (Debian package qemu-user)")
  return()
endif()
if(SANITIZE)
  message("SKIPPED: sanitizers do not run under qemu-user")
  return()
endif()
set(haswell ${QEMU} -cpu Haswell)
set(ENV{KVASIR_TEST_EMULATED} 1)
set(ENV{KVASIR_TEST_FEW_CASES} 1)
set(ENV{KVASIR_TEST_THREADS} 1)  # waiting for each other is what emulation is slowest at

# expect(<text> <command>...): the command succeeds and says so.
function(expect text)
  execute_process(COMMAND ${haswell} ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out
                  ERROR_VARIABLE err INPUT_FILE /dev/null)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${ARGN}: ${code}\n${out}\n${err}")
  endif()
  if(NOT out MATCHES "${text}")
    message(FATAL_ERROR "${ARGN}: expected '${text}' in\n${out}")
  endif()
endfunction()

if(BINARY)
  if(SUITES)
    list(APPEND BINARY --test-suite=${SUITES})
  endif()
  # Not one test case: the suites are called otherwise by now.
  expect("test cases: +[1-9].*Status: SUCCESS" ${BINARY} --no-colors)
  return()
endif()
set(folder ${BUILD}/tests/qemu)
expect("\"simd_target\": \"AVX2\"" ${RUN} doctor --quick --json)
expect("tiny" ${RUN} model random tiny-llama-test --force -o ${folder}/tiny.gguf)
string(REPEAT "The well is deep and the water is cold. " 20 prompt)
foreach(compute f32 auto)  # auto is f32 here: no bf16 products on this machine
  expect("\"compute\": \"f32\"" ${RUN} run -m ${folder}/tiny.gguf -p ${prompt} -n 4 --ignore-eos
         --temp 0 --json --compute ${compute} -s quest --set cache.dense_layers=[]
         --set selector.token_budget=64)
endforeach()
