/* The ledger of version 0.1: size and offsets of every public struct on a 64-bit machine. A line
 * may change while the major version is 0; from 1.0 on lines are only added. Which plugin drives
 * which slot: slots_test.cc.
 * SPDX-License-Identifier: Apache-2.0 */
#include <kvasir/ext/draft/skew.h>
#include <kvasir/ext/draft/state.h>
#include <kvasir/kvasir.h>

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " changed its size")
#define AT(type, field, bytes) \
  _Static_assert(offsetof(type, field) == (bytes), #type "." #field " moved")

SIZE(kvasir_err, 520);
AT(kvasir_err, struct_size, 0);
AT(kvasir_err, code, 4);
AT(kvasir_err, text, 8);

SIZE(kvasir_view, 96);
AT(kvasir_view, struct_size, 0);
AT(kvasir_view, dtype, 4);
AT(kvasir_view, data, 8);
AT(kvasir_view, mem_kind, 16);
AT(kvasir_view, device, 20);
AT(kvasir_view, rank, 24);
AT(kvasir_view, flags, 28);
AT(kvasir_view, shape, 32);
AT(kvasir_view, stride, 64);

SIZE(kvasir_kv_format, 48);
AT(kvasir_kv_format, struct_size, 0);
AT(kvasir_kv_format, dtype_k, 4);
AT(kvasir_kv_format, dtype_v, 8);
AT(kvasir_kv_format, mem_kind, 12);
AT(kvasir_kv_format, k_token_stride, 16);
AT(kvasir_kv_format, v_token_stride, 24);
AT(kvasir_kv_format, k_head_stride, 32);
AT(kvasir_kv_format, v_head_stride, 40);

SIZE(kvasir_lease, 64);
AT(kvasir_lease, lease, 0);
AT(kvasir_lease, handle, 8);
AT(kvasir_lease, k, 16);
AT(kvasir_lease, v, 24);
AT(kvasir_lease, token_pos, 32);
AT(kvasir_lease, pos_begin, 40);
AT(kvasir_lease, n_tokens, 44);
AT(kvasir_lease, kv_head, 48);
AT(kvasir_lease, format, 52);
AT(kvasir_lease, tier, 56);
AT(kvasir_lease, state, 60);

SIZE(kvasir_selection, 88);
AT(kvasir_selection, struct_size, 0);
AT(kvasir_selection, unit, 4);
AT(kvasir_selection, scope, 8);
AT(kvasir_selection, flags, 12);
AT(kvasir_selection, action, 16);
AT(kvasir_selection, weight_width, 20);
AT(kvasir_selection, reuse_steps, 24);
AT(kvasir_selection, n_rows, 28);
AT(kvasir_selection, capacity, 32);
AT(kvasir_selection, needed, 40);
AT(kvasir_selection, row_offsets, 48);
AT(kvasir_selection, row_flags, 56);
AT(kvasir_selection, index, 64);
AT(kvasir_selection, log_weight, 72);
AT(kvasir_selection, bytes_read, 80);

SIZE(kvasir_slab, 48);
AT(kvasir_slab, struct_size, 0);
AT(kvasir_slab, page_blocks, 4);
AT(kvasir_slab, record_bytes, 8);
AT(kvasir_slab, open_bytes, 16);
AT(kvasir_slab, row_pages, 24);
AT(kvasir_slab, pages, 32);
AT(kvasir_slab, open_pages, 40);

SIZE(kvasir_value, 40);
AT(kvasir_value, type, 0);
AT(kvasir_value, n, 4);
AT(kvasir_value, i, 8);
AT(kvasir_value, f, 16);
AT(kvasir_value, s, 24);
AT(kvasir_value, list, 32);

SIZE(kvasir_option_schema, 176);
AT(kvasir_option_schema, struct_size, 0);
AT(kvasir_option_schema, type, 4);
AT(kvasir_option_schema, flags, 8);
AT(kvasir_option_schema, n_enum, 12);
AT(kvasir_option_schema, key, 16);
AT(kvasir_option_schema, aliases, 24);
AT(kvasir_option_schema, enum_names, 32);
AT(kvasir_option_schema, unit, 40);
AT(kvasir_option_schema, help, 48);
AT(kvasir_option_schema, def, 56);
AT(kvasir_option_schema, min, 96);
AT(kvasir_option_schema, max, 136);

SIZE(kvasir_option, 56);
AT(kvasir_option, key, 0);
AT(kvasir_option, value, 8);
AT(kvasir_option, is_set, 48);
AT(kvasir_option, reserved, 52);

SIZE(kvasir_note, 652);
AT(kvasir_note, namesz, 0);
AT(kvasir_note, descsz, 4);
AT(kvasir_note, type, 8);
AT(kvasir_note, name, 12);
AT(kvasir_note, abi_major, 20);
AT(kvasir_note, abi_minor, 24);
AT(kvasir_note, required_minor, 28);
AT(kvasir_note, kinds, 32);
AT(kvasir_note, cpu_features, 36);
AT(kvasir_note, reserved, 40);
AT(kvasir_note, version, 44);
AT(kvasir_note, ids, 76);
AT(kvasir_note, drafts, 524);

SIZE(kvasir_host, 48);
AT(kvasir_host, struct_size, 0);
AT(kvasir_host, abi_major, 4);
AT(kvasir_host, abi_minor_min, 8);
AT(kvasir_host, abi_minor_max, 12);
AT(kvasir_host, name, 16);
AT(kvasir_host, version, 24);
AT(kvasir_host, self, 32);
AT(kvasir_host, get_extension, 40);

SIZE(kvasir_desc, 112);
AT(kvasir_desc, struct_size, 0);
AT(kvasir_desc, kind, 4);
AT(kvasir_desc, id, 8);
AT(kvasir_desc, version, 16);
AT(kvasir_desc, name, 24);
AT(kvasir_desc, vendor, 32);
AT(kvasir_desc, license, 40);
AT(kvasir_desc, url, 48);
AT(kvasir_desc, summary, 56);
AT(kvasir_desc, options, 64);
AT(kvasir_desc, n_options, 72);
AT(kvasir_desc, option_size, 76);
AT(kvasir_desc, caps, 80);
AT(kvasir_desc, needs, 88);
AT(kvasir_desc, provides, 96);
AT(kvasir_desc, dtypes, 104);

SIZE(kvasir_plugin, 40);
AT(kvasir_plugin, struct_size, 0);
AT(kvasir_plugin, reserved, 4);
AT(kvasir_plugin, count, 8);
AT(kvasir_plugin, describe, 16);
AT(kvasir_plugin, create, 24);
AT(kvasir_plugin, shutdown, 32);

SIZE(kvasir_request, 16);
AT(kvasir_request, struct_size, 0);
AT(kvasir_request, abi_minor, 4);
AT(kvasir_request, plugin, 8);

SIZE(kvasir_geometry, 112);
AT(kvasir_geometry, struct_size, 0);
AT(kvasir_geometry, n_layers, 4);
AT(kvasir_geometry, n_q_heads, 8);
AT(kvasir_geometry, n_kv_heads, 12);
AT(kvasir_geometry, head_dim, 16);
AT(kvasir_geometry, v_dim, 20);
AT(kvasir_geometry, block_size, 24);
AT(kvasir_geometry, max_context, 28);
AT(kvasir_geometry, max_sequences, 32);
AT(kvasir_geometry, max_queries, 36);
AT(kvasir_geometry, sink_tokens, 40);
AT(kvasir_geometry, window_tokens, 44);
AT(kvasir_geometry, window_mode, 48);
AT(kvasir_geometry, k_state, 52);
AT(kvasir_geometry, gqa_reduce, 56);
AT(kvasir_geometry, head_select_shared, 60);
AT(kvasir_geometry, n_formats, 64);
AT(kvasir_geometry, format_size, 68);
AT(kvasir_geometry, formats, 72);
AT(kvasir_geometry, dense_layers, 80);
AT(kvasir_geometry, softmax_scale, 88);
AT(kvasir_geometry, softcap, 92);
AT(kvasir_geometry, seed, 96);
AT(kvasir_geometry, model_hash, 104);

SIZE(kvasir_instance, 96);
AT(kvasir_instance, struct_size, 0);
AT(kvasir_instance, kind, 4);
AT(kvasir_instance, self, 8);
AT(kvasir_instance, desc, 16);
AT(kvasir_instance, validate, 24);
AT(kvasir_instance, bind, 32);
AT(kvasir_instance, seq_open, 40);
AT(kvasir_instance, seq_fork, 48);
AT(kvasir_instance, seq_truncate, 56);
AT(kvasir_instance, seq_close, 64);
AT(kvasir_instance, drain, 72);
AT(kvasir_instance, destroy, 80);
AT(kvasir_instance, get_extension, 88);

SIZE(kvasir_step_row, 48);
AT(kvasir_step_row, seq, 0);
AT(kvasir_step_row, q_begin, 8);
AT(kvasir_step_row, n_q, 12);
AT(kvasir_step_row, kv_len, 16);
AT(kvasir_step_row, prompt_begin, 20);
AT(kvasir_step_row, prompt_end, 24);
AT(kvasir_step_row, unit_begin, 28);
AT(kvasir_step_row, unit_end, 32);
AT(kvasir_step_row, phase, 36);
AT(kvasir_step_row, flags, 40);
AT(kvasir_step_row, reserved, 44);

SIZE(kvasir_step, 48);
AT(kvasir_step, struct_size, 0);
AT(kvasir_step, moment, 4);
AT(kvasir_step, reserved, 8);
AT(kvasir_step, layer, 12);
AT(kvasir_step, n_rows, 16);
AT(kvasir_step, row_size, 20);
AT(kvasir_step, rows, 24);
AT(kvasir_step, candidates, 32);
AT(kvasir_step, slab, 40);

SIZE(kvasir_mass, 48);
AT(kvasir_mass, struct_size, 0);
AT(kvasir_mass, unit, 4);
AT(kvasir_mass, reduce, 8);
AT(kvasir_mass, n_rows, 12);
AT(kvasir_mass, n_queries, 16);
AT(kvasir_mass, row_offsets, 24);
AT(kvasir_mass, index, 32);
AT(kvasir_mass, value, 40);

SIZE(kvasir_update_item, 40);
AT(kvasir_update_item, row, 0);
AT(kvasir_update_item, block, 4);
AT(kvasir_update_item, first_new, 8);
AT(kvasir_update_item, n_new, 12);
AT(kvasir_update_item, n_tokens, 16);
AT(kvasir_update_item, flags, 20);
AT(kvasir_update_item, lease, 24);
AT(kvasir_update_item, mass, 32);

SIZE(kvasir_sel_limits, 112);
AT(kvasir_sel_limits, struct_size, 0);
AT(kvasir_sel_limits, unit, 4);
AT(kvasir_sel_limits, scope, 8);
AT(kvasir_sel_limits, flags, 12);
AT(kvasir_sel_limits, max_units, 16);
AT(kvasir_sel_limits, dense_below_tokens, 24);
AT(kvasir_sel_limits, plan_at, 32);
AT(kvasir_sel_limits, plan_every_tokens, 36);
AT(kvasir_sel_limits, action, 40);
AT(kvasir_sel_limits, speculate_ahead, 44);
AT(kvasir_sel_limits, mass_at, 48);
AT(kvasir_sel_limits, mass_level, 52);
AT(kvasir_sel_limits, mass_reduce, 56);
AT(kvasir_sel_limits, mass_part, 60);
AT(kvasir_sel_limits, mass_last_queries, 64);
AT(kvasir_sel_limits, prefill_last_queries, 68);
AT(kvasir_sel_limits, prefill_slice_tokens, 72);
AT(kvasir_sel_limits, pos_mode, 76);
AT(kvasir_sel_limits, pos_const, 80);
AT(kvasir_sel_limits, reserved, 84);
AT(kvasir_sel_limits, expected_units, 88);
AT(kvasir_sel_limits, state_bytes, 96);
AT(kvasir_sel_limits, state_peak_bytes, 104);

SIZE(kvasir_sel_in, 232);
AT(kvasir_sel_in, struct_size, 0);
AT(kvasir_sel_in, n_score_heads, 4);
AT(kvasir_sel_in, q, 8);
AT(kvasir_sel_in, x, 104);
AT(kvasir_sel_in, scores, 200);
AT(kvasir_sel_in, score_offsets, 208);
AT(kvasir_sel_in, leases, 216);
AT(kvasir_sel_in, lease_offsets, 224);

SIZE(kvasir_selector, 160);
AT(kvasir_selector, base, 0);
AT(kvasir_selector, limits, 96);
AT(kvasir_selector, layout, 104);
AT(kvasir_selector, update, 112);
AT(kvasir_selector, prefill, 120);
AT(kvasir_selector, speculate, 128);
AT(kvasir_selector, select, 136);
AT(kvasir_selector, observe, 144);
AT(kvasir_selector, evict_plan, 152);

SIZE(kvasir_layout, 64);
AT(kvasir_layout, struct_size, 0);
AT(kvasir_layout, flags, 4);
AT(kvasir_layout, record_bytes, 8);
AT(kvasir_layout, open_bytes, 16);
AT(kvasir_layout, format, 24);
AT(kvasir_layout, mass_at, 32);
AT(kvasir_layout, mass_part, 36);
AT(kvasir_layout, mass_last_queries, 40);
AT(kvasir_layout, refresh_tokens, 44);
AT(kvasir_layout, state_bytes, 48);
AT(kvasir_layout, state_peak_bytes, 56);

SIZE(kvasir_score_in, 104);
AT(kvasir_score_in, struct_size, 0);
AT(kvasir_score_in, reserved, 4);
AT(kvasir_score_in, q, 8);

SIZE(kvasir_score_out, 24);
AT(kvasir_score_out, struct_size, 0);
AT(kvasir_score_out, reserved, 4);
AT(kvasir_score_out, offsets, 8);
AT(kvasir_score_out, value, 16);

SIZE(kvasir_representative, 120);
AT(kvasir_representative, base, 0);
AT(kvasir_representative, layout, 96);
AT(kvasir_representative, update, 104);
AT(kvasir_representative, score, 112);

SIZE(kvasir_block_key, 40);
AT(kvasir_block_key, hash, 0);
AT(kvasir_block_key, layer, 16);
AT(kvasir_block_key, block, 20);
AT(kvasir_block_key, kv_head, 24);
AT(kvasir_block_key, n_tokens, 28);
AT(kvasir_block_key, handle, 32);

SIZE(kvasir_io_hint, 8);
AT(kvasir_io_hint, struct_size, 0);
AT(kvasir_io_hint, priority, 4);

SIZE(kvasir_storage_plan, 32);
AT(kvasir_storage_plan, struct_size, 0);
AT(kvasir_storage_plan, n_tiers, 4);
AT(kvasir_storage_plan, block_bytes, 8);
AT(kvasir_storage_plan, overhead_bytes, 16);
AT(kvasir_storage_plan, resident_bytes, 24);

SIZE(kvasir_storage, 160);
AT(kvasir_storage, base, 0);
AT(kvasir_storage, plan, 96);
AT(kvasir_storage, formats, 104);
AT(kvasir_storage, acquire, 112);
AT(kvasir_storage, release, 120);
AT(kvasir_storage, seal, 128);
AT(kvasir_storage, drop, 136);
AT(kvasir_storage, prefetch, 144);
AT(kvasir_storage, cancel, 152);

SIZE(kvasir_attn_row, 32);
AT(kvasir_attn_row, kv_head, 0);
AT(kvasir_attn_row, q_begin, 4);
AT(kvasir_attn_row, n_q, 8);
AT(kvasir_attn_row, reserved, 12);
AT(kvasir_attn_row, item_begin, 16);
AT(kvasir_attn_row, item_end, 24);

SIZE(kvasir_attn_part, 176);
AT(kvasir_attn_part, struct_size, 0);
AT(kvasir_attn_part, unit, 4);
AT(kvasir_attn_part, n_rows, 8);
AT(kvasir_attn_part, row_size, 12);
AT(kvasir_attn_part, rows, 16);
AT(kvasir_attn_part, leases, 24);
AT(kvasir_attn_part, n_leases, 32);
AT(kvasir_attn_part, lease_size, 36);
AT(kvasir_attn_part, items, 40);
AT(kvasir_attn_part, log_weight, 48);
AT(kvasir_attn_part, weight_width, 56);
AT(kvasir_attn_part, dist_min, 60);
AT(kvasir_attn_part, dist_max, 64);
AT(kvasir_attn_part, reserved, 68);
AT(kvasir_attn_part, q, 72);
AT(kvasir_attn_part, q_pos, 168);

SIZE(kvasir_attn_in, 24);
AT(kvasir_attn_in, struct_size, 0);
AT(kvasir_attn_in, flags, 4);
AT(kvasir_attn_in, n_parts, 8);
AT(kvasir_attn_in, part_size, 12);
AT(kvasir_attn_in, parts, 16);

SIZE(kvasir_attn_out, 24);
AT(kvasir_attn_out, struct_size, 0);
AT(kvasir_attn_out, reserved, 4);
AT(kvasir_attn_out, o, 8);
AT(kvasir_attn_out, lse, 16);

SIZE(kvasir_attn_mass, 32);
AT(kvasir_attn_mass, struct_size, 0);
AT(kvasir_attn_mass, width, 4);
AT(kvasir_attn_mass, row_offsets, 8);
AT(kvasir_attn_mass, lse, 16);
AT(kvasir_attn_mass, value, 24);

SIZE(kvasir_attn_shape, 16);
AT(kvasir_attn_shape, struct_size, 0);
AT(kvasir_attn_shape, max_queries, 4);
AT(kvasir_attn_shape, max_keys, 8);

SIZE(kvasir_attn_plan, 16);
AT(kvasir_attn_plan, struct_size, 0);
AT(kvasir_attn_plan, reserved, 4);
AT(kvasir_attn_plan, scratch_bytes, 8);

SIZE(kvasir_attention, 120);
AT(kvasir_attention, base, 0);
AT(kvasir_attention, plan, 96);
AT(kvasir_attention, run, 104);
AT(kvasir_attention, mass, 112);

SIZE(kvasir_completion, 24);
AT(kvasir_completion, struct_size, 0);
AT(kvasir_completion, reserved, 4);
AT(kvasir_completion, self, 8);
AT(kvasir_completion, complete, 16);

SIZE(kvasir_log, 24);
AT(kvasir_log, struct_size, 0);
AT(kvasir_log, reserved, 4);
AT(kvasir_log, self, 8);
AT(kvasir_log, write, 16);

SIZE(kvasir_scratch, 24);
AT(kvasir_scratch, struct_size, 0);
AT(kvasir_scratch, reserved, 4);
AT(kvasir_scratch, self, 8);
AT(kvasir_scratch, get, 16);

SIZE(kvasir_thread_pool, 40);
AT(kvasir_thread_pool, struct_size, 0);
AT(kvasir_thread_pool, reserved, 4);
AT(kvasir_thread_pool, self, 8);
AT(kvasir_thread_pool, max_workers, 16);
AT(kvasir_thread_pool, parallel_for, 24);
AT(kvasir_thread_pool, node_of, 32);

SIZE(kvasir_skew_header, 40);
AT(kvasir_skew_header, magic, 0);
AT(kvasir_skew_header, version, 8);
AT(kvasir_skew_header, n_layers, 12);
AT(kvasir_skew_header, n_kv_heads, 16);
AT(kvasir_skew_header, head_dim, 20);
AT(kvasir_skew_header, model_hash, 24);
AT(kvasir_skew_header, checksum, 32);
SIZE(kvasir_state, 24);
AT(kvasir_state, struct_size, 0);
AT(kvasir_state, reserved, 4);
AT(kvasir_state, save, 8);
AT(kvasir_state, load, 16);
