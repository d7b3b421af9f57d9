//! The chunks on CubeCL devices. They share one buffer of logits.

use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::zspace::metadata::Metadata;
use cubecl::zspace::strides;

use super::ops::{Head, LinearCrossEntropyOps, Wanted, gradient_scale, record};
use crate::cross_entropy::gpu::{losses, losses_and_gradient};
use crate::gpu::memory::{empty, row_pitch};
use crate::linear::Layout;
use crate::linear::gpu::{EpilogueArguments, empty_matrix, operand, product_in_f32, product_into};
use crate::maybe::Maybe;
use crate::reduce::columns::accumulate_sum;

/// Returns the `len` rows of `matrix` from `first` on, without a copy.
fn rows_of(matrix: &CubeTensor, (first, len): (usize, usize)) -> CubeTensor {
    let [rows, columns] = [matrix.meta.shape()[0], matrix.meta.shape()[1]];
    let pitch = matrix.meta.strides()[0];
    let bytes = (pitch * matrix.dtype.size()) as u64;
    let handle = matrix.handle.clone();
    let handle = handle.offset_start(first as u64 * bytes).offset_end((rows - first - len) as u64 * bytes);
    CubeTensor { handle, meta: Box::new(Metadata::new([len, columns], strides![pitch, 1])), ..matrix.clone() }
}

/// The tensors that every chunk reads, and the buffer of logits.
struct Chunks {
    x: CubeTensor,
    weight: CubeTensor,
    bias: Option<CubeTensor>,
    labels: CubeTensor,
    buffer: CubeTensor,
    head: Head,
}

impl Chunks {
    fn new(x: CubeTensor, weight: CubeTensor, bias: Maybe<CubeBackend>, labels: CubeTensor, head: Head) -> Self {
        let (x, weight) = (operand(x), operand(weight));
        let bias = bias.into_option().map(into_contiguous);
        let rows = head.chunk_rows.min(x.meta.shape()[0]);
        let buffer = empty_matrix(&x, [rows, head.vocabulary(weight.meta.shape())], x.dtype);
        Self { x, weight, bias, labels: into_contiguous(labels), buffer, head }
    }

    fn rows(&self) -> usize {
        self.x.meta.shape()[0]
    }

    fn at(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        self.head.chunks(self.rows())
    }

    fn logits(&self, x: CubeTensor, len: usize) -> CubeTensor {
        let out = rows_of(&self.buffer, (0, len));
        product_into(x, self.weight.clone(), self.bias.clone(), self.head.product, EpilogueArguments::Store, out)
    }
}

impl LinearCrossEntropyOps for CubeBackend {
    fn linear_cross_entropy(
        x: CubeTensor,
        weight: CubeTensor,
        bias: Maybe<Self>,
        labels: CubeTensor,
        head: Head,
    ) -> CubeTensor {
        let _call = record(&x, &weight, head);
        let chunks = Chunks::new(x, weight, bias, labels, head);
        let out = empty(&chunks.x, [3, chunks.rows()], DType::F32);
        for at in chunks.at() {
            let logits = chunks.logits(rows_of(&chunks.x, at), at.1);
            losses(&logits, &chunks.labels, &out, at.0, head.loss);
        }
        out
    }

    fn linear_cross_entropy_with_gradients(
        x: CubeTensor,
        weight: CubeTensor,
        bias: Maybe<Self>,
        labels: CubeTensor,
        head: Head,
        wanted: Wanted,
    ) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
        let _call = record(&x, &weight, head);
        let chunks = Chunks::new(x, weight, bias, labels, head);
        let [rows, d] = [chunks.rows(), chunks.x.meta.shape()[1]];
        let nothing = || empty(&chunks.x, [1], DType::F32);
        let out = empty(&chunks.x, [3, rows], DType::F32);
        let dx = if wanted.x { empty_matrix(&chunks.x, [rows, d], chunks.x.dtype) } else { nothing() };
        let [k, n] = [chunks.weight.meta.shape()[0], chunks.weight.meta.shape()[1]];
        let mut dweight = if wanted.weight { empty_matrix(&chunks.x, [k, n], DType::F32) } else { nothing() };
        // As long as a row of logits including its padding.
        let pitch = row_pitch(&chunks.buffer);
        let dbias = if wanted.bias { empty(&chunks.x, [pitch], DType::F32) } else { nothing() };
        let scale = gradient_scale(chunks.x.dtype);

        for at in chunks.at() {
            let x = rows_of(&chunks.x, at);
            let logits = chunks.logits(x.clone(), at.1);
            losses_and_gradient(&logits, &chunks.labels, &out, at.0, scale, head.loss);
            let dlogits = logits;
            let is_first = at.0 == 0;
            if wanted.bias {
                accumulate_sum(&dlogits, &dbias, is_first);
            }
            if wanted.x {
                let weight = chunks.weight.clone();
                product_into(
                    dlogits.clone(),
                    weight,
                    None,
                    head.product.of_input_gradient(),
                    EpilogueArguments::Store,
                    rows_of(&dx, at),
                );
            }
            if wanted.weight {
                let (a, b) = head.product.layout.for_weight_gradient(x, dlogits);
                dweight = product_in_f32(a, b, head.product.with(Layout::TN), dweight, is_first);
            }
        }

        let vocabulary = head.vocabulary(chunks.weight.meta.shape());
        let dbias = if wanted.bias { leading(dbias, vocabulary) } else { dbias };
        (out, dx, dweight, dbias)
    }
}

/// Returns the first `len` numbers of `vector`.
fn leading(vector: CubeTensor, len: usize) -> CubeTensor {
    let behind = (vector.meta.shape()[0] - len) * vector.dtype.size();
    let handle = vector.handle.offset_end(behind as u64);
    CubeTensor::new_contiguous(vector.client, vector.device, [len].into(), handle, vector.dtype)
}
