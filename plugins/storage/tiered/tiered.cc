// The plugin kvasir.tiered; see tiered.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/tiered.h"

KVASIR_SDK_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.tiered", "0.1.0", kvasir::tiered::Tiered)
