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
            for shape in SHAPES {
                let operands = Operands::new(shape, dtype, &device);
                let (together, n) = (operands.products(0, MANY), shape.1);
                for (first, rows) in [(0, 1), (700, 3), (5, 8), (9, 9), (0, 64), (100, 129), (300, 600)] {
                    for (i, (found, all)) in operands.products(first, rows).iter().zip(&together).enumerate() {
                        let is_equal = *found == all[first * n..(first + rows) * n];
                        assert!(is_equal, "product {i} of {rows} rows, {shape:?}, {dtype:?} on {name}");
                    }
                }
            }
        }
    }
}

/// The operands of products that have [`MANY`] rows.
struct Operands {
    transposed: bool,
    x: Tensor<2>,
    weight: Tensor<2>,
    bias: Tensor<1>,
    residual: Tensor<2>,
}

impl Operands {
    fn new((transposed, n, k): (bool, usize, usize), dtype: DType, device: &Device) -> Self {
        Self {
            transposed,
            x: tensor(&values(MANY * k, 1), [MANY, k], dtype, device),
            weight: tensor(&values(k * n, 2), if transposed { [n, k] } else { [k, n] }, dtype, device),
            bias: tensor(&values(n, 3), [n], dtype, device),
            residual: tensor(&values(MANY * n, 4), [MANY, n], dtype, device),
        }
    }

    /// Returns some rows of a product, of two with a bias and an activation, and of the end of a branch.
    fn products(&self, first: usize, rows: usize) -> Vec<Vec<f32>> {
        let part = |of: &Tensor<2>| of.clone().narrow(0, first, rows);
        let (x, weight, bias) = (part(&self.x), self.weight.clone(), Some(self.bias.clone()));
        if self.transposed {
            return vec![host(linear_transposed(x, weight, None))];
        }
        let plain = linear(x.clone(), weight.clone(), None);
        let activated = |by| linear_activated(x.clone(), weight.clone(), bias.clone(), by, None);
        let (relu, gelu) = (activated(Activation::Relu), activated(Activation::GeluTanh));
        let branch = linear_residual(x.clone(), weight.clone(), bias.clone(), part(&self.residual));
        [plain, relu, gelu, branch].map(host).to_vec()
    }
}
