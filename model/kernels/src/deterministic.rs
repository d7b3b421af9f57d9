//! One switch for results that are the same in every run, bit for bit.
//!
//! The kernels of this crate add in a fixed order and use no atomics, whatever the switch says; products that the backend
//! computes are launched with strategies named here. What is left is the sum of the losses of all rows, a number that is only
//! looked at: the backend's own is autotuned, and some of its candidates add with atomics.

use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Tensor;

use crate::linear::linear;

static DETERMINISTIC: AtomicBool = AtomicBool::new(false);

/// Makes every sum take a fixed order, in the whole process, from the next call on. Operators that run their reference on a GPU
/// (attention where [`attention_is_fused`](crate::attention_is_fused) says no) still depend on what the backend's autotune prefers.
pub fn set_deterministic(deterministic: bool) {
    DETERMINISTIC.store(deterministic, Ordering::Relaxed);
}

/// The sum of all elements of `x`, `[1, M]`, as `[1]`.
pub(crate) fn sum(x: Tensor<2>) -> Tensor<1> {
    if DETERMINISTIC.load(Ordering::Relaxed) { sum_in_order(x) } else { x.sum() }
}

/// Numbers that one unit adds, one after the other.
const RUN: usize = 128;

/// As products with ones, whose kernel is not chosen by time: the sums of runs, and the sum of those.
fn sum_in_order(x: Tensor<2>) -> Tensor<1> {
    let n = x.dims()[1];
    let ones = |n: usize| Tensor::ones([n, 1], (&x.device(), x.dtype()));
    if n <= RUN {
        return linear(x.clone(), ones(n), None).reshape([1]);
    }
    let runs = n / RUN;
    let sums = linear(x.clone().narrow(1, 0, runs * RUN).reshape([runs, RUN]), ones(RUN), None).reshape([1, runs]);
    let total = sum_in_order(sums);
    if runs * RUN == n {
        return total;
    }
    total + sum_in_order(x.narrow(1, runs * RUN, n - runs * RUN))
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;

    use super::*;
    use crate::testing::{devices, host, tensor, values};

    #[test]
    fn a_sum_in_order_is_the_sum_and_has_its_gradient() {
        for (name, device) in devices() {
            for n in [1, 7, 128, 4096, 5001, 16_390] {
                let numbers = values(n, 3);
                let x = tensor(&numbers, [1, n], DType::F32, &device.clone().autodiff()).require_grad();
                let found = sum_in_order(x.clone());
                let wanted: f64 = numbers.iter().map(|&x| f64::from(x)).sum();
                assert!((f64::from(host(found.clone())[0]) - wanted).abs() < 1e-2, "{n} on {name}");
                assert_eq!(host(found.clone()), host(sum_in_order(x.clone())), "again on {name}");
                let gradient = x.grad(&(found * 3.0).backward()).expect("a gradient");
                assert_eq!(host(gradient), vec![3.0; n], "{n} on {name}");
            }
        }
    }
}
