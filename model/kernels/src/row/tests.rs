use burn::tensor::DType;

use super::{row_argmax, row_sums};
use crate::testing::{devices, host, tensor, values};

#[test]
fn sums_equal_the_sums_in_f64_again_and_again_and_have_their_gradient() {
    for (name, device) in devices() {
        for [rows, columns] in [[1, 1], [3, 7], [2, 128], [1, 5001], [1, 16_390], [1, 65_536]] {
            let numbers = values(rows * columns, 3);
            let x = tensor(&numbers, [rows, columns], DType::F32, &device.clone().autodiff()).require_grad();
            let found = row_sums(x.clone());
            for (found, row) in host(found.clone()).into_iter().zip(numbers.chunks(columns)) {
                let wanted: f64 = row.iter().map(|x| f64::from(*x)).sum();
                let tolerance = 1e-6 * row.iter().map(|x| f64::from(x.abs())).sum::<f64>();
                assert!(
                    (f64::from(found) - wanted).abs() <= tolerance,
                    "{rows} x {columns} on {name}: {found}, {wanted}"
                );
            }
            assert_eq!(host(found.clone()), host(row_sums(x.clone())), "again on {name}");

            let factors: Vec<f32> = (0..rows).map(|row| row as f32 + 2.0).collect();
            let factors = burn::tensor::Tensor::<1>::from_data(factors.as_slice(), &x.device());
            let gradient = host(x.grad(&(found * factors).sum().backward()).expect("a gradient"));
            for (row, gradient) in gradient.chunks(columns).enumerate() {
                assert!(gradient.iter().all(|number| *number == row as f32 + 2.0), "row {row} on {name}");
            }
        }
    }
}

#[test]
fn a_part_of_a_matrix_is_summed_and_other_dtypes_are_summed_in_f32() {
    for (name, device) in devices() {
        let x = tensor(&[1.0, 2.0, 4.0, 8.0, 16.0, 32.0], [3, 2], DType::F32, &device);
        assert_eq!(host(row_sums(x.clone().narrow(0, 1, 1))), [12.0], "{name}");
        assert_eq!(host(row_sums(x.swap_dims(0, 1))), [21.0, 42.0], "{name}");
        // bf16 stops counting at 256.
        let ones = tensor(&[1.0; 1000], [1, 1000], DType::BF16, &device);
        assert_eq!(host(row_sums(ones)), [1000.0], "{name}");
    }
}

#[test]
fn the_first_of_the_largest_numbers_is_found() {
    for (name, device) in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for [rows, columns] in [[1, 1], [5, 7], [3, 512], [4, 50_304], [2, 4097]] {
                let mut numbers = values(rows * columns, 5);
                for (row, numbers) in numbers.chunks_mut(columns).enumerate() {
                    // Two that are equal, above all others, in several places of the rows.
                    let first = (row * 7919 + 3) % columns;
                    let second = (first + columns / 2).min(columns - 1);
                    (numbers[first], numbers[second]) = (64.0, 64.0);
                }
                let wanted: Vec<i32> = (0..rows).map(|row| ((row * 7919 + 3) % columns) as i32).collect();
                let found = row_argmax(tensor(&numbers, [rows, columns], dtype, &device));
                let found: Vec<i32> = found.into_data().convert::<i32>().try_into_vec().expect("integers");
                assert_eq!(found, wanted, "{rows} x {columns}, {dtype:?} on {name}");
            }
        }
        let lowest = tensor(&[f32::NEG_INFINITY; 4], [1, 4], DType::F32, &device);
        let found: Vec<i32> = row_argmax(lowest).into_data().convert::<i32>().try_into_vec().expect("integers");
        assert_eq!(found, [0], "{name}");
    }
}
