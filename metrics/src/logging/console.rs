//! Progress of a run on stderr: a progress bar on a terminal, plain lines elsewhere.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kiln_data::terminal::clean;

use super::pulse::Pulse;
use super::trend::Trend;
use super::wrap::{for_stderr, without_middle};
use super::{Activity, Extent, Record, Sink};
use crate::units::{duration, thousands};
use crate::{SampleMetrics, ValidationMetrics, WindowMetrics};

/// Least time between plain lines; `metrics.jsonl` has every step.
const SECS_BETWEEN_LINES: f64 = 2.0;

/// Characters of a sample that are shown; `metrics.jsonl` and the report have all.
const SAMPLE_CHARACTERS: usize = 150;
/// Characters of a prompt in front of it that are shown.
const PROMPT_CHARACTERS: usize = 60;

/// The sink on stderr.
pub struct Console {
    extent: Extent,
    started: Instant,
    /// `None`: stderr is not a terminal.
    bar: Option<ProgressBar>,
    last_line: Option<Instant>,
    pulse: Pulse,
    trend: Trend,
    /// What happened to stderr.
    reader: Reader,
}

/// The reader of the lines on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    Reads,
    /// It has closed stderr, as `head` does, and nobody was told.
    HasGone,
    /// It has closed stderr, which was noted.
    IsMissed,
}

impl Console {
    /// Creates a console on stderr, which acknowledges that `stop` was set.
    pub fn new(extent: Extent, stop: Arc<AtomicBool>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(extent.total_steps), ProgressDrawTarget::stderr());
            let style =
                ProgressStyle::with_template("{spinner} {bar:10} {pos}/{len} {wide_msg}").expect("a valid template");
            bar.set_style(style.progress_chars("=> "));
            bar.set_position(extent.start_step);
            bar.tick(); // visible from the first step on
            bar
        });
        let pulse = Pulse::start(bar.clone(), stop, print_line);
        let (started, trend) = (Instant::now(), Trend::default());
        Self { extent, started, bar, last_line: None, pulse, trend, reader: Reader::Reads }
    }

    fn line(&mut self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(for_stderr(line)), // which cleans it
            None => self.print(line),
        }
    }

    /// Prints a plain line, and notices that nobody reads it.
    fn print(&mut self, line: &str) {
        let written = writeln!(std::io::stderr(), "{}", clean(line));
        if self.reader == Reader::Reads && written.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
            self.reader = Reader::HasGone;
        }
    }

    fn preparing(&mut self, what: &str, done: usize, of: usize) {
        let now = Instant::now();
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{what}: {done} of {of}"));
            bar.tick();
        } else if self.last_line.is_none_or(|last| (now - last).as_secs_f64() >= SECS_BETWEEN_LINES) {
            self.last_line = Some(now);
            self.print(&format!("{what}: {done} of {of}"));
        }
        self.pulse.shown(Some(format!("{what}: {done} of {of}")));
        // The remaining time is estimated from the first step on.
        self.started = now;
    }

    fn window(&mut self, window: &WindowMetrics) {
        let left = time_left(window, self.extent, self.started.elapsed());
        let now = Instant::now();
        if let Some(bar) = &self.bar {
            // The bar is at the step in progress, which may be later than the line.
            bar.set_position(bar.position().max(window.step));
            let message = progress_message(window, &self.trend.after(window.step, window.loss), left);
            bar.set_message(message.clone());
            self.pulse.shown(Some(message));
        } else if window.step >= self.extent.total_steps
            || self.last_line.is_none_or(|last| (now - last).as_secs_f64() >= SECS_BETWEEN_LINES)
        {
            self.last_line = Some(now);
            self.pulse.shown(None);
            self.print(&window_line(window, self.extent.total_steps, left));
        }

        if window.non_finite_steps > 0 {
            self.line(&format!(
                "warning: the loss or a gradient was not finite in {} of the steps up to {}; a lower optim.lr or more \
                 optim.warmup_steps usually help",
                window.non_finite_steps, window.step
            ));
        }
    }

    fn begin(&self, activity: Activity) {
        if let (Some(bar), Activity::Step { step, .. }) = (&self.bar, activity) {
            bar.set_position(step - 1);
        }
        self.pulse.begin(activity);
    }
}

