use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::{StepAttentionConfig, append_and_attend, step_attention};
use crate::Settings;
use crate::testing::{devices, host, tensor, values};

struct Case {
    rows: usize,
    buffers: usize,
    capacity: usize,
    heads: [usize; 2],
    head_dim: usize,
    per_position: bool,
    divided: bool,
}

impl Case {
    fn config(&self) -> StepAttentionConfig {
        let [n_heads, n_kv_heads] = self.heads;
        StepAttentionConfig { n_heads, n_kv_heads, head_dim: self.head_dim, scale: None, divided: self.divided }
    }

    /// Attends with rows `from..to` of the case.
    fn found(&self, dtype: DType, device: &Device, [from, to]: [usize; 2]) -> Vec<f32> {
        let Self { rows, buffers, capacity, heads: [h, g], head_dim: k, per_position, .. } = *self;
        // Queries next to other columns, as self-attention has them.
        let (columns, width) = ((h + 2 * g) * k, 2 * g * k);
        let query = tensor(&values(rows * columns, 3), [rows, columns], dtype, device);
        let key_value = tensor(&values(buffers * capacity * width, 5), [buffers * capacity, width], dtype, device);
        let per_row = if per_position { capacity } else { 1 };
        let places = (0..rows * per_row).map(|i| (i * 7919 % buffers) as i32).collect();
        let places = int(places, [rows, per_row], device);
        let lengths = int((0..rows).map(|row| (row * 31 % capacity + 1) as i32).collect(), [rows], device);

        let part = |x: Tensor<2>| x.narrow(0, from, to - from);
        host(step_attention(
            part(query),
            key_value.reshape([buffers, capacity, width]),
            places.narrow(0, from, to - from),
            lengths.narrow(0, from, to - from),
            &self.config(),
        ))
    }
}

fn int<const D: usize>(values: Vec<i32>, shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(values, shape), (device, DType::I32))
}

fn cases() -> Vec<Case> {
    let case = |rows, buffers, capacity, heads, head_dim, per_position| Case {
        rows,
        buffers,
        capacity,
        heads,
        head_dim,
        per_position,
        divided: false,
    };
    let divided = |case| Case { divided: true, ..case };
    vec![
        case(1, 1, 1, [1, 1], 32, true),
        case(5, 7, 32, [8, 8], 64, true),
        case(9, 3, 13, [8, 8], 64, false),
        case(4, 4, 40, [6, 2], 128, true),
        case(3, 2, 5, [4, 4], 32, false),
        case(2, 2, 70, [2, 1], 256, false),
        divided(case(3, 3, 700, [12, 12], 64, false)),
        divided(case(2, 2, 90, [8, 2], 128, false)),
    ]
}

/// Appends the last position of `rows` of the case, and attends. Returns the result and the buffers.
fn appended(case: &Case, dtype: DType, device: &Device, [from, to]: [usize; 2]) -> (Vec<f32>, Vec<f32>) {
    let Case { rows, capacity, heads: [h, g], head_dim: k, .. } = *case;
    let (columns, width) = ((h + 2 * g) * k, 2 * g * k);
    let qkv = tensor(&values(rows * columns, 3), [rows, columns], dtype, device);
    let key_value = tensor(&values(rows * capacity * width, 5), [rows * capacity, width], dtype, device);
    let lengths = int((0..rows).map(|row| ((row + 1) * 31 % capacity + 1) as i32).collect(), [rows], device);
    // A copy: the kernel writes there.
    let own = key_value.narrow(0, from * capacity, (to - from) * capacity).add_scalar(0.0);
    let (found, key_value) = append_and_attend(
        qkv.narrow(0, from, to - from),
        own.reshape([to - from, capacity, width]),
        lengths.narrow(0, from, to - from),
        &case.config(),
    );
    (host(found), host(key_value.reshape([-1])))
}

#[test]
fn an_appended_position_is_attended_to_and_kept() {
    for (name, device) in devices() {
        for case in cases().into_iter().filter(|case| !case.per_position || case.capacity == 1) {
            for (dtype, tolerance) in [(DType::F32, 2e-6), (DType::BF16, 8e-3)] {
                let (found, kept) = appended(&case, dtype, &device, [0, case.rows]);
                let reference = Settings { reference_operators: true, ..Settings::current() }.install();
                let (wanted, buffers) = appended(&case, dtype, &Device::flex(), [0, case.rows]);
                drop(reference);
                assert_eq!(kept, buffers, "buffers: {dtype:?} on {name}");
                let far = found.iter().zip(&wanted).find(|(found, wanted)| (*found - *wanted).abs() > tolerance);
                assert_eq!(far, None, "{dtype:?} on {name}");

                let width = case.heads[0] * case.head_dim;
                let (alone, _) = appended(&case, dtype, &device, [case.rows - 1, case.rows]);
                assert_eq!(alone, found[(case.rows - 1) * width..], "a row alone: {dtype:?} on {name}");
            }
        }
    }
}

#[test]
fn results_equal_the_reference() {
    for (name, device) in devices() {
        for case in cases() {
            for (dtype, tolerance) in [(DType::F32, 2e-6), (DType::BF16, 8e-3)] {
                let found = case.found(dtype, &device, [0, case.rows]);
                let reference = Settings { reference_operators: true, ..Settings::current() }.install();
                // On the CPU: a GPU may round the products of plain operations in f32 to TF32.
                let wanted = case.found(dtype, &Device::flex(), [0, case.rows]);
                drop(reference);
                assert_eq!(found.len(), wanted.len());
                for (found, wanted) in found.iter().zip(&wanted) {
                    assert!((found - wanted).abs() <= tolerance, "{found}, {wanted}: {dtype:?} on {name}");
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (name, device) in devices() {
        for case in cases() {
            let (all, width) = (case.found(DType::F32, &device, [0, case.rows]), case.heads[0] * case.head_dim);
            for row in [0, case.rows / 2, case.rows - 1] {
                let alone = case.found(DType::F32, &device, [row, row + 1]);
                assert_eq!(bits(&alone), bits(&all[row * width..(row + 1) * width]), "row {row} on {name}");
            }
        }
    }
}

#[test]
fn cpu_takes_heads_of_any_size() {
    let case =
        Case { rows: 3, buffers: 2, capacity: 9, heads: [4, 4], head_dim: 24, per_position: true, divided: false };
    let found = case.found(DType::F32, &Device::flex(), [0, 3]);
    let _reference = Settings { reference_operators: true, ..Settings::current() }.install();
    let wanted = case.found(DType::F32, &Device::flex(), [0, 3]);
    assert!(found.iter().zip(&wanted).all(|(found, wanted)| (found - wanted).abs() < 2e-6));
}
