//! The part of kvasir's C ABI 0.1 that a selector without state needs, written out by hand from
//! `<kvasir/selector.h>`. Slots this template does not use are `*const c_void`: keep them null.
//! At the end what every plugin would write alike: note, option, description, table, entry, guard.
//! SPDX-License-Identifier: Apache-2.0 OR MIT
#![allow(dead_code)]

use std::ffi::{c_char, c_void, CStr};
use std::mem::size_of;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::null;

pub type Status = i32;
pub const OK: Status = 0;
pub const ERR_INVALID: Status = -1;
pub const ERR_VERSION: Status = -3;
pub const ERR_CAPACITY: Status = -4;
pub const ERR_INTERNAL: Status = -8;

pub const ABI_MAJOR: u32 = 0;
pub const ABI_MINOR: u32 = 2;
pub const KIND_SELECTOR: u32 = 1;
pub const OPTION_INT: u32 = 2;
pub const UNIT_BLOCK: u32 = 0;
pub const SCOPE_SEQUENCE: u32 = 0;

/// Static tables hold pointers to other static tables, never written: sharing them is sound.
#[repr(transparent)]
pub struct Static<T>(pub T);
unsafe impl<T> Sync for Static<T> {}

#[repr(C)]
pub struct ErrorRecord {
    pub struct_size: u32,
    pub code: Status,
    pub text: [u8; 512],
}

#[repr(C, align(4))]
pub struct Note {
    pub namesz: u32,
    pub descsz: u32,
    pub kind: u32,
    pub name: [u8; 8],
    pub abi_major: u32,
    pub abi_minor: u32,
    pub required_minor: u32,
    pub kinds: u32,
    pub cpu_features: u32,
    pub reserved: u32,
    pub version: [u8; 32],
    pub ids: [u8; 448],
    pub drafts: [u8; 128],
}

