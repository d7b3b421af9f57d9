//! Converts Kiln's parameters to the tensors of a file.

use std::collections::HashMap;

use super::table::{Layout, Piece, Row, Table};
use super::transpose::{Part, transpose};
use crate::named_tensor::{Elements, FloatType, LazyTensor, NamedTensor};

/// Converts `weights` to the tensors of `table`, in f32 and with their Hugging Face names. Like `transformers`, it leaves out
/// copies of tied tensors. The error lists all parameters that are missing, misshaped or unknown.
pub(super) fn export(table: &Table, weights: &[NamedTensor]) -> Result<Vec<NamedTensor>, Vec<String>> {
    let tensors = plan(table, weights.iter().map(LazyTensor::borrowed).collect())?;
    Ok(tensors.iter().map(LazyTensor::read).collect())
}

/// Does the same as [`export`], but converts a tensor only when it is read.
pub(super) fn plan<'a>(table: &Table, weights: Vec<LazyTensor<'a>>) -> Result<Vec<LazyTensor<'a>>, Vec<String>> {
    let mut by_name: HashMap<_, _> = weights.into_iter().map(|weight| (weight.name.clone(), weight)).collect();
    let (mut problems, mut tensors) = (Vec::new(), Vec::new());
    for row in &table.rows {
        let wanted = row.shape();
        match by_name.remove(&row.ours) {
            None => problems.push(format!("missing: {} {wanted:?}", row.ours)),
            Some(weight) if weight.shape != wanted => {
                problems.push(format!("misshaped: {} is {:?}, wanted {wanted:?}", row.ours, weight.shape));
            }
            Some(weight) => tensors.extend(split(row, &weight)),
        }
    }
    problems.extend(by_name.values().map(|weight| format!("extra: {} {:?}", weight.name, weight.shape)));
    problems.sort();
    if problems.is_empty() { Ok(tensors) } else { Err(problems) }
}

/// Splits a parameter into its pieces.
fn split<'a>(row: &Row, weight: &LazyTensor<'a>) -> Vec<LazyTensor<'a>> {
    let mut first = 0;
    let piece = |piece: &Piece| {
        let part = Columns { layout: row.layout, first, n: piece.width, width: row.width() };
        first += piece.width;
        // A number less 1 may need more bits.
        let float_type = if row.layout == Layout::LessOne { FloatType::F32 } else { weight.float_type };
        let weight = weight.clone();
        LazyTensor::new(&piece.theirs, row.layout.theirs(piece.width), float_type, move || match weight.elements() {
            elements if part.layout == Layout::LessOne => {
                Elements::F32(part.of(&elements.into_f32()).into_iter().map(|gamma| gamma - 1.0).collect())
            }
            Elements::F32(elements) => Elements::F32(part.of(&elements)),
            Elements::F16(elements) => Elements::F16(part.of(&elements)),
            Elements::Bf16(elements) => Elements::Bf16(part.of(&elements)),
        })
    };
    row.pieces.iter().map(piece).collect()
}

/// The columns of a parameter that are a piece.
struct Columns {
    layout: Layout,
    /// The first one.
    first: usize,
    n: usize,
    /// Of the whole parameter.
    width: usize,
}

impl Columns {
    /// The elements of the piece, in the order of the file.
    fn of<T: Copy + Default>(&self, elements: &[T]) -> Vec<T> {
        let &Self { first, n, width, .. } = self;
        let stretches = elements.chunks_exact(width).map(|row| &row[first..first + n]);
        match self.layout {
            Layout::Vector | Layout::OneRow | Layout::LessOne | Layout::Conv1d { .. } => {
                stretches.flatten().copied().collect()
            }
            Layout::Rows { unused, .. } => {
                std::iter::repeat_n(T::default(), unused * n).chain(stretches.flatten().copied()).collect()
            }
            Layout::Linear { n_in } => {
                let mut transposed = vec![T::default(); n_in * n];
                let from = Part { elements: &elements[first..], width };
                transpose(&from, [n_in, n], &mut Part { elements: &mut transposed, width: n_in });
                transposed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::Sublayer;
    use super::*;

    fn table() -> Table {
        let mut table = Table::default();
        table.add_rows("positions.table", "wpe.weight", [2, 2], 1);
        table.add("", "", &[("qkv", Sublayer::Linear, 2, &[("q", 1), ("k", 2)])]);
        table
    }

    fn weight(name: &str, shape: &[usize], first: u8) -> NamedTensor {
        let n = shape.iter().product::<usize>() as u8;
        NamedTensor { name: name.into(), shape: shape.to_vec(), values: (first..first + n).map(f32::from).collect() }
    }

    #[test]
    fn parameters_are_cut_and_transposed() {
        let weights =
            [weight("qkv.bias", &[3], 20), weight("positions.table", &[2, 2], 1), weight("qkv.weight", &[2, 3], 10)];
        let tensors = export(&table(), &weights).expect("all there");
        let found: Vec<_> = tensors.iter().map(|t| (&*t.name, &*t.shape, &*t.values)).collect();
        assert_eq!(found[0], ("wpe.weight", &[3, 2][..], &[0.0, 0.0, 1.0, 2.0, 3.0, 4.0][..]));
        assert_eq!(found[1], ("q.weight", &[1, 2][..], &[10.0, 13.0][..]));
        assert_eq!(found[2], ("k.weight", &[2, 2][..], &[11.0, 14.0, 12.0, 15.0][..]));
        assert_eq!(found[4], ("k.bias", &[2][..], &[21.0, 22.0][..]));
    }

    #[test]
    fn everything_wrong_is_listed_at_once() {
        let weights = [weight("qkv.bias", &[4], 0), weight("qkv.weight", &[2, 3], 0), weight("other", &[1], 0)];
        assert_eq!(
            export(&table(), &weights).expect_err("much is wrong"),
            ["extra: other [1]", "misshaped: qkv.bias is [4], wanted [3]", "missing: positions.table [2, 2]"]
        );
    }
}
