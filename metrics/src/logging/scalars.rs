//! Metrics as named numbers, for TensorBoard and trackers: under torchtitan's tags where it has one.

use crate::units::gib;
use crate::{HostTimes, StepMetrics, ValidationMetrics, WindowMetrics};

/// A tag and its value.
pub(super) type Scalar = (&'static str, f64);

/// Returns the numbers that were measured, each multiplied by its scale.
fn measured<const N: usize>(numbers: [(&'static str, f64, Option<f64>); N]) -> impl Iterator<Item = Scalar> {
    numbers.into_iter().filter_map(|(tag, scale, value)| Some((tag, scale * value?)))
}

/// Returns the numbers of a step.
pub(super) fn of_step(step: &StepMetrics) -> Vec<Scalar> {
    vec![
        ("loss_metrics/global_avg_loss", step.loss),
        ("loss_metrics/nll", step.nll),
        ("grad_norm", step.grad_norm),
        ("lr", step.lr),
    ]
}

/// Returns the numbers of a line of metrics.
pub(super) fn of_window(window: &WindowMetrics) -> Vec<Scalar> {
    let speed = &window.throughput;
    let mut scalars = vec![
        ("throughput(tps)", speed.tokens_per_sec),
        ("throughput/target(tps)", speed.target_tokens_per_sec),
        ("throughput/samples(per s)", speed.samples_per_sec),
        ("throughput/padding(%)", 100.0 * speed.padding_ratio),
        ("tflops", speed.flops_per_sec / 1e12),
        ("time_metrics/data_loading(%)", 100.0 * window.data_wait_share),
        ("host_syncs", window.host_syncs as f64),
    ];
    scalars.extend(of_host(&window.host));

    if speed.source_tokens_per_sec > 0.0 {
        scalars.push(("throughput/source(tps)", speed.source_tokens_per_sec));
    }
    scalars.extend(window.loss_scale.map(|scale| ("loss_scale", scale)));
    scalars.extend(speed.mfu.map(|mfu| ("mfu(%)", 100.0 * mfu)));
    scalars.extend(window.replayed_share.map(|share| ("replayed(%)", 100.0 * share)));
    scalars.extend(window.recorded_graphs.map(|graphs| ("recorded_graphs", graphs as f64)));
    scalars.extend(window.memory_bytes.map(|bytes| ("memory/reserved(GiB)", gib(bytes))));
    if let Some(memory) = window.device_memory {
        scalars.extend([("memory/live(GiB)", gib(memory.live_bytes)), ("memory/peak(GiB)", gib(memory.peak_bytes))]);
    }
    if let Some(memory) = window.host_memory {
        let (resident, peak) = (gib(memory.resident_bytes), gib(memory.peak_bytes));
        scalars.extend([("memory/host_resident(GiB)", resident), ("memory/host_peak(GiB)", peak)]);
        scalars.extend(memory.line_peak_bytes.map(|bytes| ("memory/host_line_peak(GiB)", gib(bytes))));
    }
    scalars.extend(window.device_time.map(|time| ("gpu/in_steps(%)", 100.0 * time.busy_share)));
    let gpu = window.gpu.unwrap_or_default();
    let host = window.host_use.unwrap_or_default();
    scalars.extend(measured([
        ("machine/process_cpu(%)", 100.0, host.process_cpu_share),
        ("machine/cpu(%)", 100.0, host.machine_cpu_share),
        ("machine/read(MB per s)", 1e-6, host.read_bytes_per_sec),
        ("machine/written(MB per s)", 1e-6, host.written_bytes_per_sec),
        ("machine/received(MB per s)", 1e-6, host.received_bytes_per_sec),
        ("machine/sent(MB per s)", 1e-6, host.sent_bytes_per_sec),
        ("machine/swapin(pages per s)", 1.0, host.swapin_pages_per_sec),
        ("machine/swapout(pages per s)", 1.0, host.swapout_pages_per_sec),
        ("gpu/busy(%)", 100.0, gpu.busy_share),
        ("gpu/power(W)", 1.0, gpu.power_w),
        ("gpu/sm_clock(MHz)", 1.0, gpu.sm_clock_mhz),
        ("gpu/temperature(C)", 1.0, gpu.temperature_c),
        ("gpu/throttled(%)", 100.0, gpu.throttled_share),
    ]));
    scalars
}

/// Returns the shares of the training thread's time.
fn of_host(host: &HostTimes) -> Vec<Scalar> {
    let share = |ms: f64| 100.0 * ms / host.elapsed_ms.max(1e-3);
    vec![
        ("host/data_wait(%)", share(host.data_wait_ms)),
        ("host/upload(%)", share(host.upload_ms)),
        ("host/enqueue(%)", share(host.enqueue_ms)),
        ("host/drain(%)", share(host.drain_ms)),
        ("host/log(%)", share(host.log_ms)),
        ("host/validate(%)", share(host.validate_ms)),
        ("host/save(%)", share(host.save_ms)),
        ("host/other(%)", share(host.other_ms)),
    ]
}

/// Returns the numbers of a validation.
pub(super) fn of_validation(validation: &ValidationMetrics) -> Vec<Scalar> {
    let mut scalars = vec![("validation_metrics/loss", validation.loss), ("validation_metrics/nll", validation.nll)];
    scalars.extend(measured([
        // Of classes, people read scores.
        ("validation_metrics/perplexity", 1.0, validation.accuracy.is_none().then(|| validation.perplexity())),
        ("validation_metrics/bits_per_byte", 1.0, validation.bits_per_byte),
        ("validation_metrics/masked_accuracy(%)", 100.0, validation.masked_accuracy),
        ("validation_metrics/unigram_accuracy(%)", 100.0, validation.unigram_accuracy),
        ("validation_metrics/reward_accuracy(%)", 100.0, validation.reward_accuracy),
        ("validation_metrics/reward_margin", 1.0, validation.reward_margin),
        ("validation_metrics/accuracy(%)", 100.0, validation.accuracy),
        ("validation_metrics/macro_f1(%)", 100.0, validation.macro_f1),
        ("validation_metrics/micro_f1(%)", 100.0, validation.micro_f1),
        ("validation_metrics/entity_f1(%)", 100.0, validation.entity_f1),
        ("validation_metrics/bleu", 1.0, validation.bleu),
        ("validation_metrics/chrf", 1.0, validation.chrf),
        ("validation_metrics/exact_match(%)", 100.0, validation.exact_match),
    ]));
    scalars
}

/// Returns the losses of the sources of a mixture.
pub(super) fn of_sources(window: &WindowMetrics) -> Vec<(String, f64)> {
    window.sources.losses().map(|(name, loss)| (format!("loss_metrics/nll/{name}"), loss.nll)).collect()
}

/// Returns the figures of a model of one's own.
pub(super) fn of_figures(validation: &ValidationMetrics) -> Vec<(String, f64)> {
    let tag = |(name, value): (&String, &f64)| (format!("validation_metrics/{name}"), *value);
    validation.figures.iter().map(tag).collect()
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;
    use crate::{DeviceMemory, GpuUse, HostUse};

    fn value(scalars: &[Scalar], tag: &str) -> Option<f64> {
        scalars.iter().find(|(name, _)| *name == tag).map(|(_, value)| *value)
    }

    #[test]
    fn only_measured_numbers_have_a_tag() {
        let mut window = samples::window(8);
        let scalars = of_window(&window);
        assert_eq!(value(&scalars, "throughput/samples(per s)"), Some(100.0));
        for absent in ["gpu/power(W)", "memory/live(GiB)", "replayed(%)", "recorded_graphs", "machine/cpu(%)"] {
            assert_eq!(value(&scalars, absent), None, "{absent}");
        }

        window.host = HostTimes { elapsed_ms: 200.0, enqueue_ms: 150.0, ..HostTimes::default() };
        window.gpu = Some(GpuUse { samples: 2, power_w: Some(310.0), ..GpuUse::default() });
        window.host_use = Some(HostUse { read_bytes_per_sec: Some(2e6), ..HostUse::default() });
        window.device_memory = Some(DeviceMemory { live_bytes: 1 << 30, ..DeviceMemory::default() });
        (window.replayed_share, window.recorded_graphs) = (Some(0.25), Some(3));
        let scalars = of_window(&window);
        assert_eq!(value(&scalars, "host/enqueue(%)"), Some(75.0));
        assert_eq!((value(&scalars, "gpu/power(W)"), value(&scalars, "gpu/busy(%)")), (Some(310.0), None));
        assert_eq!((value(&scalars, "machine/read(MB per s)"), value(&scalars, "machine/cpu(%)")), (Some(2.0), None));
        assert_eq!((value(&scalars, "memory/live(GiB)"), value(&scalars, "replayed(%)")), (Some(1.0), Some(25.0)));
        assert_eq!(value(&scalars, "recorded_graphs"), Some(3.0));
    }
}
