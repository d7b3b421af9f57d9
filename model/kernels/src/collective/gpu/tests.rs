//! Two ranks of one process, each on a thread and a GPU of its own. Skipped unless there are two GPUs and NCCL.

use std::fmt::Display;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use burn::tensor::{DType, Device, DeviceType, Int, Tensor};

use super::lock;
use crate::collective::{Communicator, NcclError, NcclLibrary, Slice, UniqueId};
use crate::optim::{
    ALIGNMENT, AdamWHyper, AdamWState, CHUNK, Coefficients, Counters, Flat, Place, Progress, StepPolicy, adamw_step,
    gather, prepare, view,
};
use crate::testing::{cuda_alone, host, tensor};

const RANKS: usize = 2;
const ROUNDS: usize = 50;

/// Returns two GPUs, for this test alone, or prints why it is skipped.
fn gpus() -> Option<[Device; RANKS]> {
    let skipped = |reason: &dyn Display| eprintln!("skipped on two GPUs: {reason}");
    cuda_alone().map_err(|reason| skipped(&reason)).ok()?;
    NcclLibrary::open().map_err(|error| skipped(&error)).ok()?;

    let devices: Vec<Device> = Device::enumerate(DeviceType::Cuda).into_iter().take(RANKS).collect();
    devices.try_into().map_err(|found: Vec<_>| skipped(&format!("this machine has {}", found.len()))).ok()
}

/// Runs `work` as each rank. If a rank panics, the other one is released.
fn on_each_rank(gpus: &[Device; RANKS], work: impl Fn(&Communicator, &Device) + Sync) {
    let id = UniqueId::new().expect("NCCL makes an id");
    let (joined, work) = (Mutex::new(Vec::new()), &work);
    let run = |rank: usize| {
        let communicator = Communicator::join(&id, rank, RANKS, &gpus[rank]).expect("both ranks join");
        lock(&joined).push(communicator.clone());
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(&communicator, &gpus[rank]))) {
            lock(&joined).iter().for_each(Communicator::abort);
            resume_unwind(panic);
        }
    };
    let run = &run;
    thread::scope(|scope| {
        for rank in 0..RANKS {
            scope.spawn(move || run(rank));
        }
    });
}

/// Returns elements of the tensor of `rank` in round `round`: small integers, exact in 16 bits.
fn elements(rank: usize, round: usize, range: Range<usize>) -> Vec<f32> {
    range.map(|i| ((i * 7 + rank * 31 + round * 13) % 251) as f32 - 125.0).collect()
}

#[test]
fn an_exchange_brings_the_slices_of_all_ranks_in_their_order() {
    let Some(gpus) = gpus() else { return };
    let n = 300_000;
    // Equal slices, elements that belong to nobody, and a rank without a slice.
    let cases = [[0, n / 2, n], [256, 200_003, n - 5], [0, 0, n]];

    on_each_rank(&gpus, |communicator, gpu| {
        let rank = communicator.rank();
        for (dtype, bounds) in [DType::F32, DType::BF16, DType::F16].iter().flat_map(|&dtype| cases.map(|c| (dtype, c)))
        {
            // Kernels before and after each exchange, and no wait between the rounds.
            let round = |round: usize| {
                let values = tensor::<1>(&elements(rank, round, 0..n), [n], dtype, gpu) * 0.5 + 1.0;
                communicator.exchange(values, &bounds) - 1.0
            };
            let received: Vec<_> = (0..ROUNDS).map(round).collect();
            // A rank that receives nothing reads nothing, but must send.
            gpu.flush().expect("a device");

            for (round, received) in received.into_iter().enumerate() {
                let slice = bounds[rank]..bounds[rank + 1];
                let sent = (0..RANKS).flat_map(|from| elements(from, round, slice.clone()));
                let expected: Vec<f32> = sent.map(|value| value * 0.5).collect();
                assert_eq!(received.dims(), [expected.len()]);
                assert!(expected.is_empty() || host(received) == expected, "{bounds:?}, round {round}, {dtype:?}");
            }
        }
        communicator.check().expect("no failure");
    });
}

/// Adds `values` to the elements from `offset` on, in place.
fn add(flat: Flat, offset: usize, values: &[f32], gpu: &Device) -> Flat {
    let (n, dtype) = (flat.values.dims()[0], flat.values.dtype());
    let part = tensor::<1>(values, [values.len()], dtype, gpu).into();
    gather(vec![part], &[Place { offset, len: values.len() }], n, dtype, gpu, Some(flat))
}

