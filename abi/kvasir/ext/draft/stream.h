/* DRAFT plugin extensions kvasir.stream/1 and kvasir.stream-user/1: work of a device that goes on
 * after a call has returned. No real device has used them yet.
 * Since 0.2.
 *
 * Without them every call is synchronous: what it writes is there when it returns. That is also
 * what a host without a device does, and a host that does not know these extensions: it never asks
 * for them, so a plugin must work synchronously until set_stream() was called.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_EXT_DRAFT_STREAM_H
#define KVASIR_EXT_DRAFT_STREAM_H

#include <kvasir/instance.h>

#define KVASIR_EXT_STREAM "kvasir.stream/1"
#define KVASIR_EXT_STREAM_USER "kvasir.stream-user/1"

/* Opaque, the device's own (of CUDA: cudaStream_t, cudaEvent_t); 0 = none. */
typedef uint64_t kvasir_stream_handle;
typedef uint64_t kvasir_event_handle;

/* Of the storage that owns the device; self: of the instance. Work of one stream runs in the order
 * in which it was given, work of two streams as events say. A failure of work that was given
 * earlier is told by the next wait(). */
typedef struct kvasir_stream {
  uint32_t struct_size;
  int32_t device;
  /* [control] after bind. What the storage's own calls give to the device comes behind what the
   * stream was given before, and what it is given later behind them: kvasir.device-memory/1 sees
   * what others have written there. A storage may have one stream only, and give it each time. What
   * is not destroyed goes with the instance. */
  kvasir_status (*create)(void* self, kvasir_stream_handle* out, kvasir_err* err) KVASIR_NOEXCEPT;
  void (*destroy)(void* self, kvasir_stream_handle stream) KVASIR_NOEXCEPT; /* [control] waits */
  /* [any] Marks what the stream was given so far; the event is good until wait() or the next record
   * of the same stream's event. */
  kvasir_status (*record)(void* self, kvasir_stream_handle stream, kvasir_event_handle* out,
                          kvasir_err* err) KVASIR_NOEXCEPT;
  /* [any] `stream` goes on only after the event; the caller does not wait. */
  kvasir_status (*follow)(void* self, kvasir_stream_handle stream, kvasir_event_handle event,
                          kvasir_err* err) KVASIR_NOEXCEPT;
  /* [any] The caller waits for the event. 0: for all streams of the device. */
  kvasir_status (*wait)(void* self, kvasir_event_handle event, kvasir_err* err) KVASIR_NOEXCEPT;
} kvasir_stream;

/* Of a plugin whose [step] calls give work to a device, the storage among them. After set_stream()
 * a call may return while its device work is still in the stream; what it was given in HOST memory
 * it has copied by then, as that lives for the call, and what it writes there is there. The host
 * waits before it reads what such a call writes, through kvasir.device-memory/1 or kvasir.stream/1,
 * and sets the stream of all that work on the device or of none: who has no stream reads what the
 * others have written. A failure of such work may be told by another plugin's call, which waits
 * first. */
typedef struct kvasir_stream_user {
  uint32_t struct_size;
  uint32_t reserved;
  /* [control] after bind, once; 0 takes it back: what was given is done then. No step runs. */
  kvasir_status (*set_stream)(void* self, kvasir_stream_handle stream,
                              kvasir_err* err) KVASIR_NOEXCEPT;
} kvasir_stream_user;

#endif
