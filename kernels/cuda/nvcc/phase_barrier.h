// Barriers of phases on the device; see kernels/cuda/phase_barrier.h. Code for devices
// before compute capability 9.0 stops where it calls them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvasir::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

KVASIR_DEVICE void init_barrier(Barrier* barrier, uint32_t n_threads) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(n_threads)
               : "memory");
}
KVASIR_DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
KVASIR_DEVICE void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
KVASIR_DEVICE void wait_for_phase(Barrier* barrier, uint32_t parity) {
  uint32_t is_over = 0;
  while (is_over == 0) {
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
        "selp.u32 %0, 1, 0, over;\n"
        "}"
        : "=r"(is_over)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}

#else

KVASIR_DEVICE void init_barrier(Barrier*, uint32_t) { __trap(); }
KVASIR_DEVICE void fence_async() { __trap(); }
KVASIR_DEVICE void arrive(Barrier*) { __trap(); }
KVASIR_DEVICE void wait_for_phase(Barrier*, uint32_t) { __trap(); }

#endif

}  // namespace kvasir::cuda
