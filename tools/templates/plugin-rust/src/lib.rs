//! Selector "strided": attends to every n-th candidate block. A whole plugin, to copy and change.
//! Every function that C calls and that can fail goes through `guard`: no panic crosses the line.
//! SPDX-License-Identifier: Apache-2.0 OR MIT

mod kvasir;

use kvasir::*;
use std::ffi::{c_void, CStr};

const ID: &CStr = c"org.example.strided_rs";
const VERSION: &CStr = c"1.0.0";

#[used]
#[link_section = ".note.kvasir"]
static NOTE: Note = note(ID, VERSION);

static OPTIONS: Static<[OptionSchema; 1]> = Static([OptionSchema::int(
    c"stride",
    c"blocks",
    c"from one attended block to the next",
    4,
)]);
static DESC: Static<Desc> = Static(Desc::selector(
    ID,
    VERSION,
    c"every n-th candidate block",
    &OPTIONS.0,
));

struct Strided {
    table: SelectorTable, // what the host sees
    stride: usize,
}

extern "C" fn limits(_: *mut c_void, out: *mut SelLimits, _: *mut ErrorRecord) -> Status {
    // SAFETY: `out` lives for the call.
    let out = unsafe { &mut *out };
    out.unit = UNIT_BLOCK;
    out.scope = SCOPE_SEQUENCE; // one list per sequence, for all heads
    OK
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
        let mut n = 0;
        for s in 0..step.n_seqs as usize {
            let list = step.candidates.as_ref(); // of an earlier selector; none: a range
            let (from, to) = match list {
                Some(list) => (*list.list_offsets.add(s), *list.list_offsets.add(s + 1)),
                None => (step.seq(s).unit_begin.into(), step.seq(s).unit_end.into()),
            };
            *out.list_offsets.add(s) = n;
            for i in (from..to).step_by(this.stride) {
                if n < out.capacity {
                    *out.index.add(n as usize) =
                        list.map_or(i as u32, |l| *l.index.add(i as usize));
                }
                n += 1;
            }
        }
        *out.list_offsets.add(step.n_seqs as usize) = n;
        out.n_lists = step.n_seqs;
        out.needed = n;
        if n > out.capacity {
            return Err((ERR_CAPACITY, "too few places"));
        }
        Ok(())
    })
}

extern "C" fn destroy(this: *mut c_void) {
    // SAFETY: `this` came from Box::into_raw in create(), once.
    drop(unsafe { Box::from_raw(this as *mut Strided) });
}

extern "C" fn create(
    _: u32,
    _: *const Host,
    options: *const OptionValue,
    _: u32,
    _: u32,
    out: *mut *mut Instance,
    err: *mut ErrorRecord,
) -> Status {
    guard(err, || {
        let this = Box::into_raw(Box::new(Strided {
            table: SelectorTable::new(&DESC.0, limits, select, destroy),
            // SAFETY: options come in schema order, checked against min and max.
            stride: unsafe { (*options).value.i } as usize,
        }));
        // SAFETY: `this` was just made, `out` lives for the call.
        unsafe {
            (*this).table.base.this = this.cast();
            *out = &mut (*this).table.base;
        }
        Ok(())
    })
}

plugin_entry!(DESC.0, create);
