// Builds the C tables of a plugin from C++ classes.
//
//   class Mine {
//    public:
//     static constexpr kvasir_desc kDesc = sdk::describe({.kind = KVASIR_KIND_SELECTOR, …});
//     Mine(const sdk::Host& host, const sdk::Options& options);
//     void limits(kvasir_sel_limits& out);            // methods are named like the slots;
//     void select(const sdk::Step& step, …);          // one that is absent leaves its slot null
//   };
//   KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "org.example.mine", "1.0.0", Mine)
//
// Methods are public, not overloaded, return nothing or a kvasir_status, and throw sdk::Error on
// failure. Their signatures stand below, one per slot.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/kvasir.h>
#include <kvasir/sdk/error.h>
#include <kvasir/sdk/host.h>
#include <kvasir/sdk/options.h>
#include <kvasir/sdk/selection.h>
#include <kvasir/sdk/step.h>

#include <memory>
#include <span>
#include <string>
#include <type_traits>

namespace kvasir::sdk {

struct Description {
  uint32_t kind = 0;
  const char* id = nullptr;
  const char* version = nullptr;
  const char* name = nullptr;
  const char* vendor = nullptr;
  const char* license = nullptr;
  const char* url = nullptr;
  const char* summary = nullptr;
  std::span<const kvasir_option_schema> options = {};
  uint64_t caps = 0;
  uint64_t needs = 0;
  uint64_t provides = 0;
  uint64_t dtypes = 0;
  uint32_t mem_kinds_read = KVASIR_MEM_BIT(KVASIR_MEM_HOST);
  uint32_t mem_kinds_write = KVASIR_MEM_BIT(KVASIR_MEM_HOST);
};

constexpr kvasir_desc describe(const Description& d) {
  return {sizeof(kvasir_desc),
          d.kind,
          d.id,
          d.version,
          d.name,
          d.vendor,
          d.license,
          d.url,
          d.summary,
          d.options.data(),
          static_cast<uint32_t>(d.options.size()),
          sizeof(kvasir_option_schema),
          d.caps,
          d.needs,
          d.provides,
          d.dtypes,
          d.mem_kinds_read,
          d.mem_kinds_write};
}

using BlockKeys = Strided<const kvasir_block_key>;
using Leases = Strided<kvasir_lease>;
using TokenSpans = Strided<const kvasir_token_span>;
using TokenCopies = Strided<const kvasir_token_copy>;

namespace detail {

template <uint32_t Kind>
struct KindTable;
template <>
struct KindTable<KVASIR_KIND_SELECTOR> {
  using Type = kvasir_selector;
};
template <>
struct KindTable<KVASIR_KIND_REPRESENTATIVE> {
  using Type = kvasir_representative;
};
template <>
struct KindTable<KVASIR_KIND_STORAGE> {
  using Type = kvasir_storage;
};
template <>
struct KindTable<KVASIR_KIND_ATTENTION> {
  using Type = kvasir_attention;
};

// The host's pointer is to `table`, whose base.self is the plugin object beside it.
template <class T>
struct Instance {
  typename KindTable<T::kDesc.kind>::Type table{};
  T plugin;
  Instance(const Host& host, const Options& options) : plugin(host, options) {}
};

template <class T>
T& as(void* self) {
  return static_cast<Instance<T>*>(self)->plugin;
}

using Seqs = std::span<const uint64_t>;

template <class T>
void fill_sequences(kvasir_instance& base) {
  if constexpr (requires { &T::seq_open; }) {
    base.seq_open = [](void* self, const uint64_t* seqs, uint32_t n, kvasir_err* err) noexcept {
      return guard(err, [&] { return as<T>(self).seq_open(Seqs(seqs, n)); });
    };
    base.seq_fork = [](void* self, const uint64_t* parents, const uint64_t* children, uint32_t n,
                       kvasir_err* err) noexcept {
      return guard(err, [&] { return as<T>(self).seq_fork(Seqs(parents, n), Seqs(children, n)); });
    };
    base.seq_truncate = [](void* self, const uint64_t* seqs, const uint32_t* kv_len, uint32_t n,
                           kvasir_err* err) noexcept {
      return guard(err, [&] {
        return as<T>(self).seq_truncate(Seqs(seqs, n), std::span<const uint32_t>(kv_len, n));
      });
    };
    base.seq_close = [](void* self, const uint64_t* seqs, uint32_t n) noexcept {
      guard(nullptr, [&] { as<T>(self).seq_close(Seqs(seqs, n)); });
    };
  }
}

template <class T>
void fill_base(Instance<T>& instance) {
  kvasir_instance& base = instance.table.base;
  base.struct_size = sizeof instance.table;
  base.kind = T::kDesc.kind;
  base.self = &instance;
  base.desc = &T::kDesc;
  if constexpr (requires { &T::validate; }) {
    base.validate = [](void* self, const kvasir_geometry* geometry, kvasir_err* err) noexcept {
      return guard(err, [&] { return as<T>(self).validate(*geometry); });
    };
  }
  base.bind = [](void* self, const kvasir_geometry* geometry, kvasir_err* err) noexcept {
    return guard(err, [&] {
      if constexpr (requires { &T::bind; }) return as<T>(self).bind(*geometry);
    });
  };
  fill_sequences<T>(base);
  if constexpr (requires { &T::drain; }) {
    base.drain = [](void* self, uint64_t deadline_ms, kvasir_err* err) noexcept {
      return guard(err, [&] { return as<T>(self).drain(deadline_ms); });
    };
  }
  base.destroy = [](void* self) noexcept { delete static_cast<Instance<T>*>(self); };
  if constexpr (requires { &T::get_extension; }) {
    base.get_extension = [](void* self, const char* id) noexcept -> const void* {
      return as<T>(self).get_extension(id);
    };
  }
}

// update() of selectors and representatives.
template <class T, class Table>
void fill_update(Table& table) {
  if constexpr (requires { &T::layout; }) {
    table.layout = [](void* self, kvasir_layout* out, kvasir_err* err) noexcept {
      return guard(err, [&] { return as<T>(self).layout(*out); });
    };
  }
  if constexpr (requires { &T::update; }) {
    table.update = [](void* self, const kvasir_step* step, const kvasir_update_item* items,
                      uint32_t n, uint32_t item_size, kvasir_err* err) noexcept {
      return guard(
          err, [&] { return as<T>(self).update(Step(*step), UpdateItems(items, n, item_size)); });
    };
  }
}

template <class T>
void fill(kvasir_selector& table) {
  table.limits = [](void* self, kvasir_sel_limits* out, kvasir_err* err) noexcept {
    return guard(err, [&] { return as<T>(self).limits(*out); });
  };
  fill_update<T>(table);
  if constexpr (requires { &T::prefill; }) {
    table.prefill = [](void* self, const kvasir_step* step, const kvasir_sel_in* in,
                       kvasir_err* err) noexcept {
      return guard(err, [&] { return as<T>(self).prefill(Step(*step), *in); });
    };
  }
  if constexpr (requires { &T::speculate; }) {
    table.speculate = [](void* self, const kvasir_step* step, uint32_t target_layer,
                         const kvasir_sel_in* in, kvasir_selection* out, kvasir_err* err) noexcept {
      return guard(err,
                   [&] { return as<T>(self).speculate(Step(*step), target_layer, *in, *out); });
    };
  }
  if constexpr (requires { &T::select; }) {
    table.select = [](void* self, const kvasir_step* step, const kvasir_sel_in* in,
                      kvasir_selection* out, kvasir_err* err) noexcept {
      return guard(err, [&] { return as<T>(self).select(Step(*step), *in, *out); });
    };
  }
  if constexpr (requires { &T::observe; }) {
    table.observe = [](void* self, const kvasir_step* step, const kvasir_mass* mass,
                       kvasir_err* err) noexcept {
      return guard(err, [&] { return as<T>(self).observe(Step(*step), *mass); });
    };
  }
  if constexpr (requires { &T::evict_plan; }) {
    table.evict_plan = [](void* self, const kvasir_step* step, kvasir_selection* out,
                          kvasir_err* err) noexcept {
      return guard(err, [&] { return as<T>(self).evict_plan(Step(*step), *out); });
    };
  }
}

template <class T>
void fill(kvasir_representative& table) {
  fill_update<T>(table);
  table.score = [](void* self, const kvasir_step* step, const kvasir_score_in* in,
                   kvasir_score_out* out, kvasir_err* err) noexcept {
    return guard(err, [&] { return as<T>(self).score(Step(*step), *in, *out); });
  };
}

// Tokens of blocks that the host cannot touch.
template <class T>
void fill_tokens(kvasir_storage& table) {
  if constexpr (requires { &T::write_tokens; }) {
    table.write_tokens = [](void* self, const kvasir_token_span* spans, uint32_t n,
                            uint32_t span_size, const kvasir_view* k, const kvasir_view* v,
                            kvasir_err* err) noexcept {
      return guard(
          err, [&] { return as<T>(self).write_tokens(TokenSpans(spans, n, span_size), *k, *v); });
    };
    table.copy_tokens = [](void* self, const kvasir_token_copy* copies, uint32_t n,
                           uint32_t copy_size, kvasir_err* err) noexcept {
      return guard(err, [&] { return as<T>(self).copy_tokens(TokenCopies(copies, n, copy_size)); });
    };
    table.save_tokens = [](void* self, const kvasir_token_span* spans, uint32_t n,
                           uint32_t span_size, void* bytes, uint64_t n_bytes,
                           kvasir_err* err) noexcept {
      return guard(err, [&] {
        return as<T>(self).save_tokens(TokenSpans(spans, n, span_size),
                                       std::span(static_cast<std::byte*>(bytes), n_bytes));
      });
    };
    table.load_tokens = [](void* self, const kvasir_token_span* spans, uint32_t n,
                           uint32_t span_size, const void* bytes, uint64_t n_bytes,
                           kvasir_err* err) noexcept {
      return guard(err, [&] {
        return as<T>(self).load_tokens(TokenSpans(spans, n, span_size),
                                       std::span(static_cast<const std::byte*>(bytes), n_bytes));
      });
    };
  }
}

template <class T>
void fill(kvasir_storage& table) {
  table.plan = [](void* self, const kvasir_geometry* geometry, kvasir_storage_plan* out,
                  kvasir_err* err) noexcept {
    return guard(err, [&] { return as<T>(self).plan(*geometry, *out); });
  };
  table.formats = [](void* self, kvasir_kv_format* out, uint32_t capacity, uint32_t* n_formats,
                     kvasir_err* err) noexcept {
    return guard(err, [&] { return as<T>(self).formats(out, capacity, *n_formats); });
  };
  table.acquire = [](void* self, const kvasir_block_key* keys, uint32_t n, uint32_t key_size,
                     uint32_t mode, kvasir_lease* out, uint32_t lease_size,
                     kvasir_err* err) noexcept {
    return guard(err, [&] {
      return as<T>(self).acquire(BlockKeys(keys, n, key_size), mode, Leases(out, n, lease_size));
    });
  };
  table.release = [](void* self, const uint64_t* leases, uint32_t n) noexcept {
    guard(nullptr, [&] { as<T>(self).release(std::span(leases, n)); });
  };
  table.seal = [](void* self, const kvasir_block_key* keys, uint32_t n, uint32_t key_size,
                  kvasir_lease* leases, uint32_t lease_size, kvasir_err* err) noexcept {
    return guard(err, [&] {
      return as<T>(self).seal(BlockKeys(keys, n, key_size), Leases(leases, n, lease_size));
    });
  };
  table.drop = [](void* self, const kvasir_block_key* keys, uint32_t n, uint32_t key_size,
                  uint32_t mode, kvasir_err* err) noexcept {
    return guard(err, [&] { return as<T>(self).drop(BlockKeys(keys, n, key_size), mode); });
  };
  if constexpr (requires { &T::prefetch; }) {
    table.prefetch = [](void* self, const kvasir_block_key* keys, uint32_t n, uint32_t key_size,
                        const kvasir_io_hint* hint, uint64_t ticket, uint32_t* accepted,
                        kvasir_err* err) noexcept {
      return guard(err, [&] {
        return as<T>(self).prefetch(BlockKeys(keys, n, key_size), *hint, ticket, *accepted);
      });
    };
  }
  if constexpr (requires { &T::cancel; }) {
    table.cancel = [](void* self, uint64_t ticket, kvasir_err* err) noexcept {
      return guard(err, [&] { return as<T>(self).cancel(ticket); });
    };
  }
  fill_tokens<T>(table);
}

template <class T>
void fill(kvasir_attention& table) {
  table.plan = [](void* self, const kvasir_attn_shape* shape, kvasir_attn_plan* out,
                  kvasir_err* err) noexcept {
    return guard(err, [&] { return as<T>(self).plan(*shape, *out); });
  };
  table.run = [](void* self, const kvasir_step* step, const kvasir_attn_in* in,
                 kvasir_attn_out* out, kvasir_err* err) noexcept {
    return guard(err, [&] { return as<T>(self).run(Step(*step), *in, *out); });
  };
  if constexpr (requires { &T::mass; }) {
    table.mass = [](void* self, const kvasir_step* step, const kvasir_attn_in* in,
                    const kvasir_attn_mass* out, kvasir_err* err) noexcept {
      return guard(err, [&] { return as<T>(self).mass(Step(*step), *in, *out); });
    };
  }
}

template <class T>
kvasir_instance* create(const kvasir_host* host, const Options& options) {
  auto instance = std::make_unique<Instance<T>>(Host(host, T::kDesc.id), options);
  fill_base<T>(*instance);
  fill<T>(instance->table);
  return &instance.release()->table.base;
}

template <class... Ts>
struct Library {
  static constexpr const kvasir_desc* kDescs[] = {&Ts::kDesc...};

