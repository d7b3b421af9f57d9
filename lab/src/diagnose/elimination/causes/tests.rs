//! Figures of each bottleneck.

use super::super::figures::Together;
use super::*;

/// A GPU whose loader, link and clock are fast enough.
fn healthy() -> Figures {
    Figures {
        step_ms: Some(20.0),
        host_ms: Some(2.0),
        synthetic_ms: Some(20.0),
        real_ms: Some(20.1),
        data_wait_share: Some(0.002),
        num_workers: 2,
        loader_ms: Some(4.0),
        workers: vec![(1, 8.0), (2, 4.0), (4, 2.2), (8, 2.0)],
        upload_ms: Some(0.1),
        log_every: 10,
        reads_ms: Some([21.0, 20.0]),
        graphs_ms: Some([24.0, 20.0]),
        precision_ms: Some([60.0, 20.0]),
        padding: Some(Padding { now: 0.1, then: 0.1, settings: Vec::new() }),
        batch_rates: Some([1000.0, 1080.0]),
        batch_tokens: 8192,
        together: Some(Together { n: 2, alone_ms: 20.0, together_ms: 20.3 }),
        sync_every: 1,
        gpu: Some(samples(0.0, 1950.0)),
        mfu: Some(0.45),
        ..Figures::default()
    }
}

fn samples(throttled_share: f64, clock: f64) -> GpuUse {
    GpuUse {
        samples: 40,
        power_w: Some(698.0),
        power_limit_w: Some(700.0),
        sm_clock_mhz: Some(clock),
        max_sm_clock_mhz: Some(1980.0),
        throttled_share: Some(throttled_share),
        ..GpuUse::default()
    }
}

#[track_caller]
fn found(figures: &Figures, parts: &[&str]) {
    let sentence = bottleneck(figures);
    for part in parts {
        assert!(sentence.contains(part), "{part:?} is missing in {sentence}");
    }
}

#[test]
fn nothing_is_found_where_the_device_computes_all_the_time() {
    assert_eq!(causes(&healthy()), []);
    found(&healthy(), &["bottleneck: computation at an MFU of 45 %"]);
    found(&Figures { mfu: None, ..healthy() }, &["bottleneck: computation: no setting"]);
    found(&Figures::default(), &["these tests found no bottleneck"]);
}

#[test]
fn a_slow_loader_is_found_with_the_threads_that_suffice() {
    let slow = Figures {
        data_wait_share: Some(0.6),
        num_workers: 1,
        loader_ms: Some(50.0),
        workers: vec![(1, 50.0), (2, 25.0), (4, 12.5), (8, 7.0)],
        ..healthy()
    };
    found(&slow, &["the loader", "60 % of the time", "2.50 x", "loader.num_workers = 4 (12.50 ms"]);
    found(&Figures { workers: vec![(1, 50.0), (2, 40.0)], ..slow.clone() }, &["num_workers = 2", "not enough"]);
    found(&Figures { workers: vec![(1, 50.0), (2, 50.0)], ..slow }, &["source itself is too slow"]);
}

#[test]
fn a_read_after_each_step_is_found() {
    let reads = Figures { log_every: 1, reads_ms: Some([30.0, 20.0]), ..healthy() };
    found(&reads, &["reads of metrics", "1.50 x", "train.log_every = 10"]);
    assert_eq!(causes(&Figures { log_every: 10, ..reads }), [], "the run reads less often already");
}

#[test]
fn padding_is_found_with_the_setting_that_gives_it_back() {
    let settings = vec!["loader.max_buckets=16".to_owned()];
    let padded = Figures { padding: Some(Padding { now: 0.6, then: 0.2, settings }), ..healthy() };
    found(&padded, &["padding", "60 % of the positions", "2.00 x", "loader.max_buckets = 16"]);
}

#[test]
fn a_tiny_batch_is_found() {
    let tiny = Figures { batch_rates: Some([300.0, 1000.0]), batch_tokens: 256, ..healthy() };
    found(&tiny, &["a small batch", "30 %", "3.33 x", "loader.batch_tokens = 1024"]);
}

