// kvasir.mean on an NVIDIA GPU: records and scores in device memory, made of keys that lie there.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "plugins/shared/device_representative.h"

namespace {
using namespace kvasir;

constexpr std::array kOptions = {sdk::kDeviceRecordTypeOption,
                                 sdk::fixed_number_option("always 1: the mean", 1)};

class CudaMean : public sdk::DeviceRepresentative {
 public:
  static constexpr kvasir_desc kDesc = sdk::device_representative(
      {.id = "kvasir.cuda_mean",
       .name = "CUDA mean",
       .summary = "Summarises a block by the mean of its keys, in GPU memory.",
       .options = kOptions});

  CudaMean(const sdk::Host&, const sdk::Options& options)
      : DeviceRepresentative(kDesc.id, cuda::RecordKind::kMean, options, 1.0f) {}

  const void* get_extension(const char* id) const { return sdk::stream_extension<CudaMean>(id); }
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_REPRESENTATIVE, "kvasir.cuda_mean", "0.1.0", CudaMean)
