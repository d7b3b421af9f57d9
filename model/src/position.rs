//! Position vectors, added to the token vectors. Rotary and relative positions work differently: see
//! [`SelfAttention`](crate::SelfAttention) and [`RelativePositions`](crate::RelativePositions).

use burn::module::{Module, Param};
use burn::tensor::{Int, Tensor};
use kiln_kernels::DropoutStream;

use crate::config::Positions;
use crate::init::Init;
use crate::kv_cache::DecoderCache;
use crate::norm::{Norm, dropout, normalized};
use crate::rows::Rows;

/// Sinusoidal or learned positions, in one of the two tables. With other positions both are absent, and only the limit on
/// the length remains.
#[derive(Module, Debug)]
pub struct PositionEncoding {
    /// Learned: `[max_positions, D]`.
    pub table: Option<Param<Tensor<2>>>,
    /// Sinusoidal: `[max_positions, D]`, not trained.
    sinusoids: Option<Tensor<2>>,
    max_positions: usize,
}

impl PositionEncoding {
    pub(crate) fn init(init: &Init) -> Self {
        let shape @ [n, d] = [init.config.max_positions, init.config.d_model];
        let none = Self { table: None, sinusoids: None, max_positions: n };
        match init.config.positions {
            Positions::Learned => Self { table: Some(init.table("table", n)), ..none },
            Positions::Sinusoidal => Self { sinusoids: Some(init.fixed(sinusoids(n, d), shape)), ..none },
            Positions::SinusoidalHalves => {
                Self { sinusoids: Some(init.fixed(sines_then_cosines(n, d), shape)), ..none }
            }
            Positions::SinusoidalFairseq => {
                Self { sinusoids: Some(init.fixed(of_fairseq(n, d, init.config.pad_id as usize + 1), shape)), ..none }
            }
            Positions::Rotary | Positions::Relative => none,
        }
    }

    /// Adds each position's vector.
    ///
    /// # Shapes
    /// - `x`: `[B * T, D]`; result the same
    ///
    /// # Panics
    /// If `x` does not divide into `rows`, or T is above `max_positions`. Explicit positions (see [`Rows::positions`]) are
    /// not checked, because they are on the device.
    pub fn add_to(&self, x: Tensor<2>, rows: &Rows) -> Tensor<2> {
        let [n, d] = x.dims();
        if let Some((ids, table)) = self.per_token(rows) {
            self.check(rows.len(n));
            return x.clone() + kiln_kernels::embedding(ids, table).cast(x.dtype());
        }

        let Some(vectors) = self.shared_by_rows(n, rows) else { return x };
        let [len, _] = vectors.dims();
        let vectors = vectors.cast(x.dtype()).reshape([1, len, d]);
        (x.reshape([rows.batch_size, len, d]) + vectors).reshape([n, d])
    }

    /// Computes the input of the layers: [`Self::add_to`], then `norm` if there is one, then dropout with probability `p` if
    /// there is a stream.
    pub(crate) fn layer_input(
        &self,
        x: Tensor<2>,
        norm: &Option<Norm>,
        p: f64,
        rows: &Rows,
        stream: Option<&DropoutStream>,
    ) -> Tensor<2> {
        dropout(normalized(norm, self.add_to(x, rows)), p, stream)
    }

    /// The position of each token and the table of vectors, if `rows` has explicit positions and the model adds vectors.
    pub(crate) fn per_token(&self, rows: &Rows) -> Option<(Tensor<1, Int>, Tensor<2>)> {
        rows.positions.clone().zip(self.vectors())
    }

    /// The vectors that are added to every row alike, `[T, D]` with T = `n / B`; None if positions are not vectors.
    ///
    /// # Panics
    /// As [`Self::add_to`].
    pub(crate) fn shared_by_rows(&self, n: usize, rows: &Rows) -> Option<Tensor<2>> {
        let len = rows.len(n);
        self.check(len);
        self.vectors().map(|table| table.narrow(0, 0, len))
    }

