// kvasir.minmax on an NVIDIA GPU: records and scores in device memory, made of keys that lie there.
// Tang et al. 2024 (Quest), arXiv:2406.10774.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "plugins/shared/device_representative.h"

namespace {
using namespace kvasir;

constexpr std::array kOptions = {
    sdk::kDeviceRecordTypeOption,
    sdk::fixed_number_option("minimum and maximum; 1 means them too", 2), sdk::kBoxScaleOption};

class CudaMinMax : public sdk::DeviceRepresentative {
 public:
  static constexpr kvasir_desc kDesc = sdk::device_representative(
      {.id = "kvasir.cuda_minmax",
       .name = "CUDA min-max",
       .summary = "Bounds every key of a block from both sides (Quest), in GPU memory.",
       .options = kOptions});

  CudaMinMax(const sdk::Host&, const sdk::Options& options)
      : DeviceRepresentative(kDesc.id, cuda::RecordKind::kMinMax, options,
                             static_cast<float>(options.f64("box_scale"))) {}

  const void* get_extension(const char* id) const { return sdk::stream_extension<CudaMinMax>(id); }
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_REPRESENTATIVE, "kvasir.cuda_minmax", "0.1.0", CudaMinMax)