impl Sink for Console {
    fn write(&mut self, record: &Record<'_>) -> Result<()> {
        match record {
            Record::Start(_) | Record::Step(_) => {}
            // Translations are many and have scores; of a language model, people want to read the text.
            Record::Sample(sample) if sample.reference.is_none() => self.line(&sample_line(sample)),
            Record::Sample(_) => {}
            Record::End(run) => self.line(&run.summary),
            Record::Window(window) => self.window(window),
            Record::Validation(validation) => self.line(&validation_line(validation)),
            Record::Preparing(what, done, of) => self.preparing(what, *done, *of),
            Record::Begin(activity) => self.begin(*activity),
            Record::Note(note) => self.line(note),
            Record::Finished => {
                self.pulse.end();
                if let Some(bar) = &self.bar {
                    bar.finish_and_clear(); // the lines that follow say how the run ended
                }
            }
        }
        Ok(())
    }

    fn trouble(&mut self) -> Option<String> {
        if self.reader != Reader::HasGone {
            return None;
        }
        self.reader = Reader::IsMissed;
        let note = format!(
            "stderr was closed by the program that read it; process {0} goes on training (kill {0} saves and ends the run)",
            std::process::id()
        );
        // Whoever started it may still sit at the terminal.
        if let Ok(mut terminal) = File::options().write(true).open("/dev/tty") {
            let _ = writeln!(terminal, "kiln: {note}");
        }
        Some(note)
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.pulse.end();
        if let Some(bar) = self.bar.as_ref().filter(|bar| !bar.is_finished()) {
            bar.abandon();
        }
    }
}

/// Prints a line to stderr, broken between words if that is a terminal. A closed stderr does not stop the training.
pub fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", for_stderr(line));
}

/// Returns the time to the last step at the speed of this window, or to the wall-clock limit if that is earlier.
fn time_left(window: &WindowMetrics, extent: Extent, elapsed: Duration) -> Option<Duration> {
    let steps = extent.total_steps.saturating_sub(window.step) as f64;
    let by_steps = Duration::try_from_secs_f64(steps / window.throughput.steps_per_sec).ok();
    let by_clock = extent.max_time.map(|limit| limit.saturating_sub(elapsed));
    match (by_steps, by_clock) {
        (Some(steps), Some(clock)) => Some(steps.min(clock)),
        (steps, clock) => steps.or(clock),
    }
}

fn progress_message(window: &WindowMetrics, trend: &str, left: Option<Duration>) -> String {
    format!(
        "loss {:.3}{trend} | {} tok/s{} | {} left",
        window.loss,
        thousands(window.throughput.tokens_per_sec),
        window.throughput.mfu.map_or(String::new(), |mfu| format!(" | mfu {:.1}%", 100.0 * mfu)),
        left.map_or("?".into(), duration),
    )
}

fn window_line(window: &WindowMetrics, total_steps: u64, left: Option<Duration>) -> String {
    let speed = &window.throughput;
    format!(
        "step {}/{total_steps} | {}{} | grad norm {:.2} | lr {}{} | {} tok/s (padding {:.0}%){} | data wait {:.1}%{} | {} left",
        window.step,
        losses(window.loss, window.nll),
        losses_of_sources(window),
        window.grad_norm,
        rate(window.lr),
        loss_scale(window),
        thousands(speed.tokens_per_sec),
        100.0 * speed.padding_ratio,
        speed.mfu.map_or(String::new(), |mfu| format!(" | mfu {:.1}%", 100.0 * mfu)),
        100.0 * window.data_wait_share,
        window.new_kernels.filter(|n| *n > 0).map_or(String::new(), |n| format!(" | {n} new kernels")),
        left.map_or("?".into(), duration),
    )
}

