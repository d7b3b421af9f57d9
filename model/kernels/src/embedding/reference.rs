//! Embedding in plain Burn operations.

use burn::backend::Dispatch;
use burn::tensor::{DType, Int, Tensor};

use crate::dropout::Mask;

/// See [`super::embed`]. The arithmetic is f32, so that the backend sums the gradients in f32 too.
pub(crate) fn embed(
    ids: Tensor<1, Int>,
    table: Tensor<2>,
    scale: f64,
    positions: Option<Tensor<2>>,
    mask: Mask<Dispatch>,
) -> Tensor<2> {
    let dtype = table.dtype();
    let x = table.cast(DType::F32).select(0, ids) * scale;
    let [m, d] = x.dims();
    let x = match positions {
        None => x,
        Some(positions) => {
            let [t, _] = positions.dims();
            (x.reshape([m / t, t, d]) + positions.cast(DType::F32).reshape([1, t, d])).reshape([m, d])
        }
    };
    mask.drop_out(x).cast(dtype)
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;
    use crate::dropout::DropoutStream;
    use crate::testing::{assert_close, devices, host, tensor, values};

    /// Plain rows; scaled, with positions, and with dropout; a width that is not a multiple of a vector.
    #[test]
    fn kernels_and_references_agree() {
        for (name, device) in devices() {
            let device = device.autodiff();
            for (dtype, d) in [(DType::F32, 16), (DType::BF16, 16), (DType::F32, 7), (DType::BF16, 520)] {
                for (scale, t, p) in [(1.0, None, 0.0), (4.0, Some(10), 0.0), (0.5, None, 0.3), (4.0, Some(25), 0.3)] {
                    let run = |plain: bool| {
                        let table = tensor(&values(9 * d, 1), [9, d], dtype, &device).require_grad();
                        let places = t.map(|t| tensor(&values(t * d, 3), [t, d], dtype, &device).require_grad());
                        let ids: Vec<i32> = (0..50).map(|i| i * i % 7).collect();
                        let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [50]), (&device, DType::I32));
                        let stream = DropoutStream::new(3, 5, &device.clone().inner());
                        let drop = (p > 0.0).then_some((p, &stream));
                        let y = match plain {
                            true => embed(ids, table.clone(), scale, places.clone(), Mask::take(drop, 50 * d)),
                            false => crate::embed(ids, table.clone(), scale, places.clone(), drop),
                        };
                        let grads = (y.clone() * tensor(&values(50 * d, 2), [50, d], dtype, &device)).sum().backward();
                        let places = places.map(|places| host(places.grad(&grads).expect("a gradient")));
                        [host(y), host(table.grad(&grads).expect("a gradient")), places.unwrap_or_default()]
                    };
                    let (found, plain) = (run(false), run(true));
                    let what = format!("{dtype:?}, {d} columns times {scale}, {t:?} places, {p} dropped on {name}");
                    for (part, of) in ["rows", "gradient of the table", "gradient of the places"].iter().enumerate() {
                        if !plain[part].is_empty() {
                            assert_close(&format!("{of}, {what}"), dtype, &found[part], &plain[part]);
                        }
                    }
                }
            }
        }
    }
}
