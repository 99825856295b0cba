// A library of layers on a device from another build: nothing of it but its name may be read.
// SPDX-License-Identifier: Apache-2.0
extern "C" const char* const kvasir_device_layers[];
const char* const kvasir_device_layers[] = {"0.0.0-elsewhere"};
