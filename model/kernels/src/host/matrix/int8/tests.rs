use super::dot::{Instructions, Operands, ROWS};
use super::*;
use crate::host::matrix::int8_product;

/// Numbers between -1 and 1 without a pattern.
fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// The numbers of a row or column as int8 keeps them, by the definition.
fn rounded(values: &[f32]) -> Vec<f64> {
    let largest = values.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    if largest == 0.0 {
        return vec![0.0; values.len()];
    }
    let whole = |x: &f32| f64::from((x * (127.0 / largest)).round_ties_even());
    values.iter().map(|x| whole(x) * f64::from(largest / 127.0)).collect()
}

#[test]
fn products_are_those_of_rounded_operands() {
    for (m, n, k) in [(1, 1, 1), (3, 70, 9), (13, 33, 128), (40, 257, 515), (600, 64, 36)] {
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let columns: Vec<Vec<f64>> =
            (0..n).map(|j| rounded(&b.iter().skip(j).step_by(n).copied().collect::<Vec<_>>())).collect();
        let transposed: Vec<f32> = (0..n).flat_map(|j| b.iter().skip(j).step_by(n).copied()).collect();

        for kind in [Int8::Weights, Int8::Both] {
            for b in [Matrix::new(&b, [k, n], n), Matrix::new(&transposed, [n, k], k).transposed()] {
                let weights = Int8Matrix::new(b, kind);
                let found = int8_product(Matrix::new(&a, [m, k], k), &weights, |i, columns, row| {
                    row.iter_mut().zip(columns).for_each(|(x, j)| *x += (i * n + j) as f32);
                });
                for (at, found) in found.iter().enumerate() {
                    let (row, column) = (&a[at / n * k..][..k], &columns[at % n]);
                    let row = match kind {
                        Int8::Weights => row.iter().copied().map(f64::from).collect(),
                        Int8::Both => rounded(row),
                    };
                    let expected = at as f64 + row.iter().zip(column).map(|(a, b)| a * b).sum::<f64>();
                    let tolerance = 1e-6 * (k as f64 + expected.abs());
                    assert!(
                        (f64::from(*found) - expected).abs() < tolerance,
                        "{kind:?}, {at} of {m} x {n} x {k}: {found}, not {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    let (m, n, k) = (100, 300, 260);
    let (a, b) = (numbers(m * k, 3), numbers(k * n, 4));
    for kind in [Int8::Weights, Int8::Both] {
        let weights = Int8Matrix::new(Matrix::new(&b, [k, n], n), kind);
        let product = |a: &[f32]| int8_product(Matrix::new(a, [a.len() / k, k], k), &weights, |_, _, _| ());
        let together = product(&a);
        for rows in [0..1, 5..12, 40..100] {
            assert_eq!(
                product(&a[rows.start * k..rows.end * k]),
                together[rows.start * n..rows.end * n],
                "{kind:?}, {rows:?}"
            );
        }
    }
}

#[test]
fn rows_that_are_not_finite_are_seen_and_zeros_stay() {
    let weights = Int8Matrix::new(Matrix::new(&[1.0, -2.0, 0.5, 1.0], [2, 2], 2), Int8::Both);
    let rows = [f32::NAN, 1.0, f32::INFINITY, 0.0, 0.0, 0.0, 1e-39, 0.0, 1.0, 2.0];
    let found = int8_product(Matrix::new(&rows, [5, 2], 2), &weights, |_, _, _| ());
    assert!(found[..4].iter().all(|x| x.is_nan()), "{found:?}");
    assert_eq!(found[4..8], [0.0; 4]);
    assert!((found[8] - 2.0).abs() < 0.02 && found[9].abs() < 0.02, "{found:?}");

    for kind in [Int8::Weights, Int8::Both] {
        let weights = Int8Matrix::new(Matrix::new(&[f32::NAN, 0.0, 1.0, 0.0], [2, 2], 2), kind);
        let found = int8_product(Matrix::new(&[1.0, 1.0], [1, 2], 2), &weights, |_, _, _| ());
        assert!(found[0].is_nan() && found[1] == 0.0, "{kind:?}: {found:?}");
    }
}

#[test]
fn all_instructions_give_the_same_sums() {
    let (groups, all) = (37, Instructions::all());
    println!("instructions of this machine: {all:?}");
    for instructions in all {
        let columns = instructions.columns();
        let a: Vec<i8> = numbers(ROWS * GROUP * groups, 5).iter().map(|x| (x * 127.0) as i8).collect();
        let b: Vec<u8> = numbers(groups * columns * GROUP, 6).iter().map(|x| ((x + 1.0) * 127.5) as u8).collect();
        for rows in 1..=instructions.rows() {
            let mut sums = vec![0; rows * columns];
            let operands = Operands { rows, groups, a: (a.as_ptr(), GROUP * groups), b: b.as_ptr() };
            #[expect(unsafe_code, reason = "the loop takes pointers")]
            // SAFETY: the vectors have these numbers, and the machine these instructions.
            unsafe {
                instructions.sums(&operands, &mut sums);
            }
            for (at, found) in sums.iter().enumerate() {
                let (i, j) = (at / columns, at % columns);
                let term = |l: usize| {
                    i32::from(a[i * GROUP * groups + l]) * i32::from(b[(l / GROUP * columns + j) * GROUP + l % GROUP])
                };
                assert_eq!(*found, (0..GROUP * groups).map(term).sum::<i32>(), "{instructions:?}, {rows} rows, {at}");
            }
        }
    }
}

#[test]
fn extreme_numbers_do_not_exceed_the_sums() {
    let (k, n) = (MOST_TERMS, 2);
    let b: Vec<f32> = (0..k * n).map(|i| if i % n == 0 { 1.0 } else { -1.0 }).collect();
    let weights = Int8Matrix::new(Matrix::new(&b, [k, n], n), Int8::Both);
    let found = int8_product(Matrix::new(&vec![1.0; k], [1, k], k), &weights, |_, _, _| ());
    assert!((found[0] - k as f32).abs() < 0.1 && (found[1] + k as f32).abs() < 0.1, "{found:?}");
}
