//! `kiln bench --devices`: what several devices do together, compared with the same devices alone at the same time.

use std::time::Duration;

use anyhow::Result;
use kiln_kernels::collective::CollectiveTime;
use kiln_lab::diagnose::link;
use kiln_lab::diagnose::step_time::{StepTime, measure};
use kiln_lab::diagnose::workload::Workload;
use kiln_metrics::logging::print::stdout_line;
use kiln_ranks::{Link, Ranks};
use kiln_train::device::device_name;
use kiln_train::eval::{Init, Model};

use super::chosen::LINK;
use super::{Args, Bench, ms};

/// Smaller collectives measure the latency, not the link.
const LEAST_BYTES: u64 = 1 << 20;

/// Runs the benchmark as one of several ranks. Rank 0 prints.
pub(super) fn run<M: Model>(mut args: Args, link: Link, init: &Init<'_, M>) -> Result<()> {
    let wants_link = args.chosen.workloads.iter().any(|name| name == LINK);
    args.chosen.others = true;
    let bench = Bench::open(args, init)?;
    let ranks = Ranks::over(link, &bench.device)?;

    ranks.or_abort(all(&bench, &ranks, wants_link, init))?;
    ranks.finish()
}

fn all<M: Model>(bench: &Bench, ranks: &Ranks, wants_link: bool, init: &Init<'_, M>) -> Result<()> {
    if ranks.is_first() {
        stdout_line!("{} x {}, {:?}", ranks.size(), device_name(&bench.device), bench.dtype);
    }
    if wants_link {
        print_link(ranks, &link::measure(ranks, &bench.device)?);
    }
    bench.workloads.iter().try_for_each(|workload| compare(bench, ranks, workload, init))
}

fn compare<M: Model>(bench: &Bench, ranks: &Ranks, workload: &Workload, init: &Init<'_, M>) -> Result<()> {
    let Bench { device, dtype, effort, .. } = bench;
    // Kernels are compiled once.
    let measure_alone = || {
        let alone = measure(workload, init, *dtype, device, *effort, &Ranks::alone());
        device.memory_cleanup();
        alone
    };
    ranks.first_then_others("compiling kernels", || measure_alone().map(drop))?;

    // Alone before and after: a GPU that has worked for a while is slower.
    let before = alone_with_others(ranks, measure_alone)?;
    drop(ranks.take_timings());
    let together = measure(workload, init, *dtype, device, *effort, ranks)?;
    device.memory_cleanup();
    let moved = Moved::of_ranks(ranks, together.n_steps)?;
    let after = alone_with_others(ranks, measure_alone)?;

    let rate = (before.tokens_per_sec + after.tokens_per_sec) / 2.0;
    let rates = ranks.share("the rates of a benchmark", [rate, together.tokens_per_sec])?;
    let step = ranks.share("the time of a step", together.step.as_secs_f64())?.into_iter().fold(0.0, f64::max);

    if ranks.is_first() {
        print(workload, [&before, &after], &together, Duration::from_secs_f64(step), &rates);
        moved.iter().for_each(Moved::print);
    }
    Ok(())
}

/// The collectives of a step.
struct Moved {
    what: &'static str,
    /// Bytes that rank 0 receives.
    bytes: f64,
    /// The shortest and the longest time of a rank, in milliseconds, waits included.
    ms: [f64; 2],
    /// The time at the rate of the fastest operation, in milliseconds: what the link takes without a wait.
    link_ms: f64,
}