  static uint32_t count() noexcept { return sizeof...(Ts); }
  static const kvasir_desc* describe(uint32_t index) noexcept {
    return index < sizeof...(Ts) ? kDescs[index] : nullptr;
  }
  static kvasir_status create(uint32_t index, const kvasir_host* host, const kvasir_option* options,
                              uint32_t n_options, uint32_t option_size, kvasir_instance** out,
                              kvasir_err* err) noexcept {
    return guard(err, [&] {
      using Maker = kvasir_instance* (*)(const kvasir_host*, const Options&);
      constexpr Maker kMakers[] = {&detail::create<Ts>...};
      if (index >= sizeof...(Ts)) {
        fail_invalid("create: index " + std::to_string(index) + ", this file has " +
                     std::to_string(sizeof...(Ts)) + " plugin(s)");
      }
      *out = kMakers[index](host, Options(options, n_options, option_size));
    });
  }
  static void shutdown() noexcept {}

  static constexpr kvasir_plugin kTable = {
      sizeof(kvasir_plugin), 0, &count, &describe, &create, &shutdown};
};

}  // namespace detail

// The body of kvasir_plugin_entry() for a file with these plugins, in the order of their indices.
template <class... Ts>
kvasir_status entry(const kvasir_host* host, kvasir_request* request, kvasir_err* err) noexcept {
  return guard(err, [&] {
    if (host->abi_major != KVASIR_ABI_MAJOR || host->abi_minor_min > KVASIR_ABI_MINOR ||
        host->abi_minor_max < KVASIR_ABI_MINOR) {
      throw Error(KVASIR_ERR_VERSION, "built for plugin ABI " + std::to_string(KVASIR_ABI_MAJOR) +
                                          "." + std::to_string(KVASIR_ABI_MINOR) +
                                          ", the host speaks " + std::to_string(host->abi_major) +
                                          "." + std::to_string(host->abi_minor_min) + " to ." +
                                          std::to_string(host->abi_minor_max) +
                                          ": rebuild the plugin, or use a host that fits");
    }
    request->abi_minor = KVASIR_ABI_MINOR;
    request->plugin = &detail::Library<Ts...>::kTable;
  });
}

}  // namespace kvasir::sdk

// Last in a file with one plugin, outside of namespaces: its note and its entry.
#define KVASIR_SDK_PLUGIN(kind, id, version, ...)                                     \
  KVASIR_PLUGIN_NOTE(KVASIR_KIND_BIT(kind), id "\0", version);                        \
  kvasir_status kvasir_plugin_entry(const kvasir_host* host, kvasir_request* request, \
                                    kvasir_err* err) noexcept {                       \
    return kvasir::sdk::entry<__VA_ARGS__>(host, request, err);                       \
  }
