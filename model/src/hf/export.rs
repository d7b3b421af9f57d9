//! Converts Kiln's parameters to the tensors of a file.

use std::collections::HashMap;

use super::table::{Layout, Piece, Row, Table};
use crate::named_tensor::NamedTensor;

/// Converts `weights` to the tensors of `table`, in f32 and with their Hugging Face names. Like `transformers`, it leaves out
/// copies of tied tensors. The error lists all parameters that are missing, misshaped or unknown.
pub(super) fn export(table: &Table, weights: &[NamedTensor]) -> Result<Vec<NamedTensor>, Vec<String>> {
    let mut by_name: HashMap<_, _> = weights.iter().map(|weight| (weight.name.as_str(), weight)).collect();
    let (mut problems, mut tensors) = (Vec::new(), Vec::new());
    for row in &table.rows {
        let wanted = row.shape();
        match by_name.remove(row.ours.as_str()) {
            None => problems.push(format!("missing: {} {wanted:?}", row.ours)),
            Some(weight) if weight.shape != wanted => {
                problems.push(format!("misshaped: {} is {:?}, wanted {wanted:?}", row.ours, weight.shape));
            }
            Some(weight) => tensors.extend(split(row, &weight.values)),
        }
    }
    problems.extend(by_name.values().map(|weight| format!("extra: {} {:?}", weight.name, weight.shape)));
    problems.sort();
    if problems.is_empty() { Ok(tensors) } else { Err(problems) }
}

/// Splits a parameter into its pieces.
fn split(row: &Row, values: &[f32]) -> Vec<NamedTensor> {
    let mut first = 0;
    let piece = |piece: &Piece| {
        let columns = first..first + piece.width;
        first = columns.end;
        let stretches = values.chunks_exact(row.width()).map(|row| &row[columns.clone()]);

        let values = match row.layout {
            Layout::Vector | Layout::OneRow | Layout::Conv1d { .. } => stretches.flatten().copied().collect(),
            Layout::LessOne => stretches.flatten().map(|gamma| gamma - 1.0).collect(),
            Layout::Rows { unused, .. } => {
                std::iter::repeat_n(0.0, unused * piece.width).chain(stretches.flatten().copied()).collect()
            }
            Layout::Linear { n_in } => {
                let mut transposed = vec![0.0; n_in * piece.width];
                for (i, stretch) in stretches.enumerate() {
                    for (o, value) in stretch.iter().enumerate() {
                        transposed[o * n_in + i] = *value;
                    }
                }
                transposed
            }
        };
        NamedTensor { name: piece.theirs.clone(), shape: row.layout.theirs(piece.width), values }
    };
    row.pieces.iter().map(piece).collect()
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
