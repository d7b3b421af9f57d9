//! How long the kernels of a step of decoding take, for one text: run with `KILN_TIMES=decoding`.
//!
//! Each is recorded many times in a row, as a step is, and reads weights or positions that no cache holds.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::capture::capture;
use crate::testing::{is_timed, seconds, timing_device};
use crate::{
    RotaryWavelengths, StepAttentionConfig, linear, linear_transposed, rms_norm, rotary, step_attention, swiglu,
};

/// Bytes of all weights of a recording: more than a cache holds.
const BYTES: usize = 400_000_000;
/// Times that a kernel of one row is recorded.
const TIMES: usize = 40;

/// Prints the time of one of `n` parts of a recording.
fn print<T: Send + 'static>(what: &str, device: &Device, n: usize, work: impl FnMut() -> T + Send + 'static) {
    let (captured, _) = capture(device, work, |_| ()).expect("a recording");
    let secs = seconds(device, || captured.replay().map(|_| ()).expect("a replay")) / n as f64;
    println!("decoding {what}: {:.2} microseconds", 1e6 * secs);
}

fn matrix(m: usize, n: usize, device: &Device) -> Tensor<2> {
    Tensor::ones([m, n], (device, DType::BF16)) * 1e-2
}

fn int(value: usize, device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(vec![value as i32], [1]), (device, DType::I32))
}

/// The products of GPT-2 124M and of a Llama of 1.1 billion parameters.
#[test]
fn of_products() {
    let Some(device) = timing_device().filter(|_| is_timed("decoding")) else { return };
    for (k, n) in [(768, 2304), (768, 768), (768, 3072), (3072, 768), (2048, 2560), (2048, 2048), (2048, 11_264)] {
        products(&device, false, [k, n]);
    }
    products(&device, false, [5632, 2048]);
    products(&device, false, [2048, 32_000]);
    products(&device, true, [768, 50_257]);
}

fn products(device: &Device, transposed: bool, [k, n]: [usize; 2]) {
    let copies = (BYTES / (2 * k * n)).clamp(3, 60);
    let shape = if transposed { [n, k] } else { [k, n] };
    let weights: Vec<_> = (0..copies).map(|_| matrix(shape[0], shape[1], device)).collect();
    let x = matrix(1, k, device);
    print(&format!("product {k} x {n}"), device, copies, move || {
        let product = |weight: &Tensor<2>| match transposed {
            true => linear_transposed(x.clone(), weight.clone(), None),
            false => linear(x.clone(), weight.clone(), None),
        };
        weights.iter().map(product).collect::<Vec<_>>()
    });
}

#[test]
fn of_attention() {
    const LAYERS: usize = 24;
    let Some(device) = timing_device().filter(|_| is_timed("decoding")) else { return };
    for (n_heads, n_kv_heads, length) in [(12, 12, 130), (12, 12, 384), (12, 12, 640), (32, 4, 384), (32, 4, 640)] {
        let config = StepAttentionConfig { n_heads, n_kv_heads, head_dim: 64, scale: None, divided: true };
        let width = 2 * n_kv_heads * 64;
        let buffers: Vec<Tensor<3>> =
            (0..LAYERS).map(|_| matrix(1024, width, &device).reshape([1, 1024, width])).collect();
        let (query, places) = (matrix(1, n_heads * 64, &device), int(0, &device).reshape([1, 1]));
        let lengths = int(length, &device);
        print(&format!("attention {n_heads}/{n_kv_heads}, {length} positions"), &device, LAYERS, move || {
            let attended = |buffer: &Tensor<3>| {
                step_attention(query.clone(), buffer.clone(), places.clone(), lengths.clone(), &config)
            };
            buffers.iter().map(attended).collect::<Vec<_>>()
        });
    }
}

#[test]
fn of_one_row() {
    let Some(device) = timing_device().filter(|_| is_timed("decoding")) else { return };
    for d in [768, 2048] {
        let (x, gamma) = (matrix(1, d, &device), Tensor::<1>::ones([d], (&device, DType::BF16)));
        print(&format!("norm {d}"), &device, TIMES, move || {
            (0..TIMES).map(|_| rms_norm(x.clone(), gamma.clone(), 1e-6)).collect::<Vec<_>>()
        });
        let (qkv, positions) = (matrix(1, d * 5 / 4, &device), int(1, &device));
        let wavelengths = RotaryWavelengths { theta: 10_000.0, scaling: None };
        print(&format!("rotary {d}"), &device, TIMES, move || {
            let turned = |_| rotary(qkv.clone(), positions.clone(), d / 64, 64, wavelengths.clone());
            (0..TIMES).map(turned).collect::<Vec<_>>()
        });
    }
    let gate_up = matrix(1, 2 * 5632, &device);
    print("swiglu", &device, TIMES, move || (0..TIMES).map(|_| swiglu(gate_up.clone())).collect::<Vec<_>>());
}
