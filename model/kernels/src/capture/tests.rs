use burn::tensor::{DType, Device, Int, Tensor};

use super::{capture, overwrite};
use crate::dropout::{DropoutStream, dropout};
use crate::testing::{cuda_alone, devices, host, tensor, values};

fn ids(values: &[i32], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(values, (device, DType::I32))
}

/// Returns the CUDA device for this test alone, or prints why there is none.
fn gpu() -> Option<Device> {
    cuda_alone().inspect_err(|reason| eprintln!("skipped on CUDA: {reason}")).ok()
}

/// Computes a loss from rows of a table, with dropout and a product, and the gradient of the table.
fn forward_backward(table: &Tensor<2>, ids: &Tensor<1, Int>, state: &Tensor<1, Int>) -> (Tensor<1>, Tensor<2>) {
    let stream = DropoutStream::over(state.clone());
    let rows = crate::embedding(ids.clone(), table.clone());
    let hidden = dropout(rows, 0.3, &stream).matmul(table.clone().transpose());
    let loss = dropout(hidden, 0.1, &stream).powi_scalar(2).sum();
    let mut gradients = loss.backward();
    (loss.inner(), table.grad_remove(&mut gradients).expect("the table took part"))
}

#[test]
fn the_cpu_says_why_it_cannot_record() {
    let error = capture(&Device::flex().autodiff(), || 1, |_| ()).expect_err("no graphs").to_string();
    assert!(error.contains("CPU"), "{error}");
}

#[test]
fn overwrite_copies_the_numbers_of_another_tensor() {
    for (name, device) in devices() {
        let target = ids(&[1, 2, 3, 4, 5], &device).narrow(0, 1, 3);
        let seen = target.clone();
        let target = overwrite(target, ids(&[7, 8, 9], &device));
        assert_eq!(target.into_data().try_into_vec::<i32>().expect("i32"), [7, 8, 9], "{name}");
        let wanted = if super::can_capture(&device) { [7, 8, 9] } else { [2, 3, 4] };
        assert_eq!(seen.into_data().try_into_vec::<i32>().expect("i32"), wanted, "a clone on {name}");
    }
}

#[test]
fn replays_equal_eager_work_bit_for_bit() {
    let Some(device) = gpu() else { return };
    let table = tensor::<2>(&values(50 * 32, 3), [50, 32], DType::F32, &device).autodiff().require_grad();
    let batch = |step: u64| {
        let numbers: Vec<i32> = (0..24).map(|i| ((i * 7 + step as i32 * 13) % 50).abs()).collect();
        (ids(&numbers, &device), DropoutStream::words(5, step, &device))
    };
    let (mut fixed_ids, mut fixed_state) = batch(0);
    let work = {
        let (table, ids, state) = (table.clone(), fixed_ids.clone(), fixed_state.clone());
        move || forward_backward(&table, &ids, &state)
    };
    let (captured, rehearsed) = capture(&device, work, |(loss, _)| host(loss.clone())).expect("a recording");
    for step in 0..20 {
        let (ids, state) = batch(step);
        let (loss, gradient) = forward_backward(&table, &ids, &state);
        let wanted = (host(loss), host(gradient));
        fixed_ids = overwrite(fixed_ids, ids);
        fixed_state = overwrite(fixed_state, state);
        let (loss, gradient) = captured.replay().expect("a replay");
        assert_eq!((host(loss.clone()), host(gradient.clone())), wanted, "step {step}");
        if step == 0 {
            assert_eq!(rehearsed, [wanted.0.clone(), wanted.0], "the rehearsals");
        }
    }
}

#[test]
fn recordings_write_neither_to_each_other_nor_to_later_memory() {
    let Some(device) = gpu() else { return };
    let square = |n: usize| {
        let x = tensor::<1>(&values(n, n as u64), [n], DType::F32, &device);
        let work = move || (x.clone() * 2.0).powi_scalar(2) + 1.0;
        capture(&device, work, |y| host(y.clone())).expect("a recording")
    };
    let recordings: Vec<_> = [4096, 4096, 1000].map(square).into();
    let bystanders: Vec<_> = (0..64).map(|_| Tensor::<1>::full([4096], 7.0, &device)).collect();
    for (captured, [wanted, _]) in &recordings {
        assert_eq!(host(captured.replay().expect("a replay").clone()), *wanted);
    }
    assert!(
        bystanders.into_iter().all(|x| host(x).iter().all(|&v| v == 7.0)),
        "a replay overwrote memory of another tensor"
    );
}

#[test]
fn work_that_reads_or_panics_is_refused_and_leaves_the_device_usable() {
    let Some(device) = gpu() else { return };
    let x = tensor::<1>(&values(64, 1), [64], DType::F32, &device);
    let reads = {
        let x = x.clone();
        move || (x.clone() * 2.0).sum().into_scalar::<f32>()
    };
    let error = capture(&device, reads, |_| ()).expect_err("a read cannot be recorded");
    assert!(!error.to_string().is_empty());
    let mut runs = 0;
    let panics = {
        let x = x.clone();
        move || {
            runs += 1;
            assert!(runs <= super::REHEARSALS, "the third of three wishes");
            x.clone() * 3.0
        }
    };
    let error = capture(&device, panics, |_| ()).expect_err("it panics while it is recorded").to_string();
    assert!(error.contains("wishes"), "{error}");
    assert_eq!(host(x.clone() + 1.0), values(64, 1).iter().map(|v| v + 1.0).collect::<Vec<_>>());
    let again = x.clone();
    let (captured, [wanted, _]) =
        capture(&device, move || again.clone() * 5.0, |y| host(y.clone())).expect("a recording");
    assert_eq!(host(captured.replay().expect("a replay").clone()), wanted);
}

#[test]
fn another_thread_cannot_replay() {
    let Some(device) = gpu() else { return };
    let x = tensor::<1>(&values(64, 1), [64], DType::F32, &device);
    let (captured, _) = capture(&device, move || x.clone() * 2.0, |_| ()).expect("a recording");
    let replay = move || captured.replay().map(|_| ()).expect_err("another thread").to_string();
    let error = std::thread::spawn(replay).join().expect("no panic");
    assert!(error.contains("another thread"), "{error}");
}
