//! Shared parts of the operators' tests: devices, random tensors, tolerances and timings.

#[cfg(feature = "cuda")]
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use burn::tensor::{DType, Device, Tensor, TensorData};

#[cfg(feature = "cuda")]
static CUDA_DEVICE: RwLock<()> = RwLock::new(());

#[cfg(feature = "cuda")]
thread_local! {
    // Acquired when a test first asks for the device, released when the test's thread ends.
    static SHARED: RwLockReadGuard<'static, ()> = CUDA_DEVICE.read().unwrap_or_else(PoisonError::into_inner);
    static ALONE: RwLockWriteGuard<'static, ()> = CUDA_DEVICE.write().unwrap_or_else(PoisonError::into_inner);
}

/// Returns the devices that have kernels: the CPU, and the first CUDA device if this build and this machine have one.
pub(crate) fn devices() -> Vec<(&'static str, Device)> {
    let mut devices = vec![("cpu", Device::flex())];
    match cuda() {
        Ok(device) => devices.push(("cuda", device)),
        Err(reason) => eprintln!("skipped on CUDA: {reason}"),
    }
    devices
}

/// Returns the first CUDA device, or the reason for its absence. Other tests may share it, except those that need it
/// alone.
pub(crate) fn cuda() -> Result<Device, &'static str> {
    let device = find_cuda()?;
    #[cfg(feature = "cuda")]
    SHARED.with(|_| ());
    Ok(device)
}

/// Returns [`cuda`] for this test alone, until its thread ends. A recording is lost if another thread waits for the
/// device.
pub(crate) fn cuda_alone() -> Result<Device, &'static str> {
    let device = find_cuda()?;
    #[cfg(feature = "cuda")]
    ALONE.with(|_| ());
    Ok(device)
}

/// Returns the first device of wgpu, which has no kernels, or the reason for its absence.
pub(crate) fn wgpu() -> Result<Device, &'static str> {
    #[cfg(feature = "wgpu")]
    return Device::enumerate(burn::tensor::DeviceType::Wgpu)
        .into_iter()
        .next()
        .ok_or("this machine has no device of Vulkan, Metal or DirectX 12");
    #[cfg(not(feature = "wgpu"))]
    Err("built without the feature `wgpu`")
}

fn find_cuda() -> Result<Device, &'static str> {
    #[cfg(feature = "cuda")]
    return Device::enumerate(burn::tensor::DeviceType::Cuda)
        .into_iter()
        .next()
        .ok_or("this machine has no CUDA device");
    #[cfg(not(feature = "cuda"))]
    Err("built without the feature `cuda`")
}

/// Returns the cases of this process, with their numbers: all, or with `KILN_TEST_PART=1/4` every fourth from the second on. Each
/// process compiles its kernels one after the other, so that several of them end earlier.
///
/// # Panics
/// If the variable holds something else.
pub(crate) fn part<T>(cases: Vec<T>) -> impl Iterator<Item = (usize, T)> {
    let chosen = std::env::var("KILN_TEST_PART").map_or((0, 1), |part| {
        let numbers = part.split_once('/').and_then(|(own, of)| Some((own.parse().ok()?, of.parse().ok()?)));
        numbers.filter(|&(own, of): &(usize, usize)| own < of).expect("KILN_TEST_PART=1/4 is the second of four parts")
    });
    let (own, of) = chosen;
    cases.into_iter().enumerate().filter(move |(at, _)| at % of == own)
}

/// Returns deterministic values in [-1, 1), exact in bf16 so that every dtype starts from the same numbers.
pub(crate) fn values(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        half::bf16::from_f32(((state >> 40) as f32) * (2.0 / 16_777_216.0) - 1.0).to_f32()
    };
    (0..len).map(|_| next()).collect()
}

/// Returns deterministic values in [-1, 1] whose bits f32 needs, almost all of them.
pub(crate) fn precise_values(len: usize, seed: u64) -> Vec<f32> {
    let [high, middle, low] = [0, 1, 2].map(|part| values(len, 3 * seed + part));
    let digits = high.into_iter().zip(middle).zip(low);
    digits.map(|((high, middle), low)| 0.99 * high + middle * 2f32.powi(-9) + low * 2f32.powi(-17)).collect()
}