/// `3.00e-4`, or `0` at the end of a schedule.
fn rate(lr: f64) -> String {
    if lr == 0.0 { "0".into() } else { format!("{lr:.2e}") }
}

/// Describes the loss scale of fp16 and the steps skipped in this window.
fn loss_scale(window: &WindowMetrics) -> String {
    match (window.loss_scale, window.overflows) {
        (None, _) => String::new(),
        (Some(scale), 0) => format!(" | scale {scale}"),
        (Some(scale), n) => format!(" | scale {scale} ({n} skipped)"),
    }
}

/// Describes both losses, or one if they are equal because label smoothing is off.
fn losses(loss: f64, nll: f64) -> String {
    if (loss - nll).abs() < 5e-5 { format!("loss {loss:.3}") } else { format!("loss {loss:.3} nll {nll:.3}") }
}

/// Describes the losses of the sources of a mixture.
fn losses_of_sources(window: &WindowMetrics) -> String {
    window.sources.losses().map(|(name, loss)| format!(" | {name} nll {:.3}", loss.nll)).collect()
}

/// Returns what a model wrote after a prompt, as one short line.
fn sample_line(sample: &SampleMetrics) -> String {
    // What the model wrote is what counts.
    let source = without_middle(sample.source.trim(), PROMPT_CHARACTERS);
    let text = format!("  {source} -> {}", sample.output.trim_start()).replace(['\n', '\r'], " ");
    match text.char_indices().nth(SAMPLE_CHARACTERS) {
        Some((at, _)) => format!("{}...", text[..at].trim_end()),
        None => text,
    }
}

