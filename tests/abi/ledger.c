/* The stable headers lay their structs out as <kvasir/layout_checks.h> says; what is in ext/draft
 * is held here, as it may still change.
 * SPDX-License-Identifier: Apache-2.0 */
#include <kvasir/ext/draft/block_heat.h>
#include <kvasir/ext/draft/device_lists.h>
#include <kvasir/ext/draft/device_memory.h>
#include <kvasir/ext/draft/skew.h>
#include <kvasir/ext/draft/state.h>
#include <kvasir/ext/draft/store.h>
#include <kvasir/ext/draft/stream.h>
#include <kvasir/ext/draft/tier_counters.h>
#include <kvasir/kvasir.h>

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " changed its size")
#define AT(type, field, bytes) \
  _Static_assert(offsetof(type, field) == (bytes), #type "." #field " moved")

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
SIZE(kvasir_tier_count, 56);
AT(kvasir_tier_count, name, 0);
AT(kvasir_tier_count, bytes_read, 8);
AT(kvasir_tier_count, bytes_written, 16);
AT(kvasir_tier_count, tokens, 24);
AT(kvasir_tier_count, n_reads, 32);
AT(kvasir_tier_count, busy_nanos, 40);
AT(kvasir_tier_count, read_nanos, 48);
SIZE(kvasir_tier_counters, 16);
AT(kvasir_tier_counters, struct_size, 0);
AT(kvasir_tier_counters, reserved, 4);
AT(kvasir_tier_counters, count, 8);

SIZE(kvasir_block_heat, 24);
AT(kvasir_block_heat, struct_size, 0);
AT(kvasir_block_heat, reserved, 4);
AT(kvasir_block_heat, wants, 8);
AT(kvasir_block_heat, heat, 16);

SIZE(kvasir_store_run, 192);
AT(kvasir_store_run, run, 0);
AT(kvasir_store_run, about, 16);
AT(kvasir_store_run, n_blocks, 144);
AT(kvasir_store_run, n_tokens, 152);
AT(kvasir_store_run, n_files, 160);
AT(kvasir_store_run, bytes, 168);
AT(kvasir_store_run, first_used, 176);
AT(kvasir_store_run, last_used, 184);
SIZE(kvasir_store_filter, 40);
AT(kvasir_store_filter, struct_size, 0);
AT(kvasir_store_filter, flags, 4);
AT(kvasir_store_filter, run, 8);
AT(kvasir_store_filter, limit_bytes, 24);
AT(kvasir_store_filter, older_than_seconds, 32);
SIZE(kvasir_store_result, 56);
AT(kvasir_store_result, struct_size, 0);
AT(kvasir_store_result, reserved, 4);
AT(kvasir_store_result, n_files, 8);
AT(kvasir_store_result, bytes, 16);
AT(kvasir_store_result, n_bad, 24);
AT(kvasir_store_result, bad_bytes, 32);
AT(kvasir_store_result, n_removed, 40);
AT(kvasir_store_result, removed_bytes, 48);
SIZE(kvasir_store, 48);
AT(kvasir_store, struct_size, 0);
AT(kvasir_store, reserved, 4);
AT(kvasir_store, name_run, 8);
AT(kvasir_store, restore, 16);
AT(kvasir_store, list, 24);
AT(kvasir_store, verify, 32);
AT(kvasir_store, prune, 40);

SIZE(kvasir_device_memory, 56);
AT(kvasir_device_memory, struct_size, 0);
AT(kvasir_device_memory, device, 4);
AT(kvasir_device_memory, alloc, 8);
AT(kvasir_device_memory, free, 16);
AT(kvasir_device_memory, copy, 24);
AT(kvasir_device_memory, zero, 32);
AT(kvasir_device_memory, all_finite, 40);
AT(kvasir_device_memory, fetch, 48);

SIZE(kvasir_stream, 48);
AT(kvasir_stream, struct_size, 0);
AT(kvasir_stream, device, 4);
AT(kvasir_stream, create, 8);
AT(kvasir_stream, destroy, 16);
AT(kvasir_stream, record, 24);
AT(kvasir_stream, follow, 32);
AT(kvasir_stream, wait, 40);

SIZE(kvasir_stream_user, 16);
AT(kvasir_stream_user, struct_size, 0);
AT(kvasir_stream_user, reserved, 4);
AT(kvasir_stream_user, set_stream, 8);

SIZE(kvasir_device_lists, 16);
AT(kvasir_device_lists, struct_size, 0);
AT(kvasir_device_lists, reserved, 4);
AT(kvasir_device_lists, select, 8);
SIZE(kvasir_attn_list, 32);
AT(kvasir_attn_list, part, 0);
AT(kvasir_attn_list, reserved, 4);
AT(kvasir_attn_list, item_begin, 8);
AT(kvasir_attn_list, n, 16);
AT(kvasir_attn_list, first, 24);
SIZE(kvasir_attn_owner, 16);
AT(kvasir_attn_owner, seq, 0);
AT(kvasir_attn_owner, unchanged, 8);
AT(kvasir_attn_owner, reserved, 12);
SIZE(kvasir_attn_lists, 136);
AT(kvasir_attn_lists, struct_size, 0);
AT(kvasir_attn_lists, list_size, 4);
AT(kvasir_attn_lists, lists, 8);
AT(kvasir_attn_lists, n_lists, 16);
AT(kvasir_attn_lists, owners, 24);
AT(kvasir_attn_lists, owner_size, 32);
AT(kvasir_attn_lists, reserved, 36);
AT(kvasir_attn_lists, index, 40);
SIZE(kvasir_device_list_reader, 32);
AT(kvasir_device_list_reader, struct_size, 0);
AT(kvasir_device_list_reader, reserved, 4);
AT(kvasir_device_list_reader, kept_bytes, 8);
AT(kvasir_device_list_reader, run, 16);
AT(kvasir_device_list_reader, forget, 24);
