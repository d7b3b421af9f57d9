use burn::tensor::{DType, Device, Tensor};

use super::{ColumnSet, likeliest};
use crate::testing::{devices, host, tensor, values};

/// Log-probabilities and columns row by row, by sorting in f64.
fn wanted(logits: &[f32], columns: usize, excluded: &[u32], k: usize) -> (Vec<f64>, Vec<f32>) {
    let (mut log_probs, mut places) = (Vec::new(), Vec::new());
    for row in logits.chunks(columns) {
        let possible = |column: &usize| !excluded.contains(&(*column as u32));
        let mut order: Vec<usize> = (0..columns).filter(possible).collect();
        let log_sum = order.iter().map(|&c| f64::from(row[c]).exp()).sum::<f64>().ln();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
        for i in 0..k {
            log_probs.push(order.get(i).map_or(f64::NEG_INFINITY, |&c| f64::from(row[c]) - log_sum));
            places.push(order.get(i).map_or(0.0, |&c| c as f32));
        }
    }
    (log_probs, places)
}

fn found(logits: Tensor<2>, excluded: &[u32], k: usize) -> (Vec<f32>, Vec<f32>) {
    let excluded = ColumnSet::new(excluded.iter().copied(), logits.dims()[1], &logits.device());
    let mut log_probs = host(likeliest(logits, &excluded, k).reshape([-1]));
    let columns = log_probs.split_off(log_probs.len() / 2);
    (log_probs, columns)
}

#[test]
fn the_likeliest_columns_equal_those_of_a_sort_in_f64() {
    for (name, device) in devices() {
        for dtype in [DType::F32, DType::BF16] {
            let shapes = [
                [1, 1, 1],
                [3, 7, 9],
                [2, 130, 8],
                [2, 5001, 12],
                [5, 37_000, 8],
                [1, 4096, 40],
                [3, 2049, 1],
                [7, 50_257, 1],
                [2, 262_144, 1],
            ];
            for [rows, columns, k] in shapes {
                // Values repeat, so that there are ties.
                let numbers: Vec<f32> = values(rows * columns, 3).into_iter().map(|x| 4.0 * x).collect();
                let excluded: Vec<u32> = [0, 1, 36, 4095].into_iter().filter(|c| *c + 1 < columns as u32).collect();
                let (log_probs, places) = wanted(&numbers, columns, &excluded, k);
                let (found, columns_found) = found(tensor(&numbers, [rows, columns], dtype, &device), &excluded, k);

                assert_eq!(columns_found, places, "{rows} x {columns}, {k}, {dtype:?} on {name}");
                for (found, wanted) in found.into_iter().zip(log_probs) {
                    let is_equal = f64::from(found) == wanted || (f64::from(found) - wanted).abs() < 2e-5;
                    assert!(is_equal, "{found}, {wanted}: {rows} x {columns}, {k}, {dtype:?} on {name}");
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    for (name, device) in devices() {
        for (rows, columns, k) in [(70, 1000, 6), (70, 5000, 1)] {
            let logits = tensor(&values(rows * columns, 9), [rows, columns], DType::F32, &device);
            let (log_probs, places) = found(logits.clone(), &[3], k);
            for row in [0, 31, 69] {
                let (alone, place) = found(logits.clone().narrow(0, row, 1), &[3], k);
                let among = |all: &[f32]| all[k * row..k * row + k].iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!((bits(&alone), bits(&place)), (among(&log_probs), among(&places)), "row {row} on {name}");
            }
        }
    }
}

#[test]
fn nan_is_never_chosen() {
    for (name, device) in devices() {
        let logits = tensor(&[f32::NAN, 1.0, 2.0, f32::NAN], [1, 4], DType::F32, &device);
        let (_, columns) = found(logits, &[], 2);
        assert_eq!(columns, [2.0, 1.0], "{name}");

        let mut numbers = vec![f32::NAN; 5000];
        numbers[4500] = 1.0;
        let (_, columns) = found(tensor(&numbers, [1, 5000], DType::F32, &device), &[], 1);
        assert_eq!(columns, [4500.0], "a long row on {name}");
        let all: Vec<u32> = (0..5000).collect();
        let (log_probs, columns) = found(tensor(&vec![0.0; 5000], [1, 5000], DType::F32, &device), &all, 1);
        assert_eq!((log_probs[0], columns[0]), (f32::NEG_INFINITY, 0.0), "a row without possible columns on {name}");
    }
}

#[test]
#[should_panic(expected = "column 5 of 5")]
fn a_set_has_columns_of_its_matrix_only() {
    let _ = ColumnSet::new([5], 5, &Device::flex());
}
