//! Where a token stands: a vector per position, added to the token's.

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use crate::config::Positions;
use crate::init::Init;

/// Sinusoidal or learned positions; exactly one of the two tables is there.
#[derive(Module, Debug)]
pub struct PositionEncoding {
    /// Learned: `[max_positions, D]`.
    pub table: Option<Param<Tensor<2>>>,
    /// Sinusoidal: `[max_positions, D]`, not trained.
    sinusoids: Option<Tensor<2>>,
}

impl PositionEncoding {
    pub(crate) fn init(init: &Init) -> Self {
        let shape @ [n, d] = [init.config.max_positions, init.config.d_model];
        match init.config.positions {
            Positions::Learned => Self { table: Some(init.table("table", n)), sinusoids: None },
            Positions::Sinusoidal => Self { table: None, sinusoids: Some(init.fixed(sinusoids(n, d), shape)) },
        }
    }

    /// Adds positions `first..first + T` to each row of the batch.
    ///
    /// # Shapes
    /// - `x`: `[B * T, D]`; result the same
    ///
    /// # Panics
    /// If the last position is not below `max_positions`.
    pub fn add_to(&self, x: Tensor<2>, batch_size: usize, first: usize) -> Tensor<2> {
        let table = match (&self.table, &self.sinusoids) {
            (Some(learned), _) => learned.val(),
            (None, Some(fixed)) => fixed.clone(),
            (None, None) => unreachable!("one of the two tables is made at the start"),
        };
        let ([rows, d], [max_positions, _]) = (x.dims(), table.dims());
        let len = rows / batch_size;
        assert!(first + len <= max_positions, "{} positions, but the model has {max_positions}", first + len);
        let positions = table.narrow(0, first, len).cast(x.dtype()).reshape([1, len, d]);
        (x.reshape([batch_size, len, d]) + positions).reshape([rows, d])
    }
}

/// `sin(p / 10000^(2i / D))` in feature 2i and the cosine in 2i + 1 (Vaswani et al. 2017, section 3.5), row by row.
fn sinusoids(n: usize, d: usize) -> Vec<f32> {
    let angle = |p: usize, i: usize| p as f64 / 10_000_f64.powf((i / 2 * 2) as f64 / d as f64);
    let value = |p: usize, i: usize| if i.is_multiple_of(2) { angle(p, i).sin() } else { angle(p, i).cos() };
    (0..n).flat_map(|p| (0..d).map(move |i| value(p, i) as f32)).collect()
}

#[cfg(test)]
mod tests {
    use super::sinusoids;

    #[test]
    fn wavelengths_grow_from_two_pi_to_ten_thousand() {
        let table = sinusoids(3, 4);
        let expected =
            [0.0, 1.0, 0.0, 1.0, 0.841_471, 0.540_302, 0.01, 0.999_95, 0.909_297, -0.416_147, 0.019_999, 0.9998];
        for (found, wanted) in table.iter().zip(expected) {
            assert!((found - wanted).abs() < 1e-6, "{table:?}");
        }
    }
}
