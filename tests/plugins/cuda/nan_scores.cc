// A representative on the device whose first score of a sequence is NaN, at odd lengths.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <limits>

#include "plugins/shared/device_representative.h"

namespace {
using namespace kvasir;

constexpr std::array kOptions = {sdk::kDeviceRecordTypeOption};

class NanScores : public sdk::DeviceRepresentative {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::device_representative({.id = "kvasir.test.nan_scores",
                                  .name = "NaN scores",
                                  .summary = "Scores as kvasir.cuda_mean, and NaN.",
                                  .options = kOptions});

  NanScores(const sdk::Host&, const sdk::Options& options)
      : DeviceRepresentative(kDesc.id, cuda::RecordKind::kMean, options, 1.0f) {}

  const void* get_extension(const char* id) const { return sdk::stream_extension<NanScores>(id); }

  void score(const sdk::Step& step, const kvasir_score_in& in, kvasir_score_out& out) {
    DeviceRepresentative::score(step, in, out);
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
    const uint64_t per_seq = kHeads;
    for (uint32_t seq = 0; seq < step.n_seqs(); ++seq)
      if (step.seq(seq).kv_len % 2 == 1)
        cuda::copy_to_device(static_cast<float*>(out.value.data) + out.offsets[seq * per_seq],
                             &kNaN, sizeof kNaN, {});
    cuda::wait({});
  }

 private:
  static constexpr uint32_t kHeads = 2;  // kv heads of the test's model
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_REPRESENTATIVE, "kvasir.test.nan_scores", "0.1.0", NanScores)