#[test]
fn a_slow_link_is_found() {
    let slow = Together { n: 2, alone_ms: 20.0, together_ms: 80.0 };
    found(&Figures { together: Some(slow), ..healthy() }, &["the link", "25 %", "4.00 x", "train.sync_every = 100"]);
}

#[test]
fn the_accumulation_that_a_slow_link_needs_is_named() {
    let slow = |alone_ms, together_ms, grad_accum_steps| Figures {
        together: Some(Together { n: 2, alone_ms, together_ms }),
        grad_accum_steps,
        ..healthy()
    };
    found(&slow(20.0, 80.0, 1), &["because they exchange after each batch", "train.grad_accum_steps = 32 once for 32"]);
    found(&slow(20.0, 25.0, 1), &["train.grad_accum_steps = 4 once for 4 batches of each device"]);
    found(&slow(80.0, 100.0, 4), &["in each step, which has 4 batches", "train.grad_accum_steps = 16"]);
    let accumulates = bottleneck(&slow(80.0, 84.0, 16));
    assert!(accumulates.contains("which has 16 batches") && !accumulates.contains("grad_accum_steps"), "{accumulates}");
    found(&Figures { sync_every: 50, ..slow(20.0, 80.0, 1) }, &["once in 50 steps", "a higher train.sync_every"]);
}

/// Calls of a loop over rows, which takes as long for short rows.
const LOOP: Calls = Calls { n: 3_072, whole_ms: 16.0, short_ms: 15.0, few_ms: 4.0, host_share: None };

#[test]
fn a_loop_of_small_operations_is_found() {
    let looped = |calls| Figures { calls: Some(calls), ..healthy() };
    // 11 / 12 of 16 of 20 ms.
    let parts =
        ["many small operations", "3,072 operations", "of a quarter of the length still 15.00 ms", "docs/own-head.md"];
    found(&looped(LOOP), &parts);
    let cause = &causes(&looped(LOOP))[0];
    assert!((cause.saves - 11.0 / 12.0 * 16.0 / 20.0).abs() < 1e-9, "{cause:?}");
    found(&looped(Calls { short_ms: 4.0, few_ms: 15.0, ..LOOP }), &["for a quarter of the rows still 15.00 ms"]);
    assert_eq!(causes(&looped(Calls { short_ms: 5.0, few_ms: 6.0, ..LOOP })), [], "it computes");
}

#[test]
fn a_sync_in_the_model_is_found_on_a_gpu() {
    let host = |host_share| Calls { short_ms: 6.0, few_ms: 6.0, host_share, ..LOOP };
    let of = |calls| Figures { calls: Some(calls), ..healthy() };
    found(&of(host(Some(0.97))), &["a sync in the model", "after 97 % of their time", "into_scalar"]);
    assert_eq!(causes(&of(host(Some(0.3)))), [], "the host is ahead");
    assert_eq!(causes(&of(host(None))), [], "a CPU is its own host");
    found(&of(Calls { host_share: Some(1.0), ..LOOP }), &["many small operations"]);
}

#[test]
fn work_at_intervals_is_found() {
    let rhythm = Some(Rhythm { every: 50, times: 9.5, share: 0.145 });
    found(
        &Figures { rhythm, ..healthy() },
        &["work at intervals", "every 50 steps", "9.5 x", "memory_cleanup", "1.17 x"],
    );
    let rhythm = Some(Rhythm { every: 50, times: 2.0, share: 0.02 });
    assert_eq!(causes(&Figures { rhythm, ..healthy() }), [], "2 % of the time");
}

#[test]
fn a_loader_says_how_long_its_threads_need_and_what_they_repeat() {
    let slow = Figures { data_wait_share: Some(0.6), num_workers: 1, loader_ms: Some(50.0), ..healthy() };
    found(&slow, &["which 1 loader thread makes in 50.00 ms per step, while a step takes 20.00 ms"]);
    assert!(!bottleneck(&slow).contains("data.cache_limit"));
    found(&Figures { is_streamed: true, ..slow }, &["data.cache_limit parses and tokenizes rows in every epoch"]);
}