pub(crate) fn tensor<const D: usize>(values: &[f32], shape: [usize; D], dtype: DType, device: &Device) -> Tensor<D> {
    Tensor::<D>::from_data(TensorData::new(values.to_vec(), shape), (device, DType::F32)).cast(dtype)
}

pub(crate) fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.cast(DType::F32).into_data().try_to_vec::<f32>().expect("f32 data")
}

/// Returns `‖a - b‖ / ‖b‖`, or infinity if an element of `a` is not finite.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "different lengths");
    if a.iter().any(|x| !x.is_finite()) {
        return f64::INFINITY;
    }
    let square = |x: f64| x * x;
    let difference: f64 = a.iter().zip(b).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
    let norm: f64 = b.iter().map(|&b| square(f64::from(b))).sum();
    if norm == 0.0 { difference.sqrt() } else { (difference / norm).sqrt() }
}

/// Panics unless `a` is as close to the f32 reference `b` as its dtype allows.
pub(crate) fn assert_close(what: &str, dtype: DType, a: &[f32], b: &[f32]) {
    let allowed = if dtype == DType::F32 { 2e-6 } else { 6e-3 };
    let found = distance(a, b);
    assert!(found <= allowed, "{what} in {dtype:?}: relative distance {found:.2e}, allowed {allowed:.0e}");
}

/// Returns the CUDA device if timings are requested
/// (`KILN_TIMES= cargo test --release --features cuda times -- --nocapture`).
pub(crate) fn timing_device() -> Option<Device> {
    std::env::var_os("KILN_TIMES").and_then(|_| cuda_alone().ok())
}

/// Returns whether the name of a timing contains the value of `KILN_TIMES`.
pub(crate) fn is_timed(what: &str) -> bool {
    std::env::var("KILN_TIMES").is_ok_and(|part| what.contains(&part))
}

/// Runs until the device has raised its clock, which takes 0.2 s from idle.
pub(crate) fn warm<T>(device: &Device, run: &mut impl FnMut() -> T) {
    let start = std::time::Instant::now();
    while start.elapsed().as_secs_f64() < 0.3 {
        let kept: Vec<T> = (0..20).map(|_| run()).collect();
        device.sync().expect("a device");
        drop(kept);
    }
}

/// Returns the median over five times of the seconds that one of 20 runs in a row takes.
pub(crate) fn seconds<T>(device: &Device, mut run: impl FnMut() -> T) -> f64 {
    const RUNS: usize = 20;
    warm(device, &mut run);
    let mut times = [0.0; 5];
    for time in &mut times {
        let start = std::time::Instant::now();
        let kept: Vec<T> = (0..RUNS).map(|_| run()).collect();
        device.sync().expect("a device");
        *time = start.elapsed().as_secs_f64() / RUNS as f64;
        drop(kept);
    }
    times.sort_by(f64::total_cmp);
    times[2]
}

/// Prints how long one `run` takes and the rate at which it moves `bytes`, averaged over runs in a row. Kernels queue
/// up behind each other, so the host's launch time shows only where it is the longer one. Results are kept until the
/// device has finished, because a result that is dropped earlier is never computed. Skips what [`is_timed`] leaves out.
pub(crate) fn time<T>(what: &str, bytes: usize, device: &Device, mut run: impl FnMut() -> T) {
    const RUNS: usize = 20;
    if !is_timed(what) {
        return;
    }
    warm(device, &mut run);
    let start = std::time::Instant::now();
    let kept: Vec<T> = (0..RUNS).map(|_| run()).collect();
    let enqueued = start.elapsed().as_secs_f64() / RUNS as f64;
    device.sync().expect("a device");
    let secs = start.elapsed().as_secs_f64() / RUNS as f64;
    drop(kept);
    let (ms, rate) = (1e3 * secs, bytes as f64 / secs / 1e9);
    println!("{what}: {ms:.4} ms, {rate:.0} GB/s, {:.4} ms of it on the host", 1e3 * enqueued);
}
