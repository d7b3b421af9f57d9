//! Converts the tensors of a file to Kiln's parameters.

use std::borrow::Cow;
use std::collections::HashMap;

use super::table::{Layout, Row, Skipped, Table};
use super::tensor::FileTensor;
use super::transpose::{Part, transpose};
use crate::named_tensor::{Elements, FloatType, LazyTensor, NamedTensor};

/// The result of an import.
#[derive(Debug)]
pub(super) struct Taken<T = NamedTensor> {
    pub(super) weights: Vec<T>,
    pub(super) notes: Vec<String>,
}

/// Converts `tensors` to the parameters of `table`. The error lists all tensors that are missing, misshaped, of the wrong type
/// or unknown.
pub(super) fn import(table: &Table, tensors: &[FileTensor<'_>]) -> Result<Taken, Vec<String>> {
    let Taken { weights, notes } = plan(table, tensors, &|| ())?;
    Ok(Taken { weights: weights.iter().map(LazyTensor::read).collect(), notes })
}

/// Does the same as [`import`], but converts a parameter only when it is read. Each time the elements of a tensor have been read,
/// `after` is called.
pub(super) fn plan<'a>(
    table: &Table,
    tensors: &[FileTensor<'a>],
    after: &'a (dyn Fn() + Sync),
) -> Result<Taken<LazyTensor<'a>>, Vec<String>> {
    let mut problems = Vec::new();
    let found = Found::sort(table, tensors, &mut problems);
    check_copies(table, &found, after, &mut problems);

    let mut weights = Vec::with_capacity(table.rows.len());
    for row in &table.rows {
        let n_before = problems.len();
        let pieces: Vec<_> = row.pieces.iter().map(|piece| found.piece(table, &piece.theirs)).collect();
        if row.zeros_if_absent && pieces.iter().all(Option::is_none) {
            let (n, shape) = (row.shape().iter().product(), row.shape());
            let zeros = move || Elements::F32(vec![0.0; n]);
            weights.push(LazyTensor::new(row.ours.clone(), shape, FloatType::F32, zeros));
            continue;
        }

        for (piece, tensor) in row.pieces.iter().zip(&pieces) {
            let wanted = row.layout.theirs(piece.width);
            match tensor {
                None => problems.push(format!("missing: {} {wanted:?}", piece.theirs)),
                Some(tensor) if tensor.shape != wanted => {
                    problems.push(format!("misshaped: {} is {:?}, wanted {wanted:?}", tensor.name, tensor.shape));
                }
                Some(tensor) => {
                    problems.extend(tensor.problem().map(|problem| format!("unreadable: {problem}")));
                    after();
                }
            }
        }

        if problems.len() == n_before {
            let pieces: Vec<FileTensor<'a>> = pieces.into_iter().flatten().cloned().collect();
            weights.push(parameter(row.clone(), pieces, after));
        }
    }

    problems.sort();
    if problems.is_empty() { Ok(Taken { weights, notes: found.notes }) } else { Err(problems) }
}

/// The parameter of `row`, in the type of its pieces if the elements stay as they are.
fn parameter<'a>(row: Row, pieces: Vec<FileTensor<'a>>, after: &'a (dyn Fn() + Sync)) -> LazyTensor<'a> {
    let of_pieces = |piece: &FileTensor<'_>| piece.element_type.float_type();
    let first = pieces.first().map_or(FloatType::F32, of_pieces);
    let is_kept = row.layout != Layout::LessOne && pieces.iter().all(|piece| of_pieces(piece) == first);
    let float_type = if is_kept { first } else { FloatType::F32 };

    LazyTensor::new(row.ours.clone(), row.shape(), float_type, move || {
        let mut join = Join { row: &row, first: 0 };
        match float_type {
            FloatType::F32 => {
                let mut joined = join.all(&pieces, after, FileTensor::values);
                if row.layout == Layout::LessOne {
                    joined.iter_mut().for_each(|weight| *weight += 1.0);
                }
                Elements::F32(joined)
            }
            FloatType::F16 => Elements::F16(join.all(&pieces, after, |piece| match piece.elements() {
                Elements::F16(elements) => elements,
                _ => unreachable!("each piece is f16"),
            })),
            FloatType::Bf16 => Elements::Bf16(join.all(&pieces, after, |piece| match piece.elements() {
                Elements::Bf16(elements) => elements,
                _ => unreachable!("each piece is bf16"),
            })),
        }
    })
}

/// Compares copies with their originals. Different ones mean that the matrices are not tied, whatever `config.json` says.
fn check_copies(table: &Table, found: &Found<'_, '_>, after: &dyn Fn(), problems: &mut Vec<String>) {
    for (copy, original) in &table.copies {
        if let (Some(a), Some(b)) = (found.copies.get(copy.as_str()), found.originals.get(original.as_str()))
            && a.problem().is_none()
            && b.problem().is_none()
        {
            let same_bytes = a.element_type == b.element_type && a.bytes == b.bytes;
            if a.shape != b.shape || !(same_bytes || a.values() == b.values()) {
                problems
                    .push(format!("tied: {copy} is not equal to {original}; does config.json say that they are tied?"));
            }
            after();
        }
    }
}