#[test]
fn a_throttled_clock_is_found_in_samples() {
    let slow = Figures { gpu: Some(samples(0.9, 1200.0)), ..healthy() };
    found(&slow, &["the clock", "1200 of 1980 MHz", "698 of 700 W", "1.65 x"]);
    let always = Figures { gpu: Some(samples(0.9, 1975.0)), ..healthy() };
    assert_eq!(causes(&always), [], "held down by nothing that counts");
    assert_eq!(causes(&Figures { gpu: Some(samples(0.1, 1200.0)), ..healthy() }), [], "idle clocks are low, too");
}

/// Samples of an H100 that trained GPT-2 at its power limit, as `nvidia-smi` wrote them: clocks, power, load, and what held the clock
/// down.
const RECORDED: &str = include_str!("../../../../../tests/fixtures/clocks/h100.csv");

/// Returns the means of the samples in which the card was busy, or of the others.
fn recorded(is_busy: bool) -> GpuUse {
    let numbers = |row: &str| -> Option<[f64; 6]> {
        let cells: Vec<&str> = row.split(", ").collect();
        let number = |i: usize| cells.get(i)?.split(' ').next()?.parse::<f64>().ok();
        let reasons = u64::from_str_radix(cells.get(5)?.strip_prefix("0x")?, 16).ok()?;
        // The power cap in software or hardware, heat, or the board's own protection.
        let is_held = reasons & 0xec != 0;
        Some([number(0)?, number(1)?, number(2)?, number(3)?, number(4)?, f64::from(u8::from(is_held))])
    };
    let rows: Vec<_> = RECORDED.lines().filter_map(numbers).filter(|row| (row[4] > 50.0) == is_busy).collect();
    let mean = |i: usize| Some(rows.iter().map(|row| row[i]).sum::<f64>() / rows.len() as f64);
    GpuUse {
        samples: rows.len() as u64,
        sm_clock_mhz: mean(0),
        max_sm_clock_mhz: mean(1),
        power_w: mean(2),
        power_limit_w: mean(3),
        throttled_share: mean(5),
        ..GpuUse::default()
    }
}

#[test]
fn a_clock_that_was_throttled_is_found_in_its_recorded_samples() {
    let (busy, idle) = (recorded(true), recorded(false));
    assert!(busy.samples > 40 && idle.samples > 3, "{busy:?} {idle:?}");
    found(&Figures { gpu: Some(busy), ..healthy() }, &["the clock", "of 1980 MHz", "of 700 W", "1.3"]);
    assert_eq!(causes(&Figures { gpu: Some(idle), ..healthy() }), []);
}

/// In the form of `metrics.jsonl`: a card at its power limit.
#[test]
fn a_throttled_clock_is_found_in_a_line_of_metrics() {
    let line = r#"{"samples":12,"busy_share":1.0,"power_w":699.1,"power_limit_w":700.0,"sm_clock_mhz":1320.0,
        "max_sm_clock_mhz":1980.0,"temperature_c":71.0,"throttled_share":1.0}"#;
    let gpu: GpuUse = serde_json::from_str(line).expect("samples of a line");
    let cause = throttled(Some(&gpu)).expect("held down");
    assert!((cause.gain() - 1.5).abs() < 1e-9 && cause.found.contains("1320 of 1980 MHz in 100 %"), "{cause:?}");
}

#[test]
fn eager_steps_and_f32_are_found_if_the_run_chose_them() {
    found(&Figures { capture_is_off: true, ..healthy() }, &["the host", "train.capture = \"auto\"", "1.20 x"]);
    found(&Figures { is_f32: true, ..healthy() }, &["the precision", "train.precision = \"bf16\"", "3.00 x"]);
    found(&Figures { upload_ms: Some(20.0), ..healthy() }, &["uploads", "2.00 x"]);
}

#[test]
fn the_costliest_cause_comes_first() {
    let both = Figures { is_f32: true, data_wait_share: Some(0.1), ..healthy() };
    let names: Vec<_> = causes(&both).iter().map(|cause| cause.name).collect();
    assert_eq!(names, ["the precision", "the loader"]);
}
