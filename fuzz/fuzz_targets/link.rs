#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kiln::distributed::link::foreign::read_foreign(input));
