//! `kiln bench decode`: searches, and the same ones by CTranslate2 and `transformers`.

use anyhow::Result;
use kiln_kernels::int8::Int8;
use kiln_lab::diagnose::decoding::Decoding;
use kiln_metrics::logging::print::stdout_line;
use kiln_train::device::{device_name, is_cpu};

use super::Bench;

/// Times all searches and prints them.
pub(super) fn run(bench: &Bench) -> Result<()> {
    let decodings = Decoding::all(&bench.device);
    stdout_line!("{}, {:?}: decoding, random weights, ids in and ids out", device_name(&bench.device), bench.dtype);
    let mut rates = Vec::with_capacity(decodings.len());
    for decoding in &decodings {
        let found = decoding.measure(bench.dtype, &bench.device, bench.effort.repeats)?;
        // The floor of a text: its bytes at the peak of the memory.
        let floor = found.least_bytes.zip(bench.peaks.as_ref());
        let share = floor.map(|(bytes, peaks)| bytes / peaks.bytes / found.time.as_secs_f64());
        let share = share.map_or(String::new(), |share| format!("  {:.0}% of the memory's bound", 100.0 * share));
        stdout_line!("{}, {}", decoding.model, decoding.task);
        stdout_line!(
            "  {:<30} {:>9.3} s {:>10.0} tok/s{share}",
            "kiln",
            found.time.as_secs_f64(),
            found.tokens_per_sec
        );
        let mut of_both = [found.tokens_per_sec; 2];
        if is_cpu(&bench.device) {
            for (int8, name) in [(Int8::Weights, "kiln, weights in int8"), (Int8::Both, "kiln, int8")] {
                let found = decoding.in_int8(int8).measure(bench.dtype, &bench.device, bench.effort.repeats)?;
                stdout_line!("  {name:<30} {:>9.3} s {:>10.0} tok/s", found.time.as_secs_f64(), found.tokens_per_sec);
                of_both[1] = found.tokens_per_sec;
            }
        }
        rates.push(of_both);
        bench.device.memory_cleanup();
    }

    let Some(peer) = &bench.peer else { return Ok(()) };
    let theirs = peer.decodings(&decodings, &bench.machine())?;
    for ((decoding, ours), theirs) in decodings.iter().zip(rates).zip(theirs) {
        stdout_line!("{}, {}", decoding.model, decoding.task);
        for other in theirs {
            match other.found {
                Ok([secs, rate]) => stdout_line!(
                    "  {:<30} {secs:>9.3} s {rate:>10.0} tok/s  kiln is {:.2} x as fast",
                    other.program,
                    // What computes in int8 is compared with int8.
                    ours[usize::from(other.program.ends_with("int8"))] / rate
                ),
                Err(reason) => stdout_line!("  {:<30} {reason}", other.program),
            }
        }
    }
    Ok(())
}