#[test]
fn a_gather_fills_views_of_the_full_tensor() {
    let Some(gpus) = gpus() else { return };
    let n = 1024 * ALIGNMENT;
    let start: Vec<f32> = (0..n).map(|i| (i % 64) as f32).collect();
    let added = |rank: usize, range: Range<usize>| -> Vec<f32> { range.map(|i| ((i + rank) % 3) as f32).collect() };

    // The second bounds leave elements to nobody, and give one rank three times the elements of the other.
    for bounds in [[0, n / 2, n], [ALIGNMENT, n / 4, n - ALIGNMENT]] {
        on_each_rank(&gpus, |communicator, gpu| {
            let own = bounds[communicator.rank()]..bounds[communicator.rank() + 1];
            for dtype in [DType::F32, DType::BF16] {
                let whole = [Place { offset: 0, len: n }];
                let mut flat = gather(vec![tensor::<1>(&start, [n], dtype, gpu).into()], &whole, n, dtype, gpu, None);
                let views = [view(&flat.values, 0, [n / 2]), view(&flat.values, n / 2, [n / 2])];
                let mut expected = start.clone();

                for round in 0..ROUNDS {
                    flat = add(flat, own.start, &added(communicator.rank(), own.clone()), gpu);
                    flat.values = communicator.all_gather(flat.values, &bounds);
                    gpu.flush().expect("a device");

                    for rank in 0..RANKS {
                        let slice = bounds[rank]..bounds[rank + 1];
                        let terms = added(rank, slice.clone());
                        expected[slice].iter_mut().zip(terms).for_each(|(value, term)| *value += term);
                    }
                    // A wait in every fifth round only.
                    if round % 5 == 4 {
                        let seen: Vec<f32> = views.iter().flat_map(|view| host(view.clone() * 1.0)).collect();
                        assert!(seen == expected, "{bounds:?}, round {round}, {dtype:?}");
                    }
                }
                assert!(host(flat.values) == expected, "the returned tensor, {bounds:?}, {dtype:?}");
            }
            communicator.check().expect("no failure");
        });
    }
}

/// Elements of the first slice: several pieces in each dtype.
const SLICE: usize = 40 * CHUNK;
/// Parameters of the two slices below: one that lies in both, and shorter ones of lengths that no vector divides.
const LENS: [usize; 6] = [SLICE + 36 * CHUNK + 8, 1, 4097, 768, 7, 12_288];

/// Returns where the parameters lie, and the elements of all.
fn parameters() -> (Vec<Place>, usize) {
    let mut n = 0;
    let place = |&len: &usize| {
        let place = Place { offset: n, len };
        n += place.padded_len();
        place
    };
    (LENS.iter().map(place).collect(), n)
}

/// Returns the bounds of two slices, and what lies in slice `rank`.
fn two_slices(rank: usize) -> ([usize; 3], Vec<Place>) {
    let (places, n) = parameters();
    let bounds = [0, SLICE, n];
    let in_slice = |place: &Place| {
        let start = place.offset.max(bounds[rank]);
        let stop = (place.offset + place.len).min(bounds[rank + 1]);
        (start < stop).then(|| Place { offset: start - bounds[rank], len: stop - start })
    };
    (bounds, places.iter().filter_map(in_slice).collect())
}

/// Returns the gradients of a rank: [`numbers`] with zeros behind each parameter.
fn gradients(seed: usize, dtype: DType, gpu: &Device) -> Tensor<1> {
    let (places, n) = parameters();
    let values = numbers(n, seed, dtype, gpu);
    let parts = places.iter().map(|place| view(&values, place.offset, [place.len]).into()).collect();
    gather(parts, &places, n, dtype, gpu, None).values
}

/// Returns numbers whose sums depend on the order of the additions.
fn numbers(n: usize, seed: usize, dtype: DType, gpu: &Device) -> Tensor<1> {
    let i = Tensor::<1, Int>::arange(0..n as i64, (gpu, DType::I32)).cast(DType::I32);
    let odd = (i * 7919 + (seed * 104_729) as i32).remainder_scalar(65_537).float();
    (odd / 977.0 - 30.0).cast(dtype)
}

