//! `entry::import` under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    nrlc_fuzz::entry::import(data);
});
