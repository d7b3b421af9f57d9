//! Tests of the public interface, on the CPU unless they say otherwise.
#![allow(missing_docs, reason = "tests are named after what they show")]

mod by_row;
mod checkpointing;
mod classes;
mod configurations;
mod decoding;
mod families;
mod fixture;
mod gemma;
mod hf;
mod invariance;
mod layers;
mod learning;
mod mlm;
mod parameters;
mod parity;
mod peft;
mod preferences;
mod prompt_tuning;
mod prompts;
mod published_names;
mod round_trip;
mod support;
mod t5;
mod text;
mod zero_start;
