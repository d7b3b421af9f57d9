//! The speed of the link between the ranks' devices: the two collectives of a training step, at several sizes.

use anyhow::{Context, Result};
use burn::tensor::{DType, Device, Tensor};
use kiln_ranks::Ranks;
use kiln_train::device::is_cpu;

use super::measure::{Effort, time};

/// Sizes of the whole tensor that are measured, MiB. The largest is the gradient of GPT-2 124M in f32. Between CPUs, over TCP, the large
/// ones take minutes and say the same.
const SIZES_MIB: [usize; 4] = [4, 40, 200, 498];
const CPU_SIZES_MIB: [usize; 2] = [4, 40];
/// Calls of a repeat, the first of which warms up.
const CALLS: usize = 5;
/// Repeats, of which the median counts.
const REPEATS: usize = 5;

/// The time of the collectives at one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkTime {
    /// Bytes of the whole tensor.
    pub bytes: usize,
    /// Seconds in which each rank gets its slice of every rank's tensor.
    pub exchange_secs: f64,
    /// Seconds in which each rank gets the slices of all ranks.
    pub all_gather_secs: f64,
    /// Seconds of the host to enqueue an exchange.
    pub host_secs: f64,
}

impl LinkTime {
    /// Returns the bytes that a rank sends in a call.
    pub fn sent(&self, n_ranks: usize) -> f64 {
        self.bytes as f64 * (n_ranks - 1) as f64 / n_ranks as f64
    }
}

/// Measures the link between `ranks`. The figures are the slowest rank's.
///
/// # Errors
/// If a device or another rank fails, or if what arrives is not what was sent.
pub fn measure(ranks: &Ranks, device: &Device) -> Result<Vec<LinkTime>> {
    measure_up_to(ranks, device, usize::MAX)
}

/// Does the same for whole tensors of at most `most_mib` MiB.
///
/// # Errors
/// As [`measure`].
pub fn measure_up_to(ranks: &Ranks, device: &Device, most_mib: usize) -> Result<Vec<LinkTime>> {
    let sizes: &[usize] = if is_cpu(device) { &CPU_SIZES_MIB } else { &SIZES_MIB };
    sizes.iter().filter(|mib| **mib <= most_mib).map(|mib| measure_size(ranks, device, mib << 20)).collect()
}

fn measure_size(ranks: &Ranks, device: &Device, bytes: usize) -> Result<LinkTime> {
    let device = device.clone().inner();
    let slice = (bytes / 4 / ranks.size()).next_multiple_of(256);
    let n = slice * ranks.size();
    let bounds: Vec<usize> = (0..=ranks.size()).map(|rank| rank * slice).collect();
    let mine = Tensor::<1>::full([n], ranks.rank() as f32 + 1.0, (&device, DType::F32));

    // What is measured must be right.
    let received = ranks.exchange(mine.clone(), &bounds)?;
    let (sum, wanted) = (received.sum(), (1..=ranks.size()).sum::<usize>() * slice);
    let sum: f32 = sum.try_into_scalar().context("reading what was exchanged")?;
    anyhow::ensure!((f64::from(sum) / wanted as f64 - 1.0).abs() < 1e-3, "exchanged {sum} instead of {wanted}");

    let own = mine.clone().slice(bounds[ranks.rank()]..bounds[ranks.rank() + 1]);
    let [exchange_secs, host_secs] = time_of_ranks(ranks, &device, || ranks.exchange(mine.clone(), &bounds))?;
    let [all_gather_secs, _] = time_of_ranks(ranks, &device, || ranks.all_gather(own.clone(), mine.clone(), &bounds))?;
    Ok(LinkTime { bytes: 4 * n, exchange_secs, all_gather_secs, host_secs })
}

/// Returns the seconds of a call on the slowest rank, and those that its host takes to enqueue it.
fn time_of_ranks(ranks: &Ranks, device: &Device, call: impl Fn() -> Result<Tensor<1>>) -> Result<[f64; 2]> {
    // The first repeat connects and warms up.
    let effort = Effort { steps: CALLS, repeats: REPEATS, warm_up: 1 };
    // Only the last result is kept: the tensors are large.
    let mut last = None;
    let paced = time(
        device,
        effort,
        || ranks.share("beginning to measure", ()).map(drop),
        |_| {
            last = Some(call()?);
            Ok(())
        },
    )?;
    drop(last);

    let medians = [paced.device.median(), paced.host.median()];
    let of_ranks = ranks.share("the time of a collective", medians)?;
    Ok(of_ranks.into_iter().fold([0.0, 0.0], |most: [f64; 2], of| [most[0].max(of[0]), most[1].max(of[1])]))
}

/// Returns the middle of `values`; 0 if there are none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
