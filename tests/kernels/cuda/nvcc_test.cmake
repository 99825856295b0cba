# Everything that tools/gpu-check builds, with nvcc and for each architecture that the product names;
# registers that spill are an error. Nobody runs it, so the host's part is not optimised. Without nvcc it
# says so, and the test counts as skipped.
find_program(nvcc nvcc HINTS $ENV{CUDACXX} /usr/local/cuda/bin)
if(NOT nvcc)
  message("SKIPPED: no nvcc in PATH or /usr/local/cuda: kernels were not compiled for devices")
  return()
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -S ${ROOT}/tools/gpu -B ${OUT} -G Ninja -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_CXX_FLAGS_RELEASE=-O0 -DCMAKE_CUDA_COMPILER=${nvcc} "-DCMAKE_CUDA_ARCHITECTURES=80-real;90a-real"
  "-DCMAKE_CUDA_FLAGS=-Xptxas=--warn-on-spills,--warning-as-error" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${OUT} COMMAND_ERROR_IS_FATAL ANY)

# The code for sm_90a has Hopper's own instructions, not the trap that stands there for other architectures, and
# ptxas finds no place where registers of a product are used before it is finished: it would wait there by itself, or
# for each product, and says so.
set(file attention_prefill_panels)
execute_process(COMMAND ${nvcc} -std=c++20 -I${ROOT} -ptx -arch=compute_90a ${ROOT}/kernels/cuda/${file}.cu
  -o ${OUT}/${file}.ptx COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${nvcc} -cubin -arch=sm_90a -Xptxas -v ${OUT}/${file}.ptx -o ${OUT}/${file}.cubin
  ERROR_VARIABLE said OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
file(READ ${OUT}/${file}.ptx ptx)
string(FIND "${ptx}" "wgmma.mma_async" at)
if(at EQUAL -1 OR said MATCHES "serialized|is injected")
  message(FATAL_ERROR "${file}.cu for sm_90a: no wgmma.mma_async, or products that wait for one another:\n${said}")
endif()
