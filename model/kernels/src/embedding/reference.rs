//! Table rows in plain Burn operations.

use burn::tensor::{DType, Int, Tensor};

/// In f32, so that the backend adds up the gradient of the table in f32 too.
pub(crate) fn embedding(ids: Tensor<1, Int>, table: Tensor<2>) -> Tensor<2> {
    let dtype = table.dtype();
    table.cast(DType::F32).select(0, ids).cast(dtype)
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;
    use crate::testing::{assert_close, devices, host, tensor, values};

    #[test]
    fn kernels_and_plain_operations_agree() {
        for (name, device) in devices() {
            let device = device.autodiff();
            for dtype in [DType::F32, DType::BF16] {
                let run = |plain: bool| {
                    let table = tensor(&values(9 * 16, 1), [9, 16], dtype, &device).require_grad();
                    let ids: Vec<i32> = (0..50).map(|i| i * i % 7).collect();
                    let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [50]), (&device, DType::I32));
                    let lookup = if plain { embedding } else { crate::embedding };
                    let y = lookup(ids, table.clone());
                    let grads = (y.clone() * tensor(&values(50 * 16, 2), [50, 16], dtype, &device)).sum().backward();
                    [host(y), host(table.grad(&grads).expect("a gradient"))]
                };
                let ([y, dy], [plain_y, plain_dy]) = (run(false), run(true));
                assert_eq!(y, plain_y, "rows of a table on {name}");
                assert_close(&format!("gradient of a table on {name}"), dtype, &plain_dy, &dy);
            }
        }
    }
}
