/* Size and offset of every field of the stable ABI on a 64-bit machine, checked where a plugin is
 * compiled: a compiler, option or pragma that lays structs out otherwise is told so here. A line
 * may change while the major version is 0; from 1.0 on lines are only added. Since 0.2.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef KVASIR_LAYOUT_CHECKS_H
#define KVASIR_LAYOUT_CHECKS_H

#include <kvasir/attention.h>
#include <kvasir/ext/completion.h>
#include <kvasir/ext/log.h>
#include <kvasir/ext/scratch.h>
#include <kvasir/ext/thread_pool.h>
#include <kvasir/representative.h>
#include <kvasir/selector.h>
#include <kvasir/storage.h>

#if UINTPTR_MAX == 0xffffffffffffffffu

#if defined(__cplusplus)
#define KVASIR_ASSERT_(condition, text) static_assert(condition, text)
#else
#define KVASIR_ASSERT_(condition, text) _Static_assert(condition, text)
#endif
#define KVASIR_SIZE_(type, bytes) KVASIR_ASSERT_(sizeof(type) == (bytes), #type " changed its size")
#define KVASIR_AT_(type, field, bytes) \
  KVASIR_ASSERT_(offsetof(type, field) == (bytes), #type "." #field " moved")

KVASIR_SIZE_(kvasir_err, 520);
KVASIR_AT_(kvasir_err, struct_size, 0);
KVASIR_AT_(kvasir_err, code, 4);
KVASIR_AT_(kvasir_err, text, 8);

KVASIR_SIZE_(kvasir_view, 96);
KVASIR_AT_(kvasir_view, struct_size, 0);
KVASIR_AT_(kvasir_view, dtype, 4);
KVASIR_AT_(kvasir_view, data, 8);
KVASIR_AT_(kvasir_view, mem_kind, 16);
KVASIR_AT_(kvasir_view, device, 20);
KVASIR_AT_(kvasir_view, rank, 24);
KVASIR_AT_(kvasir_view, flags, 28);
KVASIR_AT_(kvasir_view, shape, 32);
KVASIR_AT_(kvasir_view, stride, 64);

KVASIR_SIZE_(kvasir_kv_format, 56);
KVASIR_AT_(kvasir_kv_format, struct_size, 0);
KVASIR_AT_(kvasir_kv_format, dtype_k, 4);
KVASIR_AT_(kvasir_kv_format, dtype_v, 8);
KVASIR_AT_(kvasir_kv_format, mem_kind, 12);
KVASIR_AT_(kvasir_kv_format, k_token_stride, 16);
KVASIR_AT_(kvasir_kv_format, v_token_stride, 24);
KVASIR_AT_(kvasir_kv_format, k_head_stride, 32);
KVASIR_AT_(kvasir_kv_format, v_head_stride, 40);
KVASIR_AT_(kvasir_kv_format, device, 48);
KVASIR_AT_(kvasir_kv_format, reserved, 52);

KVASIR_SIZE_(kvasir_lease, 64);
KVASIR_AT_(kvasir_lease, lease, 0);
KVASIR_AT_(kvasir_lease, handle, 8);
KVASIR_AT_(kvasir_lease, k, 16);
KVASIR_AT_(kvasir_lease, v, 24);
KVASIR_AT_(kvasir_lease, token_pos, 32);
KVASIR_AT_(kvasir_lease, pos_begin, 40);
KVASIR_AT_(kvasir_lease, n_tokens, 44);
KVASIR_AT_(kvasir_lease, kv_head, 48);
KVASIR_AT_(kvasir_lease, format, 52);
KVASIR_AT_(kvasir_lease, tier, 56);
KVASIR_AT_(kvasir_lease, state, 60);

KVASIR_SIZE_(kvasir_selection, 288);
KVASIR_AT_(kvasir_selection, struct_size, 0);
KVASIR_AT_(kvasir_selection, unit, 4);
KVASIR_AT_(kvasir_selection, scope, 8);
KVASIR_AT_(kvasir_selection, flags, 12);
KVASIR_AT_(kvasir_selection, action, 16);
KVASIR_AT_(kvasir_selection, weight_width, 20);
KVASIR_AT_(kvasir_selection, reuse_steps, 24);
KVASIR_AT_(kvasir_selection, n_lists, 28);
KVASIR_AT_(kvasir_selection, capacity, 32);
KVASIR_AT_(kvasir_selection, needed, 40);
KVASIR_AT_(kvasir_selection, list_offsets, 48);
KVASIR_AT_(kvasir_selection, list_flags, 56);
KVASIR_AT_(kvasir_selection, index, 64);
KVASIR_AT_(kvasir_selection, log_weight, 72);
KVASIR_AT_(kvasir_selection, bytes_read, 80);
KVASIR_AT_(kvasir_selection, query_block, 88);
KVASIR_AT_(kvasir_selection, reserved, 92);
KVASIR_AT_(kvasir_selection, o, 96);
KVASIR_AT_(kvasir_selection, lse, 192);

KVASIR_SIZE_(kvasir_slab, 64);
KVASIR_AT_(kvasir_slab, struct_size, 0);
KVASIR_AT_(kvasir_slab, page_blocks, 4);
KVASIR_AT_(kvasir_slab, record_bytes, 8);
KVASIR_AT_(kvasir_slab, open_bytes, 16);
KVASIR_AT_(kvasir_slab, seq_pages, 24);
KVASIR_AT_(kvasir_slab, pages, 32);
KVASIR_AT_(kvasir_slab, open_pages, 40);
KVASIR_AT_(kvasir_slab, mem_kind, 48);
KVASIR_AT_(kvasir_slab, page_bytes, 52);
KVASIR_AT_(kvasir_slab, part_offset, 56);

KVASIR_SIZE_(kvasir_value, 40);
KVASIR_AT_(kvasir_value, type, 0);
KVASIR_AT_(kvasir_value, n, 4);
KVASIR_AT_(kvasir_value, i, 8);
KVASIR_AT_(kvasir_value, f, 16);
KVASIR_AT_(kvasir_value, s, 24);
KVASIR_AT_(kvasir_value, list, 32);

KVASIR_SIZE_(kvasir_option_schema, 192);
KVASIR_AT_(kvasir_option_schema, struct_size, 0);
KVASIR_AT_(kvasir_option_schema, type, 4);
KVASIR_AT_(kvasir_option_schema, flags, 8);
KVASIR_AT_(kvasir_option_schema, n_enum, 12);
KVASIR_AT_(kvasir_option_schema, key, 16);
KVASIR_AT_(kvasir_option_schema, aliases, 24);
KVASIR_AT_(kvasir_option_schema, enum_names, 32);
KVASIR_AT_(kvasir_option_schema, unit, 40);
KVASIR_AT_(kvasir_option_schema, help, 48);
KVASIR_AT_(kvasir_option_schema, def, 56);
KVASIR_AT_(kvasir_option_schema, min, 96);
KVASIR_AT_(kvasir_option_schema, max, 136);
KVASIR_AT_(kvasir_option_schema, group, 176);
KVASIR_AT_(kvasir_option_schema, with, 184);

KVASIR_SIZE_(kvasir_option, 56);
KVASIR_AT_(kvasir_option, key, 0);
KVASIR_AT_(kvasir_option, value, 8);
KVASIR_AT_(kvasir_option, is_set, 48);
KVASIR_AT_(kvasir_option, reserved, 52);

KVASIR_SIZE_(kvasir_note, 652);
KVASIR_AT_(kvasir_note, namesz, 0);
KVASIR_AT_(kvasir_note, descsz, 4);
KVASIR_AT_(kvasir_note, type, 8);
KVASIR_AT_(kvasir_note, name, 12);
KVASIR_AT_(kvasir_note, abi_major, 20);
KVASIR_AT_(kvasir_note, abi_minor, 24);
KVASIR_AT_(kvasir_note, required_minor, 28);
KVASIR_AT_(kvasir_note, kinds, 32);
KVASIR_AT_(kvasir_note, cpu_features, 36);
KVASIR_AT_(kvasir_note, reserved, 40);
KVASIR_AT_(kvasir_note, version, 44);
KVASIR_AT_(kvasir_note, ids, 76);
KVASIR_AT_(kvasir_note, drafts, 524);

KVASIR_SIZE_(kvasir_host, 48);
KVASIR_AT_(kvasir_host, struct_size, 0);
KVASIR_AT_(kvasir_host, abi_major, 4);
KVASIR_AT_(kvasir_host, abi_minor_min, 8);
KVASIR_AT_(kvasir_host, abi_minor_max, 12);
KVASIR_AT_(kvasir_host, name, 16);
KVASIR_AT_(kvasir_host, version, 24);
KVASIR_AT_(kvasir_host, self, 32);
KVASIR_AT_(kvasir_host, get_extension, 40);

KVASIR_SIZE_(kvasir_desc, 120);
KVASIR_AT_(kvasir_desc, struct_size, 0);
KVASIR_AT_(kvasir_desc, kind, 4);
KVASIR_AT_(kvasir_desc, id, 8);
KVASIR_AT_(kvasir_desc, version, 16);
KVASIR_AT_(kvasir_desc, name, 24);
KVASIR_AT_(kvasir_desc, vendor, 32);
KVASIR_AT_(kvasir_desc, license, 40);
KVASIR_AT_(kvasir_desc, url, 48);
KVASIR_AT_(kvasir_desc, summary, 56);
KVASIR_AT_(kvasir_desc, options, 64);
KVASIR_AT_(kvasir_desc, n_options, 72);
KVASIR_AT_(kvasir_desc, option_size, 76);
KVASIR_AT_(kvasir_desc, caps, 80);
KVASIR_AT_(kvasir_desc, needs, 88);
KVASIR_AT_(kvasir_desc, provides, 96);
KVASIR_AT_(kvasir_desc, dtypes, 104);
KVASIR_AT_(kvasir_desc, mem_kinds_read, 112);
KVASIR_AT_(kvasir_desc, mem_kinds_write, 116);

KVASIR_SIZE_(kvasir_plugin, 40);
KVASIR_AT_(kvasir_plugin, struct_size, 0);
KVASIR_AT_(kvasir_plugin, reserved, 4);
KVASIR_AT_(kvasir_plugin, count, 8);
KVASIR_AT_(kvasir_plugin, describe, 16);
KVASIR_AT_(kvasir_plugin, create, 24);
KVASIR_AT_(kvasir_plugin, shutdown, 32);

KVASIR_SIZE_(kvasir_request, 16);
KVASIR_AT_(kvasir_request, struct_size, 0);
KVASIR_AT_(kvasir_request, abi_minor, 4);
KVASIR_AT_(kvasir_request, plugin, 8);

KVASIR_SIZE_(kvasir_geometry, 128);
KVASIR_AT_(kvasir_geometry, struct_size, 0);
KVASIR_AT_(kvasir_geometry, n_layers, 4);
KVASIR_AT_(kvasir_geometry, n_q_heads, 8);
KVASIR_AT_(kvasir_geometry, n_kv_heads, 12);
KVASIR_AT_(kvasir_geometry, head_dim, 16);
KVASIR_AT_(kvasir_geometry, v_dim, 20);
KVASIR_AT_(kvasir_geometry, block_size, 24);
KVASIR_AT_(kvasir_geometry, max_context, 28);
KVASIR_AT_(kvasir_geometry, max_sequences, 32);
KVASIR_AT_(kvasir_geometry, max_queries, 36);
KVASIR_AT_(kvasir_geometry, sink_tokens, 40);
KVASIR_AT_(kvasir_geometry, window_tokens, 44);
KVASIR_AT_(kvasir_geometry, window_mode, 48);
KVASIR_AT_(kvasir_geometry, k_state, 52);
KVASIR_AT_(kvasir_geometry, gqa_reduce, 56);
KVASIR_AT_(kvasir_geometry, head_select_shared, 60);
KVASIR_AT_(kvasir_geometry, n_formats, 64);
KVASIR_AT_(kvasir_geometry, format_size, 68);
KVASIR_AT_(kvasir_geometry, formats, 72);
KVASIR_AT_(kvasir_geometry, dense_layers, 80);
KVASIR_AT_(kvasir_geometry, softmax_scale, 88);
KVASIR_AT_(kvasir_geometry, softcap, 92);
KVASIR_AT_(kvasir_geometry, seed, 96);
KVASIR_AT_(kvasir_geometry, model_hash, 104);
KVASIR_AT_(kvasir_geometry, sliding_windows, 112);
KVASIR_AT_(kvasir_geometry, may_round, 120);
KVASIR_AT_(kvasir_geometry, page_blocks, 124);

KVASIR_SIZE_(kvasir_instance, 96);
KVASIR_AT_(kvasir_instance, struct_size, 0);
KVASIR_AT_(kvasir_instance, kind, 4);
KVASIR_AT_(kvasir_instance, self, 8);
KVASIR_AT_(kvasir_instance, desc, 16);
KVASIR_AT_(kvasir_instance, validate, 24);
KVASIR_AT_(kvasir_instance, bind, 32);
KVASIR_AT_(kvasir_instance, seq_open, 40);
KVASIR_AT_(kvasir_instance, seq_fork, 48);
KVASIR_AT_(kvasir_instance, seq_truncate, 56);
KVASIR_AT_(kvasir_instance, seq_close, 64);
KVASIR_AT_(kvasir_instance, drain, 72);
KVASIR_AT_(kvasir_instance, destroy, 80);
KVASIR_AT_(kvasir_instance, get_extension, 88);

KVASIR_SIZE_(kvasir_step_seq, 48);
KVASIR_AT_(kvasir_step_seq, id, 0);
KVASIR_AT_(kvasir_step_seq, q_begin, 8);
KVASIR_AT_(kvasir_step_seq, n_q, 12);
KVASIR_AT_(kvasir_step_seq, kv_len, 16);
KVASIR_AT_(kvasir_step_seq, prompt_begin, 20);
KVASIR_AT_(kvasir_step_seq, prompt_end, 24);
KVASIR_AT_(kvasir_step_seq, unit_begin, 28);
KVASIR_AT_(kvasir_step_seq, unit_end, 32);
KVASIR_AT_(kvasir_step_seq, phase, 36);
KVASIR_AT_(kvasir_step_seq, flags, 40);
KVASIR_AT_(kvasir_step_seq, reserved, 44);

KVASIR_SIZE_(kvasir_step, 48);
KVASIR_AT_(kvasir_step, struct_size, 0);
KVASIR_AT_(kvasir_step, moment, 4);
KVASIR_AT_(kvasir_step, reserved, 8);
KVASIR_AT_(kvasir_step, layer, 12);
KVASIR_AT_(kvasir_step, n_seqs, 16);
KVASIR_AT_(kvasir_step, seq_size, 20);
KVASIR_AT_(kvasir_step, seqs, 24);
KVASIR_AT_(kvasir_step, candidates, 32);
KVASIR_AT_(kvasir_step, slab, 40);

KVASIR_SIZE_(kvasir_mass, 136);
KVASIR_AT_(kvasir_mass, struct_size, 0);
KVASIR_AT_(kvasir_mass, unit, 4);
KVASIR_AT_(kvasir_mass, reduce, 8);
KVASIR_AT_(kvasir_mass, n_lists, 12);
KVASIR_AT_(kvasir_mass, n_queries, 16);
KVASIR_AT_(kvasir_mass, list_offsets, 24);
KVASIR_AT_(kvasir_mass, index, 32);
KVASIR_AT_(kvasir_mass, value, 40);

KVASIR_SIZE_(kvasir_update_item, 40);
KVASIR_AT_(kvasir_update_item, seq, 0);
KVASIR_AT_(kvasir_update_item, block, 4);
KVASIR_AT_(kvasir_update_item, first_new, 8);
KVASIR_AT_(kvasir_update_item, n_new, 12);
KVASIR_AT_(kvasir_update_item, n_tokens, 16);
KVASIR_AT_(kvasir_update_item, flags, 20);
KVASIR_AT_(kvasir_update_item, lease, 24);
KVASIR_AT_(kvasir_update_item, mass, 32);

KVASIR_SIZE_(kvasir_mass_wish, 24);
KVASIR_AT_(kvasir_mass_wish, at, 0);
KVASIR_AT_(kvasir_mass_wish, level, 4);
KVASIR_AT_(kvasir_mass_wish, reduce, 8);
KVASIR_AT_(kvasir_mass_wish, part, 12);
KVASIR_AT_(kvasir_mass_wish, last_queries, 16);
KVASIR_AT_(kvasir_mass_wish, reserved, 20);

KVASIR_SIZE_(kvasir_memory, 16);
KVASIR_AT_(kvasir_memory, state_bytes, 0);
KVASIR_AT_(kvasir_memory, state_peak_bytes, 8);

KVASIR_SIZE_(kvasir_layout, 88);
KVASIR_AT_(kvasir_layout, struct_size, 0);
KVASIR_AT_(kvasir_layout, flags, 4);
KVASIR_AT_(kvasir_layout, record_bytes, 8);
KVASIR_AT_(kvasir_layout, open_bytes, 16);
KVASIR_AT_(kvasir_layout, format, 24);
KVASIR_AT_(kvasir_layout, refresh_tokens, 32);
KVASIR_AT_(kvasir_layout, mem_kind, 36);
KVASIR_AT_(kvasir_layout, mass, 40);
KVASIR_AT_(kvasir_layout, memory, 64);
KVASIR_AT_(kvasir_layout, page_bytes, 80);
KVASIR_AT_(kvasir_layout, reserved, 84);

KVASIR_SIZE_(kvasir_plan_wish, 16);
KVASIR_AT_(kvasir_plan_wish, at, 0);
KVASIR_AT_(kvasir_plan_wish, every_tokens, 4);
KVASIR_AT_(kvasir_plan_wish, action, 8);
KVASIR_AT_(kvasir_plan_wish, reserved, 12);

KVASIR_SIZE_(kvasir_speculation, 8);
KVASIR_AT_(kvasir_speculation, layers_ahead, 0);
KVASIR_AT_(kvasir_speculation, reserved, 4);

KVASIR_SIZE_(kvasir_prefill_wish, 16);
KVASIR_AT_(kvasir_prefill_wish, slice_tokens, 0);
KVASIR_AT_(kvasir_prefill_wish, last_queries, 4);
KVASIR_AT_(kvasir_prefill_wish, query_block, 8);
KVASIR_AT_(kvasir_prefill_wish, dense_last_queries, 12);

KVASIR_SIZE_(kvasir_positions, 8);
KVASIR_AT_(kvasir_positions, mode, 0);
KVASIR_AT_(kvasir_positions, constant, 4);

KVASIR_SIZE_(kvasir_sel_limits, 128);
KVASIR_AT_(kvasir_sel_limits, struct_size, 0);
KVASIR_AT_(kvasir_sel_limits, unit, 4);
KVASIR_AT_(kvasir_sel_limits, scope, 8);
KVASIR_AT_(kvasir_sel_limits, flags, 12);
KVASIR_AT_(kvasir_sel_limits, max_units, 16);
KVASIR_AT_(kvasir_sel_limits, expected_units, 24);
KVASIR_AT_(kvasir_sel_limits, dense_below_tokens, 32);
KVASIR_AT_(kvasir_sel_limits, mass, 40);
KVASIR_AT_(kvasir_sel_limits, plans, 64);
KVASIR_AT_(kvasir_sel_limits, speculation, 80);
KVASIR_AT_(kvasir_sel_limits, prefill, 88);
KVASIR_AT_(kvasir_sel_limits, positions, 104);
KVASIR_AT_(kvasir_sel_limits, memory, 112);

KVASIR_SIZE_(kvasir_sel_in, 328);
KVASIR_AT_(kvasir_sel_in, struct_size, 0);
KVASIR_AT_(kvasir_sel_in, n_score_heads, 4);
KVASIR_AT_(kvasir_sel_in, q, 8);
KVASIR_AT_(kvasir_sel_in, x, 104);
KVASIR_AT_(kvasir_sel_in, scores, 200);
KVASIR_AT_(kvasir_sel_in, score_offsets, 296);
KVASIR_AT_(kvasir_sel_in, leases, 304);
KVASIR_AT_(kvasir_sel_in, lease_offsets, 312);
KVASIR_AT_(kvasir_sel_in, list_end, 320);

KVASIR_SIZE_(kvasir_selector, 160);
KVASIR_AT_(kvasir_selector, base, 0);
KVASIR_AT_(kvasir_selector, limits, 96);
KVASIR_AT_(kvasir_selector, layout, 104);
KVASIR_AT_(kvasir_selector, update, 112);
KVASIR_AT_(kvasir_selector, prefill, 120);
KVASIR_AT_(kvasir_selector, speculate, 128);
KVASIR_AT_(kvasir_selector, select, 136);
KVASIR_AT_(kvasir_selector, observe, 144);
KVASIR_AT_(kvasir_selector, evict_plan, 152);

KVASIR_SIZE_(kvasir_score_in, 112);
KVASIR_AT_(kvasir_score_in, struct_size, 0);
KVASIR_AT_(kvasir_score_in, flags, 4);
KVASIR_AT_(kvasir_score_in, q, 8);
KVASIR_AT_(kvasir_score_in, n_best, 104);
KVASIR_AT_(kvasir_score_in, reserved, 108);

KVASIR_SIZE_(kvasir_score_out, 120);
KVASIR_AT_(kvasir_score_out, struct_size, 0);
KVASIR_AT_(kvasir_score_out, reserved, 4);
KVASIR_AT_(kvasir_score_out, offsets, 8);
KVASIR_AT_(kvasir_score_out, value, 16);
KVASIR_AT_(kvasir_score_out, bytes_read, 112);

KVASIR_SIZE_(kvasir_representative, 120);
KVASIR_AT_(kvasir_representative, base, 0);
KVASIR_AT_(kvasir_representative, layout, 96);
KVASIR_AT_(kvasir_representative, update, 104);
KVASIR_AT_(kvasir_representative, score, 112);

KVASIR_SIZE_(kvasir_block_key, 48);
KVASIR_AT_(kvasir_block_key, hash, 0);
KVASIR_AT_(kvasir_block_key, layer, 16);
KVASIR_AT_(kvasir_block_key, block, 20);
KVASIR_AT_(kvasir_block_key, kv_head, 24);
KVASIR_AT_(kvasir_block_key, n_tokens, 28);
KVASIR_AT_(kvasir_block_key, handle, 32);
KVASIR_AT_(kvasir_block_key, needed, 40);

KVASIR_SIZE_(kvasir_io_hint, 8);
KVASIR_AT_(kvasir_io_hint, struct_size, 0);
KVASIR_AT_(kvasir_io_hint, priority, 4);

KVASIR_SIZE_(kvasir_storage_plan, 32);
KVASIR_AT_(kvasir_storage_plan, struct_size, 0);
KVASIR_AT_(kvasir_storage_plan, n_tiers, 4);
KVASIR_AT_(kvasir_storage_plan, block_bytes, 8);
KVASIR_AT_(kvasir_storage_plan, overhead_bytes, 16);
KVASIR_AT_(kvasir_storage_plan, resident_bytes, 24);

KVASIR_SIZE_(kvasir_token_span, 16);
KVASIR_AT_(kvasir_token_span, lease, 0);
KVASIR_AT_(kvasir_token_span, first_token, 8);
KVASIR_AT_(kvasir_token_span, n_tokens, 12);

KVASIR_SIZE_(kvasir_token_copy, 32);
KVASIR_AT_(kvasir_token_copy, from, 0);
KVASIR_AT_(kvasir_token_copy, to, 8);
KVASIR_AT_(kvasir_token_copy, from_token, 16);
KVASIR_AT_(kvasir_token_copy, to_token, 20);
KVASIR_AT_(kvasir_token_copy, n_tokens, 24);
KVASIR_AT_(kvasir_token_copy, kv_head, 28);

KVASIR_SIZE_(kvasir_storage, 192);
KVASIR_AT_(kvasir_storage, base, 0);
KVASIR_AT_(kvasir_storage, plan, 96);
KVASIR_AT_(kvasir_storage, formats, 104);
KVASIR_AT_(kvasir_storage, acquire, 112);
KVASIR_AT_(kvasir_storage, release, 120);
KVASIR_AT_(kvasir_storage, seal, 128);
KVASIR_AT_(kvasir_storage, drop, 136);
KVASIR_AT_(kvasir_storage, prefetch, 144);
KVASIR_AT_(kvasir_storage, cancel, 152);
KVASIR_AT_(kvasir_storage, write_tokens, 160);
KVASIR_AT_(kvasir_storage, copy_tokens, 168);
KVASIR_AT_(kvasir_storage, save_tokens, 176);
KVASIR_AT_(kvasir_storage, load_tokens, 184);

KVASIR_SIZE_(kvasir_attn_range, 32);
KVASIR_AT_(kvasir_attn_range, kv_head, 0);
KVASIR_AT_(kvasir_attn_range, q_begin, 4);
KVASIR_AT_(kvasir_attn_range, n_q, 8);
KVASIR_AT_(kvasir_attn_range, flags, 12);
KVASIR_AT_(kvasir_attn_range, item_begin, 16);
KVASIR_AT_(kvasir_attn_range, item_end, 24);

KVASIR_SIZE_(kvasir_attn_part, 264);
KVASIR_AT_(kvasir_attn_part, struct_size, 0);
KVASIR_AT_(kvasir_attn_part, unit, 4);
KVASIR_AT_(kvasir_attn_part, n_ranges, 8);
KVASIR_AT_(kvasir_attn_part, range_size, 12);
KVASIR_AT_(kvasir_attn_part, ranges, 16);
KVASIR_AT_(kvasir_attn_part, leases, 24);
KVASIR_AT_(kvasir_attn_part, n_leases, 32);
KVASIR_AT_(kvasir_attn_part, lease_size, 36);
KVASIR_AT_(kvasir_attn_part, items, 40);
KVASIR_AT_(kvasir_attn_part, log_weight, 48);
KVASIR_AT_(kvasir_attn_part, weight_width, 56);
KVASIR_AT_(kvasir_attn_part, dist_min, 60);
KVASIR_AT_(kvasir_attn_part, dist_max, 64);
KVASIR_AT_(kvasir_attn_part, reserved, 68);
KVASIR_AT_(kvasir_attn_part, q, 72);
KVASIR_AT_(kvasir_attn_part, q_pos, 168);

KVASIR_SIZE_(kvasir_attn_in, 24);
KVASIR_AT_(kvasir_attn_in, struct_size, 0);
KVASIR_AT_(kvasir_attn_in, flags, 4);
KVASIR_AT_(kvasir_attn_in, n_parts, 8);
KVASIR_AT_(kvasir_attn_in, part_size, 12);
KVASIR_AT_(kvasir_attn_in, parts, 16);

KVASIR_SIZE_(kvasir_attn_out, 208);
KVASIR_AT_(kvasir_attn_out, struct_size, 0);
KVASIR_AT_(kvasir_attn_out, reserved, 4);
KVASIR_AT_(kvasir_attn_out, o, 8);
KVASIR_AT_(kvasir_attn_out, lse, 104);
KVASIR_AT_(kvasir_attn_out, keys_skipped, 200);

KVASIR_SIZE_(kvasir_attn_mass, 208);
KVASIR_AT_(kvasir_attn_mass, struct_size, 0);
KVASIR_AT_(kvasir_attn_mass, width, 4);
KVASIR_AT_(kvasir_attn_mass, range_offsets, 8);
KVASIR_AT_(kvasir_attn_mass, lse, 16);
KVASIR_AT_(kvasir_attn_mass, value, 112);

KVASIR_SIZE_(kvasir_attn_shape, 16);
KVASIR_AT_(kvasir_attn_shape, struct_size, 0);
KVASIR_AT_(kvasir_attn_shape, max_queries, 4);
KVASIR_AT_(kvasir_attn_shape, max_keys, 8);

KVASIR_SIZE_(kvasir_attn_plan, 16);
KVASIR_AT_(kvasir_attn_plan, struct_size, 0);
KVASIR_AT_(kvasir_attn_plan, reserved, 4);
KVASIR_AT_(kvasir_attn_plan, scratch_bytes, 8);

KVASIR_SIZE_(kvasir_attention, 120);
KVASIR_AT_(kvasir_attention, base, 0);
KVASIR_AT_(kvasir_attention, plan, 96);
KVASIR_AT_(kvasir_attention, run, 104);
KVASIR_AT_(kvasir_attention, mass, 112);

KVASIR_SIZE_(kvasir_completion, 24);
KVASIR_AT_(kvasir_completion, struct_size, 0);
KVASIR_AT_(kvasir_completion, reserved, 4);
KVASIR_AT_(kvasir_completion, self, 8);
KVASIR_AT_(kvasir_completion, complete, 16);

KVASIR_SIZE_(kvasir_log, 24);
KVASIR_AT_(kvasir_log, struct_size, 0);
KVASIR_AT_(kvasir_log, reserved, 4);
KVASIR_AT_(kvasir_log, self, 8);
KVASIR_AT_(kvasir_log, write, 16);

KVASIR_SIZE_(kvasir_scratch, 24);
KVASIR_AT_(kvasir_scratch, struct_size, 0);
KVASIR_AT_(kvasir_scratch, reserved, 4);
KVASIR_AT_(kvasir_scratch, self, 8);
KVASIR_AT_(kvasir_scratch, get, 16);

KVASIR_SIZE_(kvasir_thread_pool, 40);
KVASIR_AT_(kvasir_thread_pool, struct_size, 0);
KVASIR_AT_(kvasir_thread_pool, reserved, 4);
KVASIR_AT_(kvasir_thread_pool, self, 8);
KVASIR_AT_(kvasir_thread_pool, max_workers, 16);
KVASIR_AT_(kvasir_thread_pool, parallel_for, 24);
KVASIR_AT_(kvasir_thread_pool, node_of, 32);

#undef KVASIR_AT_
#undef KVASIR_SIZE_
#undef KVASIR_ASSERT_

#endif

#endif
