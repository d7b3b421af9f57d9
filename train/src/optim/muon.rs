//! Muon (Jordan et al. 2024) with the scaling of Moonlight (Liu et al. 2025) and the coefficients of Polar Express (Amsel et al. 2025).
//!
//! For a weight matrix `W` of `r` rows and `c` columns with the gradient `G`:
//!
//! ```text
//! M = momentum * M + G
//! O = orthogonal(G + momentum * M)
//! W = (1 - rate * decay) * W - rate * 0.2 * sqrt(max(r, c)) * O
//! ```
//!
//! `orthogonal` replaces the singular values of a matrix by numbers near 1. The factor gives an update the root mean square that AdamW's
//! usually has, so that both take the same rates and decays.

use burn::tensor::{DType, FloatDType, Tensor};
use kiln_kernels::optim::{Flat, Part, Place, StepNumbers, gather, view};
use kiln_kernels::{batched_product, batched_product_transposed, row_sums};

use super::optimizer::{Cut, Matrix, Optimizer, Section, SectionState};
use crate::config::OptimConfig;

/// Decay of the sum of gradients.
const MOMENTUM: f32 = 0.95;
/// Root mean square of an update at the rate 1, as AdamW's usually has it.
const UPDATE_RMS: f64 = 0.2;
/// `x = a x + b x^3 + c x^5` of the singular values, once each: the optimal polynomials for values from 0.001 to 1, made safe for bf16.
const POLYNOMIALS: [[f32; 3]; 5] = [
    [8.156_554, -22.483_293, 15.878_77],
    [4.042_93, -2.808_917_5, 0.500_017_8],
    [3.891_667_8, -2.772_484_2, 0.506_064_8],
    [3.285_753_7, -2.368_129_5, 0.464_490_24],
    [2.346_541_2, -1.709_782_8, 0.423_235_5],
];
/// The first polynomial takes singular values below 1, rounding included.
const SAFETY: f32 = 1.02;
/// Numbers of the matrices that are multiplied together. More would take memory, and the products are large enough.
const TOGETHER: usize = 1 << 26;

/// Muon with the weight decay of a run.
#[derive(Debug, Clone, Copy)]
pub struct Muon {
    weight_decay: f64,
    /// Dtype of the matrix products.
    products: FloatDType,
}

impl Muon {
    /// Takes the weight decay of `config` times `decay`. The products have the precision of a model that computes in `dtype`, but never f16, whose
    /// range is too small.
    pub(crate) fn new(config: &OptimConfig, decay: f64, dtype: FloatDType) -> Self {
        let products = if dtype == FloatDType::F32 { FloatDType::F32 } else { FloatDType::BF16 };
        Self { weight_decay: config.weight_decay * decay, products }
    }

    /// The updates of all matrices of a section at the rate 1, laid out as the section.
    fn updates(&self, section: &Section, direction: &Tensor<1>) -> Tensor<1> {
        let mut updates: Vec<Part> = Vec::new();
        for run in runs(&section.matrices) {
            let (wide, norms) = run.wide_matrices_and_norms(direction);
            let scale = UPDATE_RMS * (run.long() as f64).sqrt();
            let found = orthogonal(wide, norms, self.products) * scale;
            updates.extend((0..run.n).map(|i| run.as_stored(found.clone().narrow(0, i, 1).squeeze_dim(0)).into()));
        }
        let places: Vec<Place> = section.matrices.iter().map(Matrix::place).collect();
        gather(updates, &places, section.len(), DType::F32, &direction.device(), None).values
    }
}

impl Optimizer for Muon {
    fn state(&self) -> &'static [&'static str] {
        &["momentum"]
    }

    fn cut(&self) -> Cut {
        Cut::Matrices
    }

    fn coefficients(&self, rate: f64, _update: u64) -> [f32; 3] {
        [rate as f32, (rate * self.weight_decay) as f32, 0.0]
    }

    fn step(&self, section: &Section, state: SectionState, gradient: Flat, numbers: &StepNumbers) -> SectionState {
        let [rate, decay] = [0, 1].map(|i| numbers.coefficient(i));
        let gradient = gradient.values.cast(FloatDType::F32) * numbers.gradient_factor();
        let momentum = state.named[0].clone() * MOMENTUM + gradient.clone();
        let direction = gradient + momentum.clone() * MOMENTUM;
        let update = self.updates(section, &direction) * rate;
        let master = state.master.clone() * (-decay + 1.0) - update;
        state.replaced(master, vec![momentum], numbers)
    }
}

/// Matrices of equal shape, one behind the other.
struct Run {
    first: Matrix,
    n: usize,
}

impl Run {
    fn is_tall(&self) -> bool {
        self.first.shape[0] > self.first.shape[1]
    }

    /// The longer side of a matrix.
    fn long(&self) -> usize {
        self.first.shape[0].max(self.first.shape[1])
    }

    /// Turns a matrix whose rows are the longer side into one as it is stored, and back.
    fn as_stored(&self, matrix: Tensor<2>) -> Tensor<2> {
        if self.is_tall() { matrix.transpose() } else { matrix }
    }

    /// The matrices of this run in a section's numbers, each with rows as long as its longer side, `[n, short, long]`, and their Frobenius
    /// norms, `[n]`. The square of such rows is the smaller one.
    fn wide_matrices_and_norms(&self, numbers: &Tensor<1>) -> (Tensor<3>, Tensor<1>) {
        let (n, first) = (self.n, self.first.place());
        let (padded, chunks) = (first.padded_len(), first.n_chunks());
        let places: Vec<Place> = (0..n).map(|i| Place { offset: i * padded, ..first }).collect();
        let stored = places.iter().map(|place| view(numbers, first.offset + place.offset, self.first.shape));
        let parts = stored.map(|matrix| self.as_stored(matrix).into()).collect();
        let run = gather(parts, &places, n * padded, DType::F32, &numbers.device(), None);

        let norms = row_sums(run.squares().clone().reshape([n, chunks])).sqrt();
        let matrices = run.values.reshape([n, padded]).narrow(1, 0, first.len);
        (matrices.reshape([n, first.len / self.long(), self.long()]), norms)
    }
}

/// Joins neighbours of equal shape, as many as are multiplied together.
fn runs(matrices: &[Matrix]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for matrix in matrices {
        let [rows, columns] = matrix.shape;
        let joins = |run: &&mut Run| run.first.shape == matrix.shape && (run.n + 1) * rows * columns <= TOGETHER;
        match runs.last_mut().filter(joins) {
            Some(run) => run.n += 1,
            None => runs.push(Run { first: *matrix, n: 1 }),
        }
    }
    runs
}

/// Replaces the singular values of each matrix by numbers near 1, with products in `dtype`. The result of a matrix does not depend on the
/// others.
///
/// # Shapes
/// - `wide`, result: `[n, short, long]`, f32
/// - `norms`: `[n]`, the Frobenius norms
fn orthogonal(wide: Tensor<3>, norms: Tensor<1>, dtype: FloatDType) -> Tensor<3> {
    let [n, ..] = wide.dims();
    let mut x = (wide / (norms.reshape([n, 1, 1]) * SAFETY + 1e-6)).cast(dtype);
    for [a, b, c] in POLYNOMIALS {
        let square = batched_product_transposed(x.clone(), x.clone());
        let factor = square.clone() * b + batched_product(square.clone(), square) * c;
        x = x.clone() * a + batched_product(factor, x);
    }
    x.cast(FloatDType::F32)
}

#[cfg(test)]
mod tests;