#[test]
fn slices_are_added_up_as_one_rank_accumulates_them() {
    let Some(gpus) = gpus() else { return };
    on_each_rank(&gpus, |communicator, gpu| {
        let rank = communicator.rank();
        let (bounds, places) = two_slices(rank);
        let slice = Slice::new(rank, &bounds, &places, gpu);
        let len = bounds[rank + 1] - bounds[rank];
        // No wait between the rounds: buffers are used again.
        for (dtype, round) in [DType::BF16, DType::F32, DType::F16].iter().flat_map(|&dtype| [(dtype, 0), (dtype, 1)]) {
            let of_rank = |rank: usize| gradients(2 * round + rank, dtype, gpu);
            let found = communicator.add_up(of_rank(rank), &slice);

            let mut wanted = None;
            for values in [of_rank(0), of_rank(1)] {
                let part = |place: &Place| view(&values, bounds[rank] + place.offset, [place.len]).into();
                let parts = places.iter().map(part).collect();
                wanted = Some(gather(parts, &places, len, DType::F32, gpu, wanted));
            }
            let wanted = wanted.expect("two ranks");
            assert!(host(found.values.clone()) == host(wanted.values.clone()), "sum, {dtype:?}");
            assert!(host(found.squares().clone()) == host(wanted.squares().clone()), "squares, {dtype:?}");
        }
        communicator.check().expect("no failure");
    });
}

#[test]
fn a_sharded_step_leaves_the_weights_of_a_whole_one() {
    let Some(gpus) = gpus() else { return };
    on_each_rank(&gpus, |communicator, gpu| {
        let rank = communicator.rank();
        let (bounds, _) = two_slices(rank);
        let (own, n) = (bounds[rank]..bounds[rank + 1], bounds[2]);
        // Decay ends within a piece.
        let whole_hyper =
            AdamWHyper { beta1: 0.9, beta2: 0.98, eps: 1e-9, weight_decay: 0.1, n_decayed: SLICE / 2 + ALIGNMENT };
        let n_decayed = whole_hyper.n_decayed.clamp(own.start, own.end) - own.start;
        let hyper = AdamWHyper { n_decayed, ..whole_hyper };

        for dtype in [DType::BF16, DType::F32] {
            let master = numbers(n, 1, DType::F32, gpu) / 30.0;
            let all = master.clone().cast(dtype) * 1.0;
            let part = |tensor: Tensor<1>| tensor.slice([own.clone()]) * 1.0;
            let weights = Some(view(&all, own.start, [own.len()]));
            let mut state = AdamWState { weights, ..AdamWState::new(part(master.clone()), DType::F32) };
            let (mut all, mut whole) = (all, AdamWState::new(master * 1.0, dtype));

            for round in 0..3 {
                let gradient = numbers(n, 7 + round, DType::F32, gpu);
                let flat = |values| Flat::new(values, Tensor::ones([1], (gpu, DType::F32)));
                let one = || Tensor::ones([1], (gpu, DType::F32));
                let coefficients = Coefficients::new(&hyper, |_| 0.1, round as u64, round as u64 + 1, gpu);
                let counters = Counters { updates: round as u64, loss_scale: 1.0, good_steps: 0 };
                let policy = StepPolicy { max_norm: 0.0, scaling: None, stops: false };
                let progress = Progress::new(counters, gpu);
                let (numbers, _) = prepare(&flat(gradient.clone()), one(), one(), progress, &coefficients, &policy);

                whole = adamw_step(whole, flat(gradient.clone()), &numbers, &whole_hyper);
                let gradient = flat(part(gradient));
                (state, all) = communicator.adamw_step(state, all, gradient, &numbers, &hyper, &bounds);
                gpu.flush().expect("a device");
            }
            assert!(host(all.clone() * 1.0) == host(whole.compute_weights().clone() * 1.0), "weights, {dtype:?}");
            assert!(host(state.master) == host(part(whole.master)), "master, {dtype:?}");
            assert!(host(state.v) == host(part(whole.v)), "moments, {dtype:?}");
        }
        communicator.check().expect("no failure");
    });
}