    /// Adds the vector of each row's next position.
    ///
    /// # Shapes
    /// - `x`: `[B, D]`; result the same
    ///
    /// # Panics
    /// If the next position of the longest row is not below `max_positions`.
    pub(crate) fn add_step(&self, x: Tensor<2>, cache: &DecoderCache) -> Tensor<2> {
        let ([_, d], len) = (x.dims(), cache.len());
        self.check(len + 1);
        let Some(table) = self.vectors() else { return x };
        let vectors = match cache.lengths() {
            Some(lengths) => kiln_kernels::embedding(lengths.clone(), table),
            None => table.narrow(0, len, 1).reshape([1, d]),
        };
        x.clone() + vectors.cast(x.dtype())
    }

    fn vectors(&self) -> Option<Tensor<2>> {
        self.table.as_ref().map(Param::val).or_else(|| self.sinusoids.clone())
    }

    /// # Panics
    /// If `len` is above `max_positions`.
    pub(crate) fn check(&self, len: usize) {
        assert!(len <= self.max_positions, "{len} positions, but the model has {}", self.max_positions);
    }
}

/// `sin(p / 10000^(2i / D))` in feature 2i and the cosine in 2i + 1 (Vaswani et al. 2017, section 3.5), row by row.
fn sinusoids(n: usize, d: usize) -> Vec<f32> {
    let angle = |p: usize, i: usize| p as f64 / 10_000_f64.powf((i / 2 * 2) as f64 / d as f64);
    let value = |p: usize, i: usize| if i.is_multiple_of(2) { angle(p, i).sin() } else { angle(p, i).cos() };
    (0..n).flat_map(|p| (0..d).map(move |i| value(p, i) as f32)).collect()
}

/// `sin((p + first) / 10000^(i / (D / 2 - 1)))` in feature i and the cosine in D / 2 + i, row by row. Source:
/// `SinusoidalPositionalEmbedding` of fairseq, where the padding's id is its position, and the next one the first. The last of an odd
/// number of features is 0.
fn of_fairseq(n: usize, d: usize, first: usize) -> Vec<f32> {
    let half = d / 2;
    let angle = |p: usize, i: usize| (p + first) as f64 / 10_000_f64.powf(i as f64 / (half - 1) as f64);
    let row = |p: usize| (0..half).map(move |i| angle(p, i).sin()).chain((0..half).map(move |i| angle(p, i).cos()));
    let row = |p: usize| row(p).chain((2 * half < d).then_some(0.0));
    (0..n).flat_map(row).map(|x| x as f32).collect()
}

/// The vectors of the first `n` positions of Marian: all sines before all cosines.
pub(crate) fn sines_then_cosines(n: usize, d: usize) -> Vec<f32> {
    halves(&sinusoids(n, d), d)
}

/// Reorders each row: all sines, then all cosines.
fn halves(interleaved: &[f32], d: usize) -> Vec<f32> {
    interleaved
        .chunks_exact(d)
        .flat_map(|row| row.iter().step_by(2).chain(row.iter().skip(1).step_by(2)).copied())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{halves, of_fairseq, sinusoids};

    #[test]
    fn wavelengths_grow_from_two_pi_to_ten_thousand() {
        let table = sinusoids(3, 4);
        let expected =
            [0.0, 1.0, 0.0, 1.0, 0.841_471, 0.540_302, 0.01, 0.999_95, 0.909_297, -0.416_147, 0.019_999, 0.9998];
        for (found, wanted) in table.iter().zip(expected) {
            assert!((found - wanted).abs() < 1e-6, "{table:?}");
        }
    }

    #[test]
    fn positions_of_fairseq_begin_behind_the_padding_and_end_at_ten_thousand() {
        let expected = [0.909_297, 0.000_2, -0.416_147, 1.0, 0.141_12, 0.000_3, -0.989_992, 1.0];
        for (found, wanted) in of_fairseq(2, 4, 2).iter().zip(expected) {
            assert!((found - wanted).abs() < 1e-6, "{:?}", of_fairseq(2, 4, 2));
        }
    }

    #[test]
    fn halves_hold_sines_then_cosines() {
        assert_eq!(halves(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 4), [1.0, 3.0, 2.0, 4.0, 5.0, 7.0, 6.0, 8.0]);
    }
}
