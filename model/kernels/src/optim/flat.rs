//! One flat tensor that holds many tensors, one behind the other.

use burn::backend::Dispatch;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Device, Tensor};

use super::ops::{AdamWOps, PARTS, Parts, Segment};
use crate::settings::has_kernels;

/// Alignment of the tensors in a flat one, in elements. A slice of a flat bf16 or f32 tensor then begins at a multiple
/// of 512 bytes, where the backend's kernels, including TMA, read it without a copy.
pub const ALIGNMENT: usize = 256;
/// Elements that one block gathers, and whose squares it sums.
pub const CHUNK: usize = 4096;

/// Where a tensor lies in a flat one. Zeros fill the gap behind each place, up to the next multiple of [`ALIGNMENT`]. Places do
/// not overlap; they may come in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// First element, a multiple of [`ALIGNMENT`].
    pub offset: usize,
    /// Number of elements.
    pub len: usize,
}

impl Place {
    /// Returns the number of elements including the gap behind.
    pub fn padded_len(&self) -> usize {
        self.len.next_multiple_of(ALIGNMENT)
    }

    /// Returns the number of chunks, each of which has its own sum of squares.
    pub fn n_chunks(&self) -> usize {
        self.padded_len().div_ceil(CHUNK)
    }
}

/// A tensor of any rank, to be copied into a flat one.
#[derive(Debug, Clone)]
pub struct Part {
    tensor: FloatTensor<Dispatch>,
    len: usize,
    dtype: DType,
}

impl<const D: usize> From<Tensor<D>> for Part {
    fn from(tensor: Tensor<D>) -> Self {
        let (len, dtype) = (tensor.shape().num_elements(), tensor.dtype());
        Self { tensor: tensor.into_dispatch(), len, dtype }
    }
}

/// A flat tensor and the sums of squares of its chunks.
#[derive(Debug, Clone)]
pub struct Flat {
    /// `[n]`
    pub values: Tensor<1>,
    /// `[number of chunks]`, f32
    pub(super) squares: Tensor<1>,
}

/// Copies `parts` to their `places` in a flat tensor of `n` elements in `dtype`. With `accumulate_into`, adds them to
/// that tensor instead, whose dtype stays. On a GPU this takes a few launches for all parts and updates
/// `accumulate_into` in place.
///
/// # Panics
/// If parts and places differ in number or length, parts differ in dtype, or `accumulate_into` has another length.
pub fn gather(
    parts: Vec<Part>,
    places: &[Place],
    n: usize,
    dtype: DType,
    device: &Device,
    accumulate_into: Option<Flat>,
) -> Flat {
    assert_eq!(parts.len(), places.len(), "a place for each part");

    let part_dtype = parts.first().map_or(dtype, |part| part.dtype);
    for (part, place) in parts.iter().zip(places) {
        assert_eq!(part.len, place.len, "a part with the length of its place");
        assert_eq!(part.dtype, part_dtype, "parts of one dtype");
        assert!(place.offset.is_multiple_of(ALIGNMENT) && place.offset + place.padded_len() <= n, "{place:?} of {n}");
    }

    if !has_kernels(device) {
        let whole = accumulate_into.map_or_else(|| Tensor::zeros([n], (device, dtype)), |flat| flat.values);
        return add_by_backend(
            parts.into_iter().map(|part| Tensor::from_dispatch(part.tensor)).collect(),
            places,
            whole,
        );
    }
    let accumulate = accumulate_into.is_some();
    let n_chunks: usize = places.iter().map(Place::n_chunks).sum();
    let flat = accumulate_into.unwrap_or_else(|| Flat {
        values: Tensor::empty([n], (device, dtype)),
        squares: Tensor::empty([n_chunks], (device, DType::F32)),
    });
    assert_eq!(flat.values.dims(), [n], "the length of the tensor that is added to");

    let (mut values, mut squares) = (flat.values.into_dispatch(), flat.squares.into_dispatch());
    let mut first_chunk = 0;
    for (parts, places) in parts.chunks(PARTS).zip(places.chunks(PARTS)) {
        let segments = places
            .iter()
            .map(|place| {
                let segment = Segment { offset: place.offset, len: place.len, first_chunk };
                first_chunk += place.n_chunks();
                segment
            })
            .collect();
        let parts = Parts::new(parts.iter().map(|part| part.tensor.clone()).collect());
        (values, squares) = Dispatch::flat_gather(parts, values, squares, segments, accumulate);
    }
    Flat { values: Tensor::from_dispatch(values), squares: Tensor::from_dispatch(squares) }
}

