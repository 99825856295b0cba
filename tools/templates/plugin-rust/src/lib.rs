//! Selector "strided": attends to every n-th candidate block. A whole plugin, to copy and change.
//! Every function that C calls goes through `guard`: no panic crosses the line.
//! SPDX-License-Identifier: Apache-2.0 OR MIT

mod kvasir;

use kvasir::*;
use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::null;

#[used]
#[link_section = ".note.kvasir"]
static NOTE: Note = Note {
    namesz: 8,
    descsz: 632,
    kind: 1,
    name: padded("Kvasir"),
    abi_major: ABI_MAJOR,
    abi_minor: ABI_MINOR,
    required_minor: ABI_MINOR,
    kinds: 1 << KIND_SELECTOR,
    cpu_features: 0,
    reserved: 0,
    version: padded("1.0.0"),
    ids: padded("org.example.strided_rs"),
    drafts: [0; 128],
};

static OPTIONS: Static<[OptionSchema; 1]> = Static([OptionSchema {
    struct_size: std::mem::size_of::<OptionSchema>() as u32,
    kind: OPTION_INT,
    flags: 0,
    n_enum: 0,
    key: c"stride".as_ptr(),
    aliases: null(),
    enum_names: null(),
    unit: c"blocks".as_ptr(),
    help: c"distance between attended blocks".as_ptr(),
    def: Value::int(4),
    min: Value::int(1),
    max: Value::int(1 << 20),
}]);

static DESC: Static<Desc> = Static(Desc {
    struct_size: std::mem::size_of::<Desc>() as u32,
    kind: KIND_SELECTOR,
    id: c"org.example.strided_rs".as_ptr(),
    version: c"1.0.0".as_ptr(),
    name: c"Strided in Rust".as_ptr(),
    vendor: c"example.org".as_ptr(),
    license: c"MIT".as_ptr(),
    url: c"".as_ptr(),
    summary: c"every n-th candidate block".as_ptr(),
    options: &OPTIONS.0 as *const OptionSchema,
    n_options: 1,
    option_size: std::mem::size_of::<OptionSchema>() as u32,
    caps: 0,
    needs: 0,
    provides: 0,
    dtypes: 0,
});

struct Strided {
    table: SelectorTable,
    stride: usize,
}

type Failure = (Status, &'static str);

/// Runs `body`; a failure or a panic becomes a status and a sentence in `err`.
fn guard(err: *mut ErrorRecord, body: impl FnOnce() -> Result<(), Failure>) -> Status {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err((ERR_INTERNAL, "a panic")));
    let Err((code, text)) = result else { return OK };
    // SAFETY: the host gives a zeroed record that lives for the call.
    let err = unsafe { &mut *err };
    err.code = code;
    let n = text.len().min(err.text.len() - 1);
    err.text[..n].copy_from_slice(&text.as_bytes()[..n]);
    code
}

extern "C" fn bind(_: *mut c_void, _: *const c_void, _: *mut ErrorRecord) -> Status {
    OK
}

extern "C" fn limits(_: *mut c_void, out: *mut SelLimits, err: *mut ErrorRecord) -> Status {
    guard(err, || {
        // SAFETY: `out` lives for the call.
        let out = unsafe { &mut *out };
        out.unit = UNIT_BLOCK;
        out.scope = SCOPE_SEQUENCE; // one list per sequence, for all heads
        Ok(())
    })
}

extern "C" fn select(
    this: *mut c_void,
    step: *const Step,
    _: *const c_void,
    out: *mut Selection,
    err: *mut ErrorRecord,
) -> Status {
    // SAFETY: the pointers live for the call; array lengths are those the header states.
    guard(err, || unsafe {
        let (this, step, out) = (&*(this as *const Strided), &*step, &mut *out);
        let n_rows = step.n_rows as usize;
        let mut n = 0usize;
        for r in 0..n_rows {
            let row = &*(step.rows as *const u8)
                .add(r * step.row_size as usize)
                .cast::<StepRow>();
            *out.row_offsets.add(r) = n as u64;
            let mut put = |unit: u32| {
                if (n as u64) < out.capacity {
                    *out.index.add(n) = unit;
                }
                n += 1;
            };
            if let Some(list) = step.candidates.as_ref() {
                let (from, to) = (*list.row_offsets.add(r), *list.row_offsets.add(r + 1));
                (from..to)
                    .step_by(this.stride)
                    .for_each(|i| put(*list.index.add(i as usize)));
            } else {
                (row.unit_begin..row.unit_end)
                    .step_by(this.stride)
                    .for_each(&mut put);
            }
        }
        *out.row_offsets.add(n_rows) = n as u64;
        out.n_rows = step.n_rows;
        out.needed = n as u64;
        if n as u64 > out.capacity {
            return Err((ERR_CAPACITY, "index is too small"));
        }
        Ok(())
    })
}

extern "C" fn destroy(this: *mut c_void) {
    // SAFETY: `this` came from Box::into_raw in create(), once.
    drop(unsafe { Box::from_raw(this as *mut Strided) });
}

extern "C" fn count() -> u32 {
    1
}

extern "C" fn describe(index: u32) -> *const Desc {
    if index == 0 {
        &DESC.0
    } else {
        null()
    }
}

extern "C" fn shutdown() {}

extern "C" fn create(
    index: u32,
    _: *const Host,
    options: *const OptionValue,
    n: u32,
    option_size: u32,
    out: *mut *mut Instance,
    err: *mut ErrorRecord,
) -> Status {
    guard(err, || {
        if index != 0 || n != 1 || (option_size as usize) < std::mem::size_of::<OptionValue>() {
            return Err((
                ERR_INVALID,
                "strided_rs: one plugin with one option, stride",
            ));
        }
        // SAFETY: n options in schema order, checked by the host against min and max.
        let stride = unsafe { (*options).value.i } as usize;
        let base = Instance {
            struct_size: std::mem::size_of::<SelectorTable>() as u32,
            kind: KIND_SELECTOR,
            this: std::ptr::null_mut(),
            desc: &DESC.0,
            validate: null(),
            bind,
            seq_open: null(),
            seq_fork: null(),
            seq_truncate: null(),
            seq_close: null(),
            drain: null(),
            destroy,
            get_extension: null(),
        };
        let table = SelectorTable {
            base,
            limits,
            layout: null(),
            update: null(),
            prefill: null(),
            speculate: null(),
            select,
            observe: null(),
            evict_plan: null(),
        };
        let this = Box::into_raw(Box::new(Strided { table, stride }));
        // SAFETY: `this` was just made, `out` lives for the call.
        unsafe {
            (*this).table.base.this = this.cast();
            *out = &mut (*this).table.base;
        }
        Ok(())
    })
}

static PLUGIN: Plugin = Plugin {
    struct_size: std::mem::size_of::<Plugin>() as u32,
    reserved: 0,
    count,
    describe,
    create,
    shutdown,
};

#[no_mangle]
pub extern "C" fn kvasir_plugin_entry(
    host: *const Host,
    request: *mut Request,
    err: *mut ErrorRecord,
) -> Status {
    // SAFETY: both live for the call.
    guard(err, || unsafe {
        if (*host).abi_major != ABI_MAJOR || (*host).abi_minor_max < ABI_MINOR {
            return Err((
                ERR_VERSION,
                "strided_rs: built for a newer kvasir; rebuild or update it",
            ));
        }
        (*request).abi_minor = ABI_MINOR;
        (*request).plugin = &PLUGIN;
        Ok(())
    })
}
