//! The part of kvasir's C ABI 0.1 that a selector without state needs, written out by hand from
//! `<kvasir/selector.h>`. Slots this template does not use are `*const c_void`: keep them null.
//! SPDX-License-Identifier: Apache-2.0 OR MIT
#![allow(dead_code)]

use std::ffi::{c_char, c_void};
use std::mem::size_of;

pub type Status = i32;
pub const OK: Status = 0;
pub const ERR_INVALID: Status = -1;
pub const ERR_VERSION: Status = -3;
pub const ERR_CAPACITY: Status = -4;
pub const ERR_INTERNAL: Status = -8;

pub const ABI_MAJOR: u32 = 0;
pub const ABI_MINOR: u32 = 1;
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
pub const fn padded<const N: usize>(text: &str) -> [u8; N] {
    let (bytes, mut out, mut i) = (text.as_bytes(), [0; N], 0);
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
    pub destroy: extern "C" fn(*mut c_void),
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
    pub shutdown: extern "C" fn(),
}

#[repr(C)]
pub struct Request {
    pub struct_size: u32,
    pub abi_minor: u32,
    pub plugin: *const Plugin,
}

#[repr(C)]
pub struct StepRow {
    pub seq: u64,
    pub q_begin: u32,
    pub n_q: u32,
    pub kv_len: u32,
    pub prompt_begin: u32,
    pub prompt_end: u32,
    pub unit_begin: u32,
    pub unit_end: u32,
    pub reserved: u32,
}

#[repr(C)]
pub struct Step {
    pub struct_size: u32,
    pub moment: u32,
    pub flags: u32,
    pub layer: u32,
    pub n_rows: u32,
    pub row_size: u32,
    pub rows: *const StepRow,
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
    pub n_rows: u32,
    pub capacity: u64,
    pub needed: u64,
    pub row_offsets: *mut u64,
    pub row_flags: *mut u32,
    pub index: *mut u32,
    pub log_weight: *mut f32,
}

#[repr(C)]
#[derive(Default)]
pub struct SelLimits {
    pub struct_size: u32,
    pub unit: u32,
    pub scope: u32,
    pub flags: u32,
    pub max_units: u64,
    pub dense_below_tokens: u64,
    pub rest: [u32; 14],
}

#[repr(C)]
pub struct SelectorTable {
    pub base: Instance,
    pub limits: extern "C" fn(*mut c_void, *mut SelLimits, *mut ErrorRecord) -> Status,
    pub layout: *const c_void,
    pub update: *const c_void,
    pub prefill: *const c_void,
    pub speculate: *const c_void,
    pub select: extern "C" fn(
        *mut c_void,
        *const Step,
        *const c_void,
        *mut Selection,
        *mut ErrorRecord,
    ) -> Status,
    pub observe: *const c_void,
    pub evict_plan: *const c_void,
}

// Sizes of the C structs: a slip of the pen above does not compile.
const _: () = assert!(size_of::<ErrorRecord>() == 520 && size_of::<Note>() == 652);
const _: () = assert!(size_of::<Value>() == 40 && size_of::<OptionSchema>() == 176);
const _: () = assert!(size_of::<OptionValue>() == 56 && size_of::<Desc>() == 112);
const _: () = assert!(size_of::<Host>() == 48 && size_of::<Request>() == 16);
const _: () = assert!(size_of::<Instance>() == 96 && size_of::<Plugin>() == 40);
const _: () = assert!(size_of::<StepRow>() == 40 && size_of::<Step>() == 48);
const _: () = assert!(size_of::<Selection>() == 80 && size_of::<SelLimits>() == 88);
const _: () = assert!(size_of::<SelectorTable>() == 160);
