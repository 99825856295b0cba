/* ABI version, and the macros every other header uses.
 * Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_VERSION_H
#define KVASIR_VERSION_H

#include <stddef.h>
#include <stdint.h>

/* A host runs a plugin whose major is its own, whose minor is KVASIR_ABI_MINOR_MIN of the host's
 * headers or later, and which requires no later minor than the host's. Between KVASIR_ABI_MINOR_MIN
 * and KVASIR_ABI_MINOR structs only grew. While the major is 0 a release may raise the first of the
 * two, and so break older plugins; from 1.0 on it stays. */
#define KVASIR_ABI_MAJOR 0u
#define KVASIR_ABI_MINOR 2u
#define KVASIR_ABI_MINOR_MIN 2u

/* Function types are no-throw in C++: no exception, longjmp or signal handler crosses the line.
 * Before C++17 the type cannot say so; the rule is the same. */
#if defined(__cplusplus) && __cplusplus >= 201703L
#define KVASIR_NOEXCEPT noexcept
#else
#define KVASIR_NOEXCEPT
#endif
#if defined(__cplusplus)
#define KVASIR_EXTERN_C extern "C"
#else
#define KVASIR_EXTERN_C
#endif

/* True when the struct behind `ptr` (leading uint32_t struct_size) reaches to the end of `field`
 * and the field is not null: the one test for an optional slot or pointer. For a kind's table:
 * KVASIR_HAS(&selector->base, kvasir_selector, update). */
#define KVASIR_HAS(ptr, type, field)                                                \
  ((ptr)->struct_size >= offsetof(type, field) + sizeof(((const type*)0)->field) && \
   ((const type*)(const void*)(ptr))->field != 0)

/* Tags used in the comments of every function:
 *   [control]  serial per instance, outside a step; may block, allocate, do I/O
 *   [step]     inside a step, or between steps in place of a [control] call: never two at once
 *              per instance, no blocking I/O
 *   [worker]   inside a parallel region of the host's pool
 *   [any]      thread-safe, any time between create and destroy
 * Lifetimes of pointers: call (until the function returns), step (until the step's next function of
 * the same instance returns), lease (until release), instance (until destroy). Unless said
 * otherwise a pointer argument lives for the call. */

#endif
