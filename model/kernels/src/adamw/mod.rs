//! AdamW on flat tensors (Loshchilov and Hutter 2019, with PyTorch's semantics).

#[cfg(test)]
mod tests;

use burn::tensor::Tensor;

/// One parameter group's optimizer state: every parameter of the group end to end, in f32.
#[derive(Debug, Clone)]
pub struct AdamWState {
    /// Master weights, `[n]`.
    pub master: Tensor<1>,
    /// First moment, `[n]`.
    pub m: Tensor<1>,
    /// Second moment, `[n]`.
    pub v: Tensor<1>,
}

impl AdamWState {
    /// A fresh state around `master` (`[n]`, f32): both moments zero.
    pub fn new(master: Tensor<1>) -> Self {
        let (m, v) = (master.zeros_like(), master.zeros_like());
        Self { master, m, v }
    }
}

/// What one step is taken with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWHyper {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment, outside the root.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Number of this step, counted from 1: bias correction depends on it.
    pub step: u64,
}

/// One AdamW step over a whole group:
/// `g = scale * grad`, `master *= 1 - lr * wd`, `m = b1 m + (1 - b1) g`, `v = b2 v + (1 - b2) g^2`,
/// `master -= lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps)`.
///
/// # Shapes
/// - `grad`: `[n]`, f32
/// - `scale`: `[1]`, f32; see [`clip_coefficient`]
///
/// # Panics
/// If `grad` and the state differ in length.
pub fn adamw_step(state: AdamWState, grad: Tensor<1>, scale: Tensor<1>, hyper: &AdamWHyper) -> AdamWState {
    let AdamWState { master, m, v } = state;
    assert_eq!(grad.dims(), master.dims(), "the gradient does not have the length of the weights");
    let AdamWHyper { lr, beta1, beta2, eps, weight_decay, step } = *hyper;
    let correction1 = 1.0 - beta1.powi(step as i32);
    let correction2 = 1.0 - beta2.powi(step as i32);
    let g = grad * scale;
    let m = m * beta1 + g.clone() * (1.0 - beta1);
    let v = v * beta2 + g.clone() * g * (1.0 - beta2);
    let denominator = v.clone().sqrt() / correction2.sqrt() + eps;
    let master = master * (1.0 - lr * weight_decay) - m.clone() * (lr / correction1) / denominator;
    AdamWState { master, m, v }
}

/// Sum of the squares of `x` (`[n]`, f32), `[1]`.
///
/// In two stages of fixed shape: the CPU backend divides one large sum among threads in an order that changes from run to
/// run, and with it the last bits of every weight.
pub fn sum_of_squares(x: Tensor<1>) -> Tensor<1> {
    const ROW: usize = 1 << 16;
    let [n] = x.dims();
    let in_rows = n / ROW * ROW;
    let squares = x.clone() * x;
    if in_rows == 0 {
        return squares.sum();
    }
    let rows = squares.clone().slice(0..in_rows).reshape([n / ROW, ROW]).sum_dim(1).sum();
    if in_rows == n { rows } else { rows + squares.slice(in_rows..n).sum() }
}

/// What to multiply gradients with so that their global norm is at most `max_norm`: `min(1, max_norm / (norm + 1e-6))`,
/// as `torch.nn.utils.clip_grad_norm_`. A `max_norm` of 0 switches clipping off.
///
/// # Shapes
/// - `norm`: `[1]`, f32; result `[1]`
pub fn clip_coefficient(norm: Tensor<1>, max_norm: f64) -> Tensor<1> {
    if max_norm == 0.0 {
        return norm.ones_like();
    }
    ((norm + 1e-6).recip() * max_norm).clamp_max(1.0)
}
