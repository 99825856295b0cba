/* Plugin extension fake.probe/1: lets a test read what a fake has seen.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_PROBE_H
#define FAKE_PROBE_H

#include <kvasir/version.h>

#define FAKE_PROBE "fake.probe/1"

typedef struct fake_probe {
  uint32_t struct_size;
  uint32_t reserved;
  /* What `item` means is said at the top of each fake; NaN for what it does not know. */
  double (*read)(void* self, uint64_t seq, uint32_t layer, uint32_t item) KVASIR_NOEXCEPT;
} fake_probe;

#endif
