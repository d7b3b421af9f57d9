//! Products whose rows do not depend on each other, as a search wants them.

use super::*;
use crate::activation::Activation;
use crate::settings::Settings;
use crate::{linear_activated, linear_residual};

/// Rows of the product of which the others are parts: enough for every kernel and tile.
const MANY: usize = 1000;

/// The shapes of a small Transformer's products, with their layouts.
const SHAPES: [(bool, usize, usize); 5] =
    [(false, 512, 512), (false, 1536, 512), (false, 2048, 512), (false, 512, 2048), (true, 5000, 512)];

#[test]
fn a_row_has_the_same_bits_among_any_number_of_others() {
    let _independent = Settings { independent_rows: true, ..Settings::current() }.install();
    for (name, device) in devices() {
        for dtype in if name == "cpu" { vec![DType::F32] } else { vec![DType::BF16, DType::F16, DType::F32] } {
            for (transposed, n, k) in SHAPES {
                let x = tensor(&values(MANY * k, 1), [MANY, k], dtype, &device);
                let weight = tensor(&values(k * n, 2), if transposed { [n, k] } else { [k, n] }, dtype, &device);
                let bias = tensor(&values(n, 3), [n], dtype, &device);
                let residual = tensor(&values(MANY * n, 4), [MANY, n], dtype, &device);
                // A product, one with a bias and an activation, and the end of a branch.
                let all_of = |first: usize, rows: usize| {
                    let part = |of: &Tensor<2>| of.clone().narrow(0, first, rows);
                    let (x, weight) = (part(&x), weight.clone());
                    if transposed {
                        return vec![host(linear_transposed(x, weight, None))];
                    }
                    let plain = linear(x.clone(), weight.clone(), None);
                    let relu = linear_activated(x.clone(), weight.clone(), Some(bias.clone()), Activation::Relu, None);
                    let gelu =
                        linear_activated(x.clone(), weight.clone(), Some(bias.clone()), Activation::GeluTanh, None);
                    let branch = linear_residual(x, weight, Some(bias.clone()), part(&residual));
                    [plain, relu, gelu, branch].map(host).to_vec()
                };
                let together = all_of(0, MANY);
                for (first, rows) in [(0, 1), (700, 3), (5, 8), (9, 9), (0, 64), (100, 129), (300, 600)] {
                    for (i, (found, all)) in all_of(first, rows).iter().zip(&together).enumerate() {
                        assert!(
                            *found == all[first * n..(first + rows) * n],
                            "product {i} of {rows} rows, {n} x {k}, {dtype:?} on {name}"
                        );
                    }
                }
            }
        }
    }
}
