#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kiln_fuzz::fuzz_tokenizer(input));
