//! The figures of a report, and the fields of `metrics.jsonl` that they show.
//!
//! A figure that no run has a field for is left out, so runs of earlier versions need no case of their own.

mod kinds;

pub use kinds::{Axis, Kind, Measure, OWN, Section, Style};
use kinds::{GIB, MB, PERCENT, kind, phase, step, validation, window};

/// Every figure, in the order of the page.
pub const FIGURES: &[Kind] = &[
    kind(
        "loss",
        "Loss",
        "nats per label",
        Axis::Range,
        Section::Learning,
        &[step("loss", "training", Style::Noisy), validation("loss", "validation", 1.0)],
    ),
    kind(
        "nll",
        "Loss without label smoothing",
        "nats per label",
        Axis::Range,
        Section::Learning,
        &[step("nll", "training", Style::Noisy), validation("nll", "validation", 1.0)],
    ),
    kind(
        "scores",
        "Translation scores",
        "points of 100",
        Axis::FromZero,
        Section::Learning,
        &[
            validation("bleu", "BLEU", 1.0),
            validation("chrf", "chrF2", 1.0),
            validation("exact_match", "exact match", PERCENT),
        ],
    ),
    kind(
        "accuracy",
        "Masked-token accuracy",
        "%",
        Axis::FromZero,
        Section::Learning,
        &[
            validation("masked_accuracy", "model", PERCENT),
            validation("unigram_accuracy", "most frequent token", PERCENT),
        ],
    ),
    kind(
        "rewards",
        "Preferred answers with the larger reward",
        "%",
        Axis::FromZero,
        Section::Learning,
        &[validation("reward_accuracy", "reward accuracy", PERCENT)],
    ),
    kind(
        "classes",
        "Classes",
        "%",
        Axis::FromZero,
        Section::Learning,
        &[
            validation("accuracy", "accuracy", PERCENT),
            validation("macro_f1", "macro F1", PERCENT),
            validation("micro_f1", "micro F1", PERCENT),
            validation("entity_f1", "entity F1", PERCENT),
        ],
    ),
    kind(OWN, "Figures of the model", "value", Axis::Range, Section::Learning, &[]),
    kind(
        "bits",
        "Bits per byte of the validation text",
        "bits",
        Axis::Range,
        Section::Learning,
        &[validation("bits_per_byte", "validation", 1.0)],
    ),
    kind(
        "lr",
        "Learning rate",
        "per update",
        Axis::FromZero,
        Section::Learning,
        &[step("lr", "learning rate", Style::Line)],
    ),
    kind(
        "grad-norm",
        "Gradient norm before clipping",
        "norm",
        Axis::Wide,
        Section::Learning,
        &[step("grad_norm", "gradient norm", Style::Noisy)],
    ),
    kind(
        "outliers",
        "Outliers",
        "standard deviations",
        Axis::FromZero,
        Section::Learning,
        &[step("loss_z", "loss", Style::Dots), step("grad_norm_z", "gradient norm", Style::Dots)],
    ),
    kind(
        "loss-scale",
        "Loss scale of fp16",
        "factor",
        Axis::Wide,
        Section::Learning,
        &[step("loss_scale", "loss scale", Style::Line)],
    ),
    kind(
        "throughput",
        "Throughput without padding",
        "tokens per second",
        Axis::FromZero,
        Section::Speed,
        &[window("tokens_per_sec", "tokens per second", 1.0)],
    ),
    kind(
        "samples-per-second",
        "Samples per second",
        "samples per second",
        Axis::FromZero,
        Section::Speed,
        &[window("samples_per_sec", "samples per second", 1.0)],
    ),
    kind(
        "mfu",
        "Model FLOPs utilization",
        "% of the peak",
        Axis::FromZero,
        Section::Speed,
        &[window("mfu", "MFU", PERCENT)],
    ),
    kind(
        "padding",
        "Padding",
        "% of the positions",
        Axis::FromZero,
        Section::Speed,
        &[window("padding_ratio", "padding", PERCENT)],
    ),
    kind(
        "data-wait",
        "Waiting for data",
        "% of the training time",
        Axis::FromZero,
        Section::Speed,
        &[window("data_wait_share", "waiting for data", PERCENT)],
    ),
    kind(
        "phases",
        "Where the host's time goes",
        "% of the time",
        Axis::FromZero,
        Section::Speed,
        &[
            phase("host.enqueue_ms", "enqueue"),
            phase("host.drain_ms", "drain"),
            phase("host.validate_ms", "validate"),
            phase("host.data_wait_ms", "data wait"),
            phase("host.save_ms", "save"),
            phase("host.upload_ms", "upload"),
            phase("host.log_ms", "log"),
            phase("host.other_ms", "other"),
        ],
    ),
    kind(
        "host-syncs",
        "Host syncs per line of metrics",
        "syncs",
        Axis::FromZero,
        Section::Speed,
        &[window("host_syncs", "host syncs", 1.0)],
    ),
    kind(
        "replayed",
        "Replayed as CUDA graphs",
        "% of the micro-batches",
        Axis::FromZero,
        Section::Speed,
        &[window("replayed_share", "replayed", PERCENT)],
    ),
    kind(
        "graphs",
        "Recorded CUDA graphs",
        "graphs",
        Axis::FromZero,
        Section::Speed,
        &[window("recorded_graphs", "recorded", 1.0)],
    ),
    kind(
        "memory",
        "Device memory",
        "GiB",
        Axis::FromZero,
        Section::Device,
        &[
            Measure { older: Some("memory_bytes"), ..window("device_memory.reserved_bytes", "reserved", GIB) },
            window("device_memory.peak_bytes", "peak", GIB),
            window("device_memory.live_bytes", "live between steps", GIB),
        ],
    ),
    kind(
        "host-memory",
        "Memory of the process",
        "GiB",
        Axis::FromZero,
        Section::Device,
        &[
            window("host_memory.resident_bytes", "resident", GIB),
            window("host_memory.line_peak_bytes", "peak since the last line", GIB),
            window("host_memory.peak_bytes", "peak", GIB),
        ],
    ),
    kind(
        "cpu",
        "Use of the CPUs",
        "% of all CPUs",
        Axis::FromZero,
        Section::Device,
        &[
            window("host_use.process_cpu_share", "process", PERCENT),
            window("host_use.machine_cpu_share", "machine", PERCENT),
        ],
    ),
    kind(
        "storage",
        "Storage, by the process",
        "MB per second",
        Axis::FromZero,
        Section::Device,
        &[window("host_use.read_bytes_per_sec", "read", MB), window("host_use.written_bytes_per_sec", "written", MB)],
    ),
    kind(
        "network",
        "Network of the machine",
        "MB per second",
        Axis::FromZero,
        Section::Device,
        &[window("host_use.received_bytes_per_sec", "received", MB), window("host_use.sent_bytes_per_sec", "sent", MB)],
    ),
    kind(
        "swapping",
        "Swapping of the machine",
        "pages per second",
        Axis::FromZero,
        Section::Device,
        &[
            window("host_use.swapin_pages_per_sec", "read from swap", 1.0),
            window("host_use.swapout_pages_per_sec", "written to swap", 1.0),
        ],
    ),
    kind(
        "utilization",
        "Utilization of the GPU",
        "% of the time",
        Axis::FromZero,
        Section::Device,
        &[
            window("gpu.busy_share", "busy", PERCENT),
            window("device_time.busy_share", "in a step", PERCENT),
            window("gpu.throttled_share", "throttled", PERCENT),
        ],
    ),
    kind(
        "power",
        "Power of the GPU",
        "W",
        Axis::FromZero,
        Section::Device,
        &[window("gpu.power_w", "power", 1.0), window("gpu.power_limit_w", "limit", 1.0)],
    ),
    kind(
        "clock",
        "Clock of the GPU",
        "MHz",
        Axis::FromZero,
        Section::Device,
        &[window("gpu.sm_clock_mhz", "clock", 1.0), window("gpu.max_sm_clock_mhz", "highest", 1.0)],
    ),
    kind(
        "temperature",
        "Temperature of the GPU",
        "°C",
        Axis::Range,
        Section::Device,
        &[window("gpu.temperature_c", "temperature", 1.0)],
    ),
];

/// Returns the figure of a name.
pub fn find(id: &str) -> Option<&'static Kind> {
    FIGURES.iter().find(|kind| kind.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_can_be_typed() {
        for (i, kind) in FIGURES.iter().enumerate() {
            assert!(kind.id.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{}", kind.id);
            assert!(FIGURES[..i].iter().all(|other| other.id != kind.id), "{}", kind.id);
            assert_eq!(kind.measures.is_empty(), kind.id == OWN, "{}", kind.id);
        }
        assert!(find("loss").is_some() && find("lose").is_none());
    }
}