#[test]
fn an_abort_ends_operations_that_wait_for_another_rank() {
    let Some(gpus) = gpus() else { return };
    // Without a first exchange, the host waits for the connection; after one, a kernel waits for the data.
    for connects in [false, true] {
        on_each_rank(&gpus, |communicator, gpu| {
            let values = tensor::<1>(&elements(0, 0, 0..1000), [1000], DType::F32, gpu);
            if connects {
                host(communicator.exchange(values.clone(), &[0, 500, 1000]));
            }
            if communicator.rank() == 1 {
                return;
            }

            // Before the exchange: if it has to connect, the calling thread waits, too.
            let other = communicator.clone();
            let aborting = thread::spawn(move || {
                thread::sleep(Duration::from_secs(1));
                let before = other.check();
                other.abort();
                before
            });
            let start = Instant::now();
            let alone = communicator.exchange(values.clone(), &[0, 500, 1000]);
            gpu.flush().expect("a device");
            let _ = gpu.sync();
            let waited = start.elapsed();
            drop(alone);
            assert_eq!(aborting.join().expect("no panic"), Ok(()), "waiting is not a failure");
            assert!((Duration::from_millis(900)..Duration::from_secs(30)).contains(&waited), "waited {waited:?}");

            assert_eq!(communicator.check(), Err(NcclError::Aborted));
            let later = communicator.exchange(values.clone(), &[0, 500, 1000]).try_into_data();
            assert!(later.is_err(), "a result without an operation");
            communicator.abort();
            assert_eq!(host(values), elements(0, 0, 0..1000), "the device works on");
        });
    }
}

#[test]
fn operations_are_timed_without_waiting() {
    let Some(gpus) = gpus() else { return };
    on_each_rank(&gpus, |communicator, gpu| {
        let values = Tensor::<1>::zeros([3000], (gpu, DType::F32));
        for _ in 0..10 {
            host(communicator.exchange(values.clone(), &[0, 1000, 3000]));
        }
        host(communicator.all_gather(values, &[0, 1000, 3000]));

        let mut times = communicator.take_timings();
        gpu.sync().expect("a device");
        times.extend(communicator.take_timings());
        let received = [1000, 2000][communicator.rank()] * 4;
        let expected = [vec![("exchange", received); 10], vec![("all_gather", 12_000 - received)]].concat();
        let found: Vec<_> = times.iter().map(|time| (time.what, time.bytes)).collect();
        assert_eq!(found, expected);
        assert!(times.iter().all(|time| time.ms > 0.0 && time.ms < 60_000.0), "{times:?}");
        assert!(communicator.take_timings().is_empty(), "taken before");
    });
}

/// `KILN_TIMES= ... collective --nocapture` prints bus bandwidths and the host's time of an operation.
#[test]
fn times() {
    let Some(gpus) = std::env::var_os("KILN_TIMES").and_then(|_| gpus()) else { return };
    on_each_rank(&gpus, |communicator, gpu| {
        for n in [1 << 10, 1 << 20, 10 << 20, 124_439_808] {
            let bounds = [0, n / 2, n];
            for dtype in [DType::F32, DType::BF16] {
                let values = Tensor::<1>::zeros([n], (gpu, dtype));
                for what in ["exchange", "all_gather"] {
                    let run = || match what {
                        "exchange" => communicator.exchange(values.clone(), &bounds),
                        _ => communicator.all_gather(values.clone(), &bounds),
                    };
                    print_times(communicator, gpu, run, &format!("{what} {n} {dtype:?}"));
                }
            }
        }
    });
}

fn print_times(communicator: &Communicator, gpu: &Device, run: impl Fn() -> Tensor<1>, what: &str) {
    const RUNS: usize = 20;
    for _ in 0..3 {
        drop(run());
        gpu.sync().expect("a device");
    }
    communicator.take_timings();
    gpu.sync().expect("a device");
    communicator.take_timings();

    let start = Instant::now();
    for _ in 0..RUNS {
        // A result that is dropped before the flush is never computed.
        let result = run();
        gpu.flush().expect("a device");
        drop(result);
    }
    gpu.sync().expect("a device");
    let ms = start.elapsed().as_secs_f64() * 1e3 / RUNS as f64;

    communicator.take_timings();
    gpu.sync().expect("a device");
    let mut times = communicator.take_timings();
    times.sort_by(|a, b| a.ms.total_cmp(&b.ms));
    let Some(median) = times.get(times.len() / 2) else { return };
    let rate = median.bytes as f64 / f64::from(median.ms) / 1e6;
    if communicator.rank() == 0 {
        println!("{what}: median {:.4} ms on the device, {rate:.0} GB/s in; {ms:.4} ms each", median.ms);
    }
}
