//! Products in plain Burn operations.

use burn::tensor::{DType, Tensor};

use super::batched_product;

/// Returns `x · weight + bias`. The product is the backend's own, rounded to the dtype of `x` before the bias is added in f32.
pub(crate) fn linear(x: Tensor<2>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
    let (dtype, [m, _], [_, n]) = (x.dtype(), x.dims(), weight.dims());
    let product = batched_product(x.unsqueeze(), weight.unsqueeze()).reshape([m, n]);
    match bias {
        Some(bias) => (product.cast(DType::F32) + bias.cast(DType::F32).unsqueeze()).cast(dtype),
        None => product,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activation::Activation;
    use crate::linear::linear_activated;
    use crate::testing::{assert_close, devices, host, tensor, values};

    #[test]
    fn kernels_and_plain_operations_agree() {
        for (name, device) in devices() {
            let device = device.autodiff();
            let (m, k, n) = (40, 24, 72);
            for by in Activation::ALL {
                for dtype in [DType::F32, DType::BF16] {
                    let run = |plain: bool| {
                        let x = tensor(&values(m * k, 1), [m, k], dtype, &device).require_grad();
                        let w = tensor(&values(k * n, 2), [k, n], dtype, &device).require_grad();
                        let b = tensor(&values(n, 3), [n], dtype, &device).require_grad();

                        let y = match plain {
                            true => by.reference_in_f32(linear(x.clone(), w.clone(), Some(b.clone()))),
                            false => linear_activated(x.clone(), w.clone(), Some(b.clone()), by, None),
                        };
                        let grads = (y.clone() * tensor(&values(m * n, 4), [m, n], dtype, &device)).sum().backward();
                        let gradient = |t: &Tensor<2>| host(t.grad(&grads).expect("a gradient"));
                        [host(y), gradient(&x), gradient(&w), host(b.grad(&grads).expect("a gradient"))]
                    };
                    for (part, (plain, fused)) in ["y", "dx", "dw", "db"].iter().zip(run(true).iter().zip(&run(false)))
                    {
                        // In bf16 there are two roundings more than between a kernel and f32.
                        let allowed = if dtype == DType::F32 { 2e-6 } else { 1.2e-2 };
                        let found = crate::testing::distance(plain, fused);
                        assert!(found <= allowed, "{part} of {by:?} in {dtype:?} on {name}: {found:.1e}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_product_without_a_bias_is_the_product() {
        for (name, device) in devices() {
            let (x, w) = (values(6, 1), values(6, 2));
            let (x, w) = (tensor(&x, [2, 3], DType::F32, &device), tensor(&w, [3, 2], DType::F32, &device));
            let expected = host(x.clone().matmul(w.clone()));
            assert_close(&format!("a product on {name}"), DType::F32, &host(linear(x, w, None)), &expected);
        }
    }
}