/// `text` followed by zeros.
pub const fn padded<const N: usize>(text: &CStr) -> [u8; N] {
    let (bytes, mut out, mut i) = (text.to_bytes(), [0; N], 0);
    while i < bytes.len() {
        out[i] = bytes[i];
        i += 1;
    }
    out
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Value {
    pub kind: u32,
    pub n: u32,
    pub i: i64,
    pub f: f64,
    pub s: *const c_char,
    pub list: *const i64,
}

impl Value {
    pub const fn int(i: i64) -> Value {
        Value {
            kind: OPTION_INT,
            n: 0,
            i,
            f: 0.0,
            s: std::ptr::null(),
            list: std::ptr::null(),
        }
    }
}

#[repr(C)]
pub struct OptionSchema {
    pub struct_size: u32,
    pub kind: u32,
    pub flags: u32,
    pub n_enum: u32,
    pub key: *const c_char,
    pub aliases: *const c_void,
    pub enum_names: *const c_void,
    pub unit: *const c_char,
    pub help: *const c_char,
    pub def: Value,
    pub min: Value,
    pub max: Value,
    pub group: *const c_char,
    pub with: *const c_char,
}

#[repr(C)]
pub struct OptionValue {
    pub key: *const c_char,
    pub value: Value,
    pub is_set: u32,
    pub reserved: u32,
}

#[repr(C)]
pub struct Desc {
    pub struct_size: u32,
    pub kind: u32,
    pub id: *const c_char,
    pub version: *const c_char,
    pub name: *const c_char,
    pub vendor: *const c_char,
    pub license: *const c_char,
    pub url: *const c_char,
    pub summary: *const c_char,
    pub options: *const OptionSchema,
    pub n_options: u32,
    pub option_size: u32,
    pub caps: u64,
    pub needs: u64,
    pub provides: u64,
    pub dtypes: u64,
    pub mem_kinds_read: u32,
    pub mem_kinds_write: u32,
}

#[repr(C)]
pub struct Host {
    pub struct_size: u32,
    pub abi_major: u32,
    pub abi_minor_min: u32,
    pub abi_minor_max: u32,
    pub name: *const c_char,
    pub version: *const c_char,
    pub this: *mut c_void,
    pub get_extension: extern "C" fn(*mut c_void, *const c_char) -> *const c_void,
}

#[repr(C)]
pub struct Instance {
    pub struct_size: u32,
    pub kind: u32,
    pub this: *mut c_void,
    pub desc: *const Desc,
    pub validate: *const c_void,
    pub bind: extern "C" fn(*mut c_void, *const c_void, *mut ErrorRecord) -> Status,
    pub seq_open: *const c_void,
    pub seq_fork: *const c_void,
    pub seq_truncate: *const c_void,
    pub seq_close: *const c_void,
    pub drain: *const c_void,
    pub destroy: Destroy,
    pub get_extension: *const c_void,
}

#[repr(C)]
pub struct Plugin {
    pub struct_size: u32,
    pub reserved: u32,
    pub count: extern "C" fn() -> u32,
    pub describe: extern "C" fn(u32) -> *const Desc,
    pub create: extern "C" fn(
        u32,
        *const Host,
        *const OptionValue,
        u32,
        u32,
        *mut *mut Instance,
        *mut ErrorRecord,
    ) -> Status,
    pub shutdown: *const c_void,
}

#[repr(C)]
pub struct Request {
    pub struct_size: u32,
    pub abi_minor: u32,
    pub plugin: *const Plugin,
}

#[repr(C)]
pub struct StepSeq {
    pub id: u64,
    pub q_begin: u32,
    pub n_q: u32,
    pub kv_len: u32,
    pub prompt_begin: u32,
    pub prompt_end: u32,
    pub unit_begin: u32,
    pub unit_end: u32,
    pub phase: u32,
    pub flags: u32,
    pub reserved: u32,
}

#[repr(C)]
pub struct Step {
    pub struct_size: u32,
    pub moment: u32,
    pub reserved: u32,
    pub layer: u32,
    pub n_seqs: u32,
    pub seq_size: u32,
    pub seqs: *const StepSeq,
    pub candidates: *const Selection,
    pub slab: *const c_void,
}

#[repr(C)]
pub struct Selection {
    pub struct_size: u32,
    pub unit: u32,
    pub scope: u32,
    pub flags: u32,
    pub action: u32,
    pub weight_width: u32,
    pub reuse_steps: u32,
    pub n_lists: u32,
    pub capacity: u64,
    pub needed: u64,
    pub list_offsets: *mut u64,
    pub list_flags: *mut u32,
    pub index: *mut u32,
    pub log_weight: *mut f32,
    pub bytes_read: u64,
    pub query_block: u32,
    pub reserved: u32,
    pub o: [u64; 12],   // views, for contributions
    pub lse: [u64; 12],
}

#[repr(C)]
#[derive(Default)]
pub struct SelLimits {
    pub struct_size: u32,
    pub unit: u32,
    pub scope: u32,
    pub reserved: u32,
    pub max_units: u64,
    pub expected_units: u64,
    pub dense_below_tokens: u64,
    pub mass: [u32; 6],
    pub plans: [u32; 4],
    pub speculation: [u32; 2],
    pub prefill: [u32; 4],
    pub positions: [u32; 2],
    pub memory: [u64; 2],
}

pub type Limits = extern "C" fn(*mut c_void, *mut SelLimits, *mut ErrorRecord) -> Status;
pub type Select = extern "C" fn(
    *mut c_void,
    *const Step,
    *const c_void,
    *mut Selection,
    *mut ErrorRecord,
) -> Status;
pub type Destroy = extern "C" fn(*mut c_void);

#[repr(C)]
pub struct SelectorTable {
    pub base: Instance,
    pub limits: Limits,
    pub layout: *const c_void,
    pub update: *const c_void,
    pub prefill: *const c_void,
    pub speculate: *const c_void,
    pub select: Select,
    pub observe: *const c_void,
    pub evict_plan: *const c_void,
}

// Sizes of the C structs: a slip of the pen above does not compile.
const _: () = assert!(size_of::<ErrorRecord>() == 520 && size_of::<Note>() == 652);
const _: () = assert!(size_of::<Value>() == 40 && size_of::<OptionSchema>() == 192);
const _: () = assert!(size_of::<OptionValue>() == 56 && size_of::<Desc>() == 120);
const _: () = assert!(size_of::<Host>() == 48 && size_of::<Request>() == 16);
const _: () = assert!(size_of::<Instance>() == 96 && size_of::<Plugin>() == 40);
const _: () = assert!(size_of::<StepSeq>() == 48 && size_of::<Step>() == 48);
const _: () = assert!(size_of::<Selection>() == 288 && size_of::<SelLimits>() == 128);
const _: () = assert!(size_of::<SelectorTable>() == 160);

/// Of a file with one selector, for `#[used] #[link_section = ".note.kvasir"]`.
pub const fn note(id: &CStr, version: &CStr) -> Note {
    Note {
        namesz: 8,
        descsz: size_of::<Note>() as u32 - 20,
        kind: 1,
        name: padded(c"Kvasir"),
        abi_major: ABI_MAJOR,
        abi_minor: ABI_MINOR,
        required_minor: ABI_MINOR,
        kinds: 1 << KIND_SELECTOR,
        cpu_features: 0,
        reserved: 0,
        version: padded(version),
        ids: padded(id),
        drafts: [0; 128],
    }
}

impl OptionSchema {
    pub const fn int(
        key: &'static CStr,
        unit: &'static CStr,
        help: &'static CStr,
        def: i64,
    ) -> Self {
        OptionSchema {
            struct_size: size_of::<OptionSchema>() as u32,
            kind: OPTION_INT,
            flags: 0,
            n_enum: 0,
            key: key.as_ptr(),
            aliases: null(),
            enum_names: null(),
            unit: unit.as_ptr(),
            help: help.as_ptr(),
            def: Value::int(def),
            min: Value::int(1),
            max: Value::int(1 << 20),
            group: null(),
            with: null(),
        }
    }
}

impl Desc {
    pub const fn selector(
        id: &'static CStr,
        version: &'static CStr,
        summary: &'static CStr,
        options: &'static [OptionSchema],
    ) -> Self {
        Desc {
            struct_size: size_of::<Desc>() as u32,
            kind: KIND_SELECTOR,
            id: id.as_ptr(),
            version: version.as_ptr(),
            name: null(),
            vendor: null(),
            license: null(),
            url: null(),
            summary: summary.as_ptr(),
            options: options.as_ptr(),
            n_options: options.len() as u32,
            option_size: size_of::<OptionSchema>() as u32,
            caps: 0,
            needs: 0,
            provides: 0,
            dtypes: 0,
            mem_kinds_read: 0,
            mem_kinds_write: 0,
        }
    }
}

/// Slots of a selector: what a plugin offers of them it says itself, the others stay null.
impl SelectorTable {
    pub fn new(desc: &'static Desc, limits: Limits, select: Select, destroy: Destroy) -> Self {
        extern "C" fn bind(_: *mut c_void, _: *const c_void, _: *mut ErrorRecord) -> Status {
            OK
        }
        SelectorTable {
            base: Instance {
                struct_size: size_of::<SelectorTable>() as u32,
                kind: KIND_SELECTOR,
                this: std::ptr::null_mut(),
                desc,
                validate: null(),
                bind,
                seq_open: null(),
                seq_fork: null(),
                seq_truncate: null(),
                seq_close: null(),
                drain: null(),
                destroy,
                get_extension: null(),
            },
            limits,
            layout: null(),
            update: null(),
            prefill: null(),
            speculate: null(),
            select,
            observe: null(),
            evict_plan: null(),
        }
    }
}

impl Step {
    /// # Safety
    /// `s < n_seqs`, and the step lives.
    pub unsafe fn seq(&self, s: usize) -> &StepSeq {
        let bytes = self.seqs as *const u8;
        &*bytes.add(s * self.seq_size as usize).cast::<StepSeq>()
    }
}

pub type Failure = (Status, &'static str);

/// Runs `body`; a failure or a panic becomes a status and a sentence in `err`.
pub fn guard(err: *mut ErrorRecord, body: impl FnOnce() -> Result<(), Failure>) -> Status {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err((ERR_INTERNAL, "a panic")));
    let Err((code, text)) = result else { return OK };
    // SAFETY: the host gives a zeroed record that lives for the call.
    let err = unsafe { &mut *err };
    err.code = code;
    let n = text.len().min(err.text.len() - 1);
    err.text[..n].copy_from_slice(&text.as_bytes()[..n]);
    code
}

/// The table and the entry of a file with one plugin, from its description and create().
#[macro_export]
macro_rules! plugin_entry {
    ($desc:expr, $create:path) => {
        extern "C" fn count() -> u32 {
            1
        }
        extern "C" fn describe(index: u32) -> *const Desc {
            if index == 0 {
                &$desc
            } else {
                std::ptr::null()
            }
        }
        static PLUGIN: Static<Plugin> = Static(Plugin {
            struct_size: std::mem::size_of::<Plugin>() as u32,
            reserved: 0,
            count,
            describe,
            create: $create,
            shutdown: std::ptr::null(),
        });

        #[no_mangle]
        pub extern "C" fn kvasir_plugin_entry(
            host: *const Host,
            request: *mut Request,
            err: *mut ErrorRecord,
        ) -> Status {
            // SAFETY: both live for the call.
            guard(err, || unsafe {
                if (*host).abi_major != ABI_MAJOR
                    || (*host).abi_minor_max < ABI_MINOR
                    || (*host).abi_minor_min > ABI_MINOR
                {
                    let text = "built for another version of kvasir: rebuild or update it";
                    return Err((ERR_VERSION, text));
                }
                (*request).abi_minor = ABI_MINOR;
                (*request).plugin = &PLUGIN.0;
                Ok(())
            })
        }
    };
}