/// Returns `whole` with `parts` added at `places`, by plain Burn operations. `parts` are the numbers of tensors of any rank.
fn add_by_backend(parts: Vec<Tensor<1>>, places: &[Place], whole: Tensor<1>) -> Flat {
    let ([n], dtype, device) = (whole.dims(), whole.dtype(), whole.device());
    let zeros = |len: usize| Tensor::<1>::zeros([len], (&device, DType::F32));
    let mut in_order: Vec<(&Place, Tensor<1>)> = places.iter().zip(parts).collect();
    in_order.sort_by_key(|(place, _)| place.offset);

    let (mut end, mut pieces) = (0, Vec::new());
    for (place, part) in in_order {
        let gap = place.offset - end;
        pieces.extend((gap > 0).then(|| zeros(gap)));
        pieces.push(part.reshape([place.len]).cast(DType::F32));
        end = place.offset + place.len;
    }
    pieces.extend((n > end).then(|| zeros(n - end)));

    let values = (whole.cast(DType::F32) + Tensor::cat(pieces, 0)).cast(dtype);
    let squares = places.iter().map(|place| {
        let len = place.padded_len();
        let part = values.clone().narrow(0, place.offset, len).cast(DType::F32);
        let whole = place.n_chunks() * CHUNK;
        let part = if whole > len { Tensor::cat(vec![part, zeros(whole - len)], 0) } else { part };
        (part.clone() * part).reshape([place.n_chunks(), CHUNK]).sum_dim(1).reshape([place.n_chunks()])
    });
    let squares: Vec<_> = squares.collect();
    let squares = if squares.is_empty() { zeros(0) } else { Tensor::cat(squares, 0) };
    Flat::new(values, squares)
}

/// Returns `target` (`[n]`) with the numbers of `source` (`[n]`), rounded to its dtype. On a GPU this overwrites the buffer of `target`,
/// so that views of it show the new numbers.
///
/// # Panics
/// If the lengths differ or are not a multiple of [`ALIGNMENT`].
pub fn overwrite(target: Tensor<1>, source: Tensor<1>) -> Tensor<1> {
    let ([n], device) = (target.dims(), target.device());
    assert!(source.dims() == [n] && n.is_multiple_of(ALIGNMENT), "{:?} over {n} numbers", source.dims());
    if !has_kernels(&device) {
        return source.cast(target.dtype());
    }
    let whole = Place { offset: 0, len: n };
    let squares = Tensor::<1>::empty([whole.n_chunks()], (&device, DType::F32)).into_dispatch();

    let segment = Segment { offset: 0, len: n, first_chunk: 0 };
    let parts = Parts::new(vec![source.into_dispatch()]);
    let (values, _squares) = Dispatch::flat_gather(parts, target.into_dispatch(), squares, vec![segment], false);
    Tensor::from_dispatch(values)
}

impl Flat {
    pub(crate) fn new(values: Tensor<1>, squares: Tensor<1>) -> Self {
        Self { values, squares }
    }

    /// Returns the chunks' sums of squares, `[number of chunks]`, f32, in the order of the places. Equal tensors have
    /// equal sums.
    pub fn squares(&self) -> &Tensor<1> {
        &self.squares
    }

    /// Returns the `len` numbers from `offset` on, which is a multiple of [`ALIGNMENT`]. The sums of squares still belong to the whole tensor.
    pub fn part(&self, offset: usize, len: usize) -> Self {
        Self { values: view(&self.values, offset, [len]), squares: self.squares.clone() }
    }

    /// Returns the tensor with other sums of squares, `[n]`, f32: of the whole tensor that it is a slice of.
    pub fn with_squares(self, squares: Tensor<1>) -> Self {
        Self { squares, ..self }
    }
}

/// Returns the numbers of `flat` (`[n]`) from `offset` on, in `shape`. On a GPU the result is a view, not a copy: it
/// shows what is later written to `flat` in place, see [`super::adamw_step`].
///
/// # Panics
/// If the view exceeds `flat`, or `offset` is not a multiple of [`ALIGNMENT`].
pub fn view<const D: usize>(flat: &Tensor<1>, offset: usize, shape: [usize; D]) -> Tensor<D> {
    let len: usize = shape.iter().product();
    assert!(offset.is_multiple_of(ALIGNMENT), "a view at {offset}, which is not a multiple of {ALIGNMENT}");
    assert!(offset + len <= flat.dims()[0], "{len} numbers at {offset} of {}", flat.dims()[0]);
    if !has_kernels(&flat.device()) {
        return flat.clone().narrow(0, offset, len).reshape(shape);
    }
    Tensor::from_dispatch(Dispatch::flat_view(flat.clone().into_dispatch(), offset, shape.to_vec()))
}
