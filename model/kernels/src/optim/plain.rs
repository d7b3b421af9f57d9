//! Gathering into a flat tensor by plain Burn operations.

use burn::tensor::{DType, Device, Tensor};

use super::flat::{CHUNK, Flat, Place};

/// See [`super::gather`]. `parts` are the numbers of tensors of any rank.
pub(super) fn gather(
    parts: Vec<Tensor<1>>,
    places: &[Place],
    n: usize,
    dtype: DType,
    device: &Device,
    accumulate_into: Option<Flat>,
) -> Flat {
    let dtype = accumulate_into.as_ref().map_or(dtype, |flat| flat.values.dtype());
    let zeros = |len: usize| Tensor::<1>::zeros([len], (device, DType::F32));
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

    let added = Tensor::cat(pieces, 0);
    let values = match accumulate_into {
        Some(flat) => (flat.values.cast(DType::F32) + added).cast(dtype),
        None => added.cast(dtype),
    };
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