/// The tensors of a file by their full names, and notes about skipped ones.
struct Found<'a, 'b> {
    originals: HashMap<&'a str, &'a FileTensor<'b>>,
    copies: HashMap<&'a str, &'a FileTensor<'b>>,
    notes: Vec<String>,
}

impl<'a, 'b> Found<'a, 'b> {
    /// Looks up each tensor in the table. Unknown and repeated tensors are problems.
    fn sort(table: &'a Table, tensors: &'a [FileTensor<'b>], problems: &mut Vec<String>) -> Self {
        let wanted: HashMap<&str, &str> = table
            .rows
            .iter()
            .flat_map(|row| &row.pieces)
            .map(|piece| (piece.theirs.strip_prefix(table.optional_prefix).unwrap_or(&piece.theirs), &*piece.theirs))
            .collect();
        let copies: HashMap<&str, &str> = table
            .copies
            .iter()
            .map(|(copy, _)| (copy.strip_prefix(table.optional_prefix).unwrap_or(copy), &**copy))
            .collect();

        let mut found = Self { originals: HashMap::new(), copies: HashMap::new(), notes: Vec::new() };
        let mut lost: Vec<(&str, Vec<&str>)> = Vec::new();
        for tensor in tensors {
            let todays = todays_name(&tensor.name);
            let bare = todays.strip_prefix(table.optional_prefix).unwrap_or(&todays);
            let before = if let Some(name) = wanted.get(bare) {
                found.originals.insert(name, tensor)
            } else if let Some(name) = copies.get(bare) {
                found.copies.insert(name, tensor)
            } else if let Some(Skipped { lost: what, .. }) = table.skipped.iter().find(|s| bare.ends_with(s.suffix)) {
                if let Some(what) = what {
                    match lost.iter_mut().find(|(known, _)| known == what) {
                        Some((_, names)) => names.push(&tensor.name),
                        None => lost.push((what, vec![&tensor.name])),
                    }
                }
                None
            } else {
                problems.push(format!("extra: {} {:?}", tensor.name, tensor.shape));
                None
            };

            if let Some(before) = before {
                problems.push(format!("extra: {} occurs a second time as {}", before.name, tensor.name));
            }
        }

        found.notes =
            lost.into_iter().map(|(what, names)| format!("left out: {} ({what})", names.join(", "))).collect();
        found
    }

    /// The tensor `name`, or else a copy of it.
    fn piece(&self, table: &Table, name: &str) -> Option<&'a FileTensor<'b>> {
        let copy = || {
            let names = table.copies.iter().filter(|(_, original)| original == name);
            names.into_iter().find_map(|(copy, _)| self.copies.get(copy.as_str()).copied())
        };
        self.originals.get(name).copied().or_else(copy)
    }
}

/// Renames a tensor of an older file as `transformers` does when it loads one: files converted from TensorFlow call the
/// parameters of a norm `gamma` and `beta`. Source: the "legacy" entry of its `conversion_mapping.py`.
fn todays_name(name: &str) -> Cow<'_, str> {
    let renamed = [(".gamma", ".weight"), (".beta", ".bias")]
        .into_iter()
        .find_map(|(old, new)| Some(format!("{}{new}", name.strip_suffix(old)?)));
    renamed.map_or(Cow::Borrowed(name), Cow::Owned)
}

/// Joins the pieces of a parameter.
struct Join<'a> {
    row: &'a Row,
    /// The first column of the next piece.
    first: usize,
}

