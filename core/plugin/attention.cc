// Calls of an attention backend.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/call.h"
#include "core/plugin/sizes.h"

namespace kvasir {

Attention::Attention(const OpenPlugin& plugin, const HostServices& services,
                     const ResolvedOptions& options)
    : Instance(plugin, services, options, KVASIR_KIND_ATTENTION, abi_least::kAttentionBytes),
      table_(copy_table<kvasir_attention>()) {
  if (!table().plan || !table().run) defect("create", "its backend has no plan() or run()");
  if ((desc().provides & KVASIR_PROVIDE_MASS) && !table().mass) {
    defect("create", "it provides attention mass, but has no mass()");
  }
}

bool Attention::has_mass() const { return table().mass != nullptr; }

kvasir_attn_plan Attention::plan(uint32_t max_queries, uint64_t max_keys) {
  const kvasir_attn_shape shape{sizeof(kvasir_attn_shape), max_queries, max_keys};
  kvasir_attn_plan plan{};
  plan.struct_size = sizeof(plan);
  control_call("plan",
               [&](kvasir_err* err) { return table().plan(base().self, &shape, &plan, err); });
  return plan;
}

void Attention::run(const kvasir_step& step, const kvasir_attn_in& in, kvasir_attn_out& out) {
  CallArguments arguments(checked_.get());
  const kvasir_step* const given = arguments.step(step);
  const kvasir_attn_in* const given_in = arguments.attention_in(in);
  kvasir_attn_out* const given_out = arguments.attention_out(out);
  step_call("run", &step, [&](kvasir_err* err) {
    return table().run(base().self, given, given_in, given_out, err);
  });
  finish("run", arguments);
}

void Attention::mass(const kvasir_step& step, const kvasir_attn_in& in,
                     const kvasir_attn_mass& out) {
  require(has_mass(), "mass");
  CallArguments arguments(checked_.get());
  const kvasir_step* const given = arguments.step(step);
  const kvasir_attn_in* const given_in = arguments.attention_in(in);
  const kvasir_attn_mass* const given_out = arguments.attention_mass(out, in);
  step_call("mass", &step, [&](kvasir_err* err) {
    return table().mass(base().self, given, given_in, given_out, err);
  });
  finish("mass", arguments);
}

}  // namespace kvasir