impl Moved {
    /// Shares what the device of each rank has timed in the last `steps` steps.
    fn of_ranks(ranks: &Ranks, steps: usize) -> Result<Vec<Self>> {
        // The second call takes what the first one asks the device for.
        let mut timed = ranks.take_timings();
        ranks.share("the end of a measurement", ())?;
        timed.extend(ranks.take_timings());

        let kinds = ["exchange", "all_gather"];
        let per_step = kinds.map(|what| {
            let large = || timed.iter().filter(|one| one.what == what && one.bytes >= LEAST_BYTES);
            let rate = |one: &CollectiveTime| one.bytes as f64 / f64::from(one.ms);
            let bytes: f64 = large().map(|one| one.bytes as f64).sum();
            // Steps that compile or record last longer, and the others wait: the median leaves them out.
            let ms = link::median(large().map(|one| f64::from(one.ms)).collect()) * large().count() as f64;
            let fastest = large().map(rate).fold(f64::MIN_POSITIVE, f64::max);
            [bytes, ms, bytes / fastest].map(|sum| sum / steps as f64)
        });
        let of_ranks: Vec<[[f64; 3]; 2]> = ranks.share("the times of the collectives", per_step)?;

        let moved = |(i, what): (usize, &'static str)| {
            let column = |at: usize| of_ranks.iter().map(move |rank| rank[i][at]);
            Self {
                what,
                bytes: of_ranks[0][i][0],
                ms: [column(1).fold(f64::INFINITY, f64::min), column(1).fold(0.0, f64::max)],
                link_ms: column(2).fold(0.0, f64::max),
            }
        };
        Ok(kinds.into_iter().enumerate().map(moved).filter(|moved| moved.bytes > 0.0).collect())
    }

    fn print(&self) {
        let Self { what, bytes, ms: [least, most], link_ms } = self;
        stdout_line!(
            "  {what:<13}  {:>8.1} MB a step in {least:.2} to {most:.2} ms; {link_ms:.2} ms of them the link ({:.0} GB/s), the rest waits",
            bytes / 1e6,
            bytes / link_ms / 1e6
        );
    }
}

/// Measures this rank's device while all others do the same.
fn alone_with_others(ranks: &Ranks, measure_alone: impl Fn() -> Result<StepTime>) -> Result<StepTime> {
    ranks.share("beginning to measure", ())?;
    measure_alone()
}

fn print(workload: &Workload, alone: [&StepTime; 2], together: &StepTime, step: Duration, rates: &[[f64; 2]]) {
    let sum_alone: f64 = rates.iter().map(|[alone, _]| alone).sum();
    let each = rates.iter().map(|[alone, _]| format!("{alone:.0}")).collect::<Vec<_>>().join(" + ");
    // The ranks wait for each other, so the slowest one sets the pace.
    let slowest = rates.iter().map(|[_, together]| *together).fold(f64::INFINITY, f64::min);
    let sum_together = slowest * rates.len() as f64;

    stdout_line!("{}", workload.title);
    stdout_line!(
        "  each alone     {:>8.2} ms before, {:.2} ms after  {sum_alone:>9.0} tok/s ({each})  memory {}",
        ms(alone[0].step),
        ms(alone[1].step),
        memory(alone[0].reserved_bytes)
    );
    stdout_line!(
        "  together       {:>8.2} ms  {sum_together:>9.0} tok/s, {:.1} samples/s, {:.1} % of the devices alone  memory {}  host {:.2} ms  loss {:.3} -> {:.3}",
        ms(step),
        sum_together * together.samples_per_sec / together.tokens_per_sec,
        100.0 * sum_together / sum_alone,
        memory(together.reserved_bytes),
        ms(together.enqueue),
        together.losses[0],
        together.losses[1],
    );
    if let Err(reason) = &together.replayed {
        stdout_line!("  together, steps were not replayed as CUDA graphs: {reason}");
    }
}

fn memory(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unknown".into(), |bytes| format!("{:.2} GiB", kiln_metrics::units::gib(bytes)))
}

fn print_link(ranks: &Ranks, times: &[link::LinkTime]) {
    if !ranks.is_first() {
        return;
    }
    stdout_line!("link: GB/s = bytes that a rank sends / time of the slowest rank");
    for time in times {
        let rate = |secs: f64| time.sent(ranks.size()) / secs / 1e9;
        stdout_line!(
            "  {:>4} MiB   exchange {:>8.3} ms {:>7.1} GB/s   all-gather {:>8.3} ms {:>7.1} GB/s   host {:.3} ms",
            time.bytes >> 20,
            1e3 * time.exchange_secs,
            rate(time.exchange_secs),
            1e3 * time.all_gather_secs,
            rate(time.all_gather_secs),
            1e3 * time.host_secs,
        );
    }
}
