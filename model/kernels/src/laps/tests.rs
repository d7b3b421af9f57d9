use burn::tensor::{Device, Tensor};

use super::LapClock;
use crate::testing::cuda_alone;

#[test]
fn the_cpu_has_no_clock_of_its_own() {
    assert!(LapClock::of(&Device::flex()).is_none());
}

#[test]
fn laps_are_the_time_of_the_work_between_their_marks() {
    let device = match cuda_alone() {
        Ok(device) => device,
        Err(reason) => return eprintln!("skipped on a GPU: {reason}"),
    };
    let mut clock = LapClock::of(&device).expect("a GPU");
    let product = |n: usize| Tensor::<2>::ones([n, n], &device).matmul(Tensor::ones([n, n], &device));
    // Compiles the kernels.
    let _ = (product(256).into_data(), product(4096).into_data());

    clock.mark("start");
    let small = product(256);
    clock.mark("small");
    let large = product(4096);
    clock.mark("large");
    let sum = (small.sum() + large.sum()).into_data();
    assert_eq!(sum.iter::<f32>().collect::<Vec<_>>(), [256.0_f32.powi(3) + 4096.0_f32.powi(3)]);

    let mut laps = Vec::new();
    for _ in 0..1000 {
        laps.extend(clock.take());
        if laps.len() == 2 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(laps.iter().map(|lap| lap.what).collect::<Vec<_>>(), ["small", "large"]);
    assert!(0.0 < laps[0].ms && laps[0].ms < laps[1].ms, "{laps:?}");
}