fn validation_line(validation: &ValidationMetrics) -> String {
    let mut line = format!(
        "step {} | validation {}{}",
        validation.step,
        losses(validation.loss, validation.nll),
        validation.perplexity_after(" ", 2)
    );

    if let Some(bits) = validation.bits_per_byte {
        line += &format!(" | {bits:.3} bits/byte");
    }
    if let Some(accuracy) = validation.masked_accuracy {
        line += &format!(" | masked accuracy {:.2}%", 100.0 * accuracy);
    }
    if let Some(accuracy) = validation.unigram_accuracy {
        line += &format!(" (unigram {:.2}%)", 100.0 * accuracy);
    }
    if let Some(rewards) = validation.rewards_in_words() {
        line += &format!(" | {rewards}");
    }
    for (name, nll) in &validation.sources {
        line += &format!(" | {name} nll {nll:.4}");
    }
    for (name, value) in validation.of_classes() {
        line += &format!(" | {name} {:.2}%", 100.0 * value);
    }
    for (name, value) in &validation.figures {
        line += &format!(" | {name} {value:.4}");
    }
    if let Some(bleu) = validation.bleu_in_words() {
        line += &format!(" | {bleu}");
    }
    if let Some(chrf) = validation.chrf {
        line += &format!(" | chrF2 {chrf:.2}");
    }
    if let Some(share) = validation.exact_match {
        line += &format!(" | exact match {:.2}%", 100.0 * share);
    }
    line + &format!(" | {:.1}s", validation.elapsed_secs)
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    const EXTENT: Extent = Extent { start_step: 0, total_steps: 1000, max_time: None };

    #[test]
    fn a_line_tells_speed_padding_and_time_left() {
        let window = samples::window(400);
        let left = time_left(&window, EXTENT, Duration::ZERO);
        let line = window_line(&window, 1000, left);
        for part in
            ["step 400/1000", "loss 2.500 nll 1.500", "1,234,568 tok/s (padding 12%)", "mfu 30.3%", "5m00s left"]
        {
            assert!(line.contains(part), "{part} is missing in {line}");
        }
        assert!(line.contains("loss 2.500 nll 1.500 | NAME nll 3.000 | grad norm"), "{line}");
        let message = progress_message(&window, " (-3.0% in 50 steps)", left);
        assert_eq!(message, "loss 2.500 (-3.0% in 50 steps) | 1,234,568 tok/s | mfu 30.3% | 5m00s left");
        assert!(!line.contains("new kernels"), "{line}");
        let last = WindowMetrics { lr: 0.0, ..window.clone() };
        assert!(window_line(&last, 1000, left).contains(" | lr 0 | "));
        let compiled = WindowMetrics { new_kernels: Some(3), ..window };
        assert!(window_line(&compiled, 1000, left).contains("data wait 1.5% | 3 new kernels | 5m00s left"));
        let steady = WindowMetrics { new_kernels: Some(0), ..compiled };
        assert_eq!(window_line(&steady, 1000, left), line, "a steady state shows nothing new");
    }

    #[test]
    fn the_wall_clock_limit_shortens_the_time_left() {
        let extent = Extent { max_time: Some(Duration::from_secs(60)), ..EXTENT };
        let left = time_left(&samples::window(400), extent, Duration::from_secs(50));
        assert_eq!(left, Some(Duration::from_secs(10)));
        let mut stalled = samples::window(400);
        stalled.throughput.steps_per_sec = 0.0;
        assert_eq!(time_left(&stalled, EXTENT, Duration::ZERO), None, "no speed, no forecast");
    }

    #[test]
    fn a_loss_without_smoothing_is_shown_once() {
        assert_eq!(losses(2.5, 1.5), "loss 2.500 nll 1.500");
        assert_eq!(losses(1.5, 1.5000001), "loss 1.500");
        assert_eq!(losses(f64::NAN, f64::NAN), "loss NaN nll NaN");
    }

    #[test]
    fn a_sample_is_one_short_line() {
        let of =
            |output: String| sample_line(&SampleMetrics { step: 8, source: "It is".into(), output, reference: None });
        assert_eq!(of(" a\ntruth".into()), "  It is -> a truth");
        assert_eq!(of("è".repeat(200)).chars().count(), SAMPLE_CHARACTERS + 3);
        let source = format!("{}\n\nWho was it?", "a long context ".repeat(20));
        let line = sample_line(&SampleMetrics { step: 8, source, output: " Ada".into(), reference: None });
        assert!(line.starts_with("  a long context") && line.ends_with("Who was it? -> Ada"), "{line}");
    }

    #[test]
    fn a_validation_shows_only_what_was_measured() {
        let line = validation_line(&samples::validation(500));
        assert!(line.contains("perplexity 2.72") && line.contains("BLEU 51.23"), "{line}");
        assert!(!line.contains("chrF") && !line.contains("exact match") && !line.contains("masked"), "{line}");
        let short = ValidationMetrics { bleu: Some(0.0), no_four_grams: true, ..samples::validation(500) };
        let line = validation_line(&short);
        assert!(line.contains("BLEU 0.00 (needs four words; no translation has them)"), "{line}");

        let masked = ValidationMetrics {
            masked_accuracy: Some(0.4),
            unigram_accuracy: Some(0.0525),
            bleu: None,
            ..samples::validation(500)
        };
        let line = validation_line(&masked);
        assert!(line.contains("masked accuracy 40.00% (unigram 5.25%)") && !line.contains("BLEU"), "{line}");
        let classes = ValidationMetrics { accuracy: Some(0.5), ..ValidationMetrics::default() };
        let line = validation_line(&classes);
        assert!(line.contains("accuracy 50.00%") && !line.contains("perplexity"), "{line}");
        let of = |accuracy, margin| ValidationMetrics {
            reward_accuracy: Some(accuracy),
            reward_margin: Some(margin),
            ..ValidationMetrics::default()
        };
        assert!(validation_line(&of(0.0, 0.0)).contains("| rewards of both answers still equal |"));
        assert!(validation_line(&of(0.0, -0.5)).contains("| reward accuracy 0.00% margin -0.500 |"));
    }
}
