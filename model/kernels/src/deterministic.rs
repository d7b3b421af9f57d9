//! Sums whose order is fixed, for runs that must repeat bit for bit.
//!
//! The kernels of this crate give the same bits in every run, whatever [`Settings::deterministic`] says. Floating-point
//! sums have a fixed order; the only atomics are integer counts in the gradient of an embedding, whose result does not
//! depend on their order. Products computed by the backend are launched with strategies named in this crate.
//!
//! What remains is the sum of the rows' losses. It is reported, and no gradient depends on its value. The backend's own
//! reduction is autotuned, and some of its candidates add floats with atomics.

use burn::tensor::Tensor;

use crate::linear::linear;
use crate::settings::Settings;

/// Returns the sum of all elements of `x`, `[1, M]`, as `[1]`.
pub(crate) fn sum(x: Tensor<2>) -> Tensor<1> {
    if Settings::current().deterministic { sum_in_order(x) } else { x.sum() }
}

/// Numbers that one thread adds, one after the other.
const CHUNK: usize = 128;

/// Sums chunks, then the sums of the chunks. Each sum is a product with ones, whose kernel is not chosen by autotune.
fn sum_in_order(x: Tensor<2>) -> Tensor<1> {
    let n = x.dims()[1];
    let ones = |n: usize| Tensor::ones([n, 1], (&x.device(), x.dtype()));
    if n <= CHUNK {
        return linear(x.clone(), ones(n), None).reshape([1]);
    }

    let chunks = n / CHUNK;
    let whole = x.clone().narrow(1, 0, chunks * CHUNK).reshape([chunks, CHUNK]);
    let sums = linear(whole, ones(CHUNK), None).reshape([1, chunks]);
    let total = sum_in_order(sums);
    if chunks * CHUNK == n {
        return total;
    }

    total + sum_in_order(x.narrow(1, chunks * CHUNK, n - chunks * CHUNK))
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