impl Join<'_> {
    /// Reads and joins all pieces, one after the other.
    fn all<'a, T: Copy + Default>(
        &mut self,
        pieces: &[FileTensor<'a>],
        after: &dyn Fn(),
        read: impl Fn(&FileTensor<'a>) -> Vec<T>,
    ) -> Vec<T> {
        let row = self.row;
        let is_whole = matches!(row.layout, Layout::Vector | Layout::OneRow | Layout::LessOne | Layout::Conv1d { .. });
        if let (true, [only]) = (is_whole, pieces) {
            let elements = read(only);
            after();
            return elements;
        }
        let mut joined = vec![T::default(); row.layout.n_rows() * row.width()];
        for (piece, tensor) in row.pieces.iter().zip(pieces) {
            let elements = read(tensor);
            after();
            self.put(&elements, piece.width, &mut joined);
        }
        joined
    }

    /// Puts a piece of `n` columns behind the ones before.
    fn put<T: Copy>(&mut self, elements: &[T], n: usize, joined: &mut [T]) {
        let (first, width) = (self.first, self.row.width());
        match self.row.layout {
            Layout::Linear { n_in } => {
                let from = Part { elements, width: n_in };
                transpose(&from, [n, n_in], &mut Part { elements: &mut joined[first..], width });
            }
            Layout::Rows { unused, .. } => joined.copy_from_slice(&elements[unused * n..]),
            Layout::Vector | Layout::OneRow | Layout::LessOne | Layout::Conv1d { .. } => {
                for (into, from) in joined.chunks_exact_mut(width).zip(elements.chunks_exact(n)) {
                    into[first..first + n].copy_from_slice(from);
                }
            }
        }
        self.first += n;
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::Sublayer;
    use super::super::tensor::ElementType;
    use super::*;

    fn table() -> Table {
        let mut table = Table { optional_prefix: "model.", ..Table::default() };
        table.add_rows("embedding.table", "model.embed.weight", [2, 3], 1);
        table.add(
            "layer.",
            "model.h.",
            &[("qkv", Sublayer::Linear, 3, &[("q", 2), ("k", 1)]), ("norm", Sublayer::LayerNorm, 3, &[("ln", 3)])],
        );
        table.add_copy("lm_head.weight", "model.embed.weight");
        table.skipped = &[
            Skipped { suffix: "position_ids", lost: None },
            Skipped { suffix: "pooler.weight", lost: Some("no pooler here") },
        ];
        table
    }

    fn bytes(values: impl IntoIterator<Item = u8>) -> Vec<u8> {
        values.into_iter().flat_map(|x| f32::from(x).to_le_bytes()).collect()
    }

    fn file<'a>(parts: &'a [(&str, Vec<usize>, Vec<u8>)]) -> Vec<FileTensor<'a>> {
        let tensor = |(name, shape, bytes): &'a (&str, Vec<usize>, Vec<u8>)| FileTensor {
            name: (*name).to_owned(),
            shape: shape.clone(),
            element_type: ElementType::F32,
            bytes,
        };
        parts.iter().map(tensor).collect()
    }

    fn sound() -> Vec<(&'static str, Vec<usize>, Vec<u8>)> {
        vec![
            ("embed.weight", vec![3, 3], bytes(0..9)),
            ("h.q.weight", vec![2, 3], bytes(10..16)),
            ("h.k.weight", vec![1, 3], bytes(20..23)),
            ("h.q.bias", vec![2], bytes(30..32)),
            ("h.k.bias", vec![1], bytes(32..33)),
            ("model.h.ln.weight", vec![3], bytes(40..43)),
            ("model.h.ln.bias", vec![3], bytes(50..53)),
        ]
    }

    #[test]
    fn pieces_are_transposed_and_joined_and_unused_rows_dropped() {
        let mut parts = sound();
        parts.push(("position_ids", vec![1], bytes(0..1)));
        parts.push(("pooler.weight", vec![1], bytes(0..1)));
        parts.push(("lm_head.weight", vec![3, 3], bytes(0..9)));
        let Taken { weights, notes } = import(&table(), &file(&parts)).expect("all there");
        let named: Vec<_> = weights.iter().map(|w| (&*w.name, &*w.shape, &*w.values)).collect();
        assert_eq!(named[0], ("embedding.table", &[2, 3][..], &[3.0, 4.0, 5.0, 6.0, 7.0, 8.0][..]));
        let joined = [10.0, 13.0, 20.0, 11.0, 14.0, 21.0, 12.0, 15.0, 22.0];
        assert_eq!(named[1], ("layer.qkv.weight", &[3, 3][..], &joined[..]));
        assert_eq!(named[2], ("layer.qkv.bias", &[3][..], &[30.0, 31.0, 32.0][..]));
        assert_eq!(named[4].0, "layer.norm.beta");
        assert_eq!(notes, ["left out: pooler.weight (no pooler here)"]);
    }

    #[test]
    fn a_copy_stands_in_for_its_original_and_must_equal_it() {
        let mut parts = sound();
        parts[0].0 = "lm_head.weight";
        import(&table(), &file(&parts)).expect("the copy is enough");
        parts.push(("model.embed.weight", vec![3, 3], bytes(1..10)));
        let problems = import(&table(), &file(&parts)).expect_err("not tied");
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("tied: lm_head.weight is not equal to model.embed.weight"), "{problems:?}");
    }

    #[test]
    fn everything_wrong_is_listed_at_once() {
        let mut parts = sound();
        parts[1].1 = vec![3, 2];
        parts.remove(6);
        parts.push(("h.other", vec![1], bytes(0..1)));
        parts.push(("model.h.k.bias", vec![1], bytes(0..1)));
        let mut tensors = file(&parts);
        tensors[3].element_type = ElementType::Other("I64".into());
        assert_eq!(
            import(&table(), &tensors).expect_err("much is wrong"),
            [
                "extra: h.k.bias occurs a second time as model.h.k.bias",
                "extra: h.other [1]",
                "misshaped: h.q.weight is [3, 2], wanted [2, 3]",
                "missing: model.h.ln.bias [3]",
                "unreadable: h.q.bias is I64; supported: F64, F32, F16 and BF16",
            ]
        );
    }
}
