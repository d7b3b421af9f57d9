//! The `kiln` command as its users meet it. One binary for all of it, since each further one would link Burn again.

mod adapters;
mod bad_data;
mod bad_requests;
mod chat;
mod classes;
mod compatibility;
mod diagnose;
mod en_it;
mod faults;
mod fuzz;
mod help;
mod hugging_face;
mod kiln;
mod looking;
mod measuring;
mod minilm;
mod profile;
mod readme;
mod report;
mod resuming;
mod same_text;
mod sentencepiece;
mod text;
mod tidy;
mod together;
mod training;
