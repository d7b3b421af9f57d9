use super::*;

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 7 % 11) as f32 - 5.0).collect()
}

#[test]
fn products_equal_the_definition_in_every_layout() {
    let (m, n, k) = (5, 7, 9);
    let (a, b) = (numbers(100), numbers(200));
    for (a, b) in [
        (Matrix::new(&a, [m, k], 11), Matrix::new(&b, [k, n], 13)),
        (Matrix::new(&a, [m, k], k), Matrix::new(&b, [n, k], 12).transposed()),
        (Matrix::new(&a, [k, m], 8).transposed(), Matrix::new(&b, [k + 3, n], n).rows(2..k + 2)),
    ] {
        let mut found = vec![100.0; m * 8];
        multiply(&mut MatrixMut::new(&mut found, [m, n], 8), true, 0.5, a, b);
        let at = |x: Matrix<'_>, i: usize, j: usize| x.values[i * x.strides[0] + j * x.strides[1]];
        for (i, row) in found.chunks(8).enumerate() {
            for (j, found) in row[..n].iter().enumerate() {
                let product: f32 = (0..k).map(|l| at(a, i, l) * at(b, l, j)).sum();
                assert_eq!(*found, 100.0 + 0.5 * product, "{i}, {j}");
            }
            assert_eq!(row[n], 100.0, "right of the matrix");
        }
    }
}

#[test]
fn tiles_make_up_the_product() {
    for (m, n, k) in [(1, 1, 5), (300, 1000, 17), (1024, 128, 40), (129, 513, 3), (1000, 70, 16)] {
        let (a, b) = (numbers(m * k), numbers(n * k));
        let (a, b) = (Matrix::new(&a, [m, k], k), Matrix::new(&b, [n, k], k).transposed());
        let mut expected = vec![0.0; m * n];
        multiply(&mut MatrixMut::new(&mut expected, [m, n], n), false, 1.0, a, b);

        let found =
            product(a, b, |i, columns, row| row.iter_mut().zip(columns).for_each(|(x, j)| *x += (i * n + j) as f32));
        let expected = expected.iter().enumerate().map(|(i, x)| x + i as f32);
        assert!(found.iter().copied().eq(expected), "{m}, {n}, {k}");
    }
    assert_eq!(product(Matrix::new(&[], [2, 0], 0), Matrix::new(&[], [0, 3], 3), |_, _, _| ()), [0.0; 6]);
    assert!(product(Matrix::new(&[], [0, 3], 3), Matrix::new(&[0.0; 6], [3, 2], 2), |_, _, _| ()).is_empty());
}

#[test]
#[should_panic(expected = "in 11 numbers")]
fn a_matrix_outside_its_slice_is_refused() {
    let _ = Matrix::new(&[0.0; 11], [3, 4], 4);
}

#[test]
#[should_panic(expected = "is not [2, 2]")]
fn shapes_that_do_not_fit_are_refused() {
    let x = [0.0; 6];
    multiply(
        &mut MatrixMut::new(&mut [0.0; 4], [2, 2], 2),
        false,
        1.0,
        Matrix::new(&x, [2, 3], 3),
        Matrix::new(&x, [2, 3], 3),
    );
}

/// Numbers whose products have to be rounded.
fn fractions(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + 13) % 1009) as f32 / 1009.0 - 0.4).collect()
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    for (n, k) in [(1, 1), (37, 50), (130, 700), (300, 1100)] {
        let m = 530;
        let (a, b) = (fractions(m * k), fractions(n * k));
        for is_transposed in [false, true] {
            let b = if is_transposed { Matrix::new(&b, [n, k], k).transposed() } else { Matrix::new(&b, [k, n], n) };
            let all = product(Matrix::new(&a, [m, k], k), b, |_, _, _| ());
            let double = |i: usize, j: usize| -> f64 {
                let at = |l: usize| b.values[l * b.strides[0] + j * b.strides[1]];
                (0..k).map(|l| f64::from(a[i * k + l]) * f64::from(at(l))).sum()
            };
            assert!((f64::from(all[m * n - 1]) - double(m - 1, n - 1)).abs() < 1e-4 * k as f64);

            for rows in [0..1, 3..5, 100..115, 200..233, 300..364, 17..117, 5..529] {
                let part = Matrix::new(&a, [m, k], k).rows(rows.clone());
                let found = product(part, b, |_, _, _| ());
                assert!(found == all[rows.start * n..rows.end * n], "{rows:?} of {n} x {k}, {is_transposed}");
                let mut on_one_thread = vec![0.0; found.len()];
                product_into(&mut MatrixMut::new(&mut on_one_thread, [rows.len(), n], n), part, b);
                assert!(found == on_one_thread, "{rows:?} of {n} x {k}, {is_transposed}");
            }
        }
        // Both layouts of the right operand, and of the left one.
        let b = fractions(n * k);
        let transposed: Vec<f32> = (0..n * k).map(|i| b[i % k * n + i / k]).collect();
        let expected = product(Matrix::new(&a, [m, k], k), Matrix::new(&b, [k, n], n), |_, _, _| ());
        let b = Matrix::new(&transposed, [n, k], k).transposed();
        assert!(product(Matrix::new(&a, [m, k], k), b, |_, _, _| ()) == expected, "{n} x {k}");
    }
}
