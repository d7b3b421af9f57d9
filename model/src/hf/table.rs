//! The table of a family: which Kiln parameter is which tensor of the file, and how it lies there. Both directions,
//! [`super::import`] and [`super::export`], read the same rows.

use crate::config::TieEmbeddings;

/// The projection to the vocabulary in families that write.
pub(super) const OUTPUT: &str = "lm_head.weight";

/// All rows for one configuration, and what may stand in a file besides.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
    /// Files of the bare model leave this out of their names.
    pub(super) optional_prefix: &'static str,
    /// Copies of a tensor that some files hold under a second name: `(copy, original)`.
    pub(super) copies: Vec<(String, String)>,
    /// Ends of names that are no parameters here.
    pub(super) skipped: &'static [Skipped],
}

/// Tensors that are left out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Skipped {
    /// End of the name.
    pub(super) suffix: &'static str,
    /// What is lost; nothing for constants that the code computes by itself.
    pub(super) lost: Option<&'static str>,
}

/// One Kiln parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// Path of the parameter.
    pub(super) ours: String,
    pub(super) layout: Layout,
    /// Tensors of the file: end to end in a vector, side by side in the columns of a matrix.
    pub(super) pieces: Vec<Piece>,
    /// Absent in a file, it is zeros.
    pub(super) zeros_if_absent: bool,
}

/// A tensor of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) theirs: String,
    /// Its share of the parameter's last dimension.
    pub(super) width: usize,
}

/// How the file lays a parameter out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// `[n]` in both.
    Vector,
    /// `[1, n]` in the file, `[n]` here.
    OneRow,
    /// `[n, d]` in both, with `unused` further rows in front in the file.
    Rows { n: usize, unused: usize },
    /// `[n_in, n_out]` in both: GPT-2's Conv1D.
    Conv1d { n_in: usize },
    /// `[n_out, n_in]` in the file, as torch's Linear has it; `[n_in, n_out]` here.
    Linear { n_in: usize },
}

impl Layout {
    /// Shape in the file of a piece that is `width` wide.
    pub(super) fn theirs(self, width: usize) -> Vec<usize> {
        match self {
            Self::Vector => vec![width],
            Self::OneRow => vec![1, width],
            Self::Rows { n, unused } => vec![n + unused, width],
            Self::Conv1d { n_in } => vec![n_in, width],
            Self::Linear { n_in } => vec![width, n_in],
        }
    }

    /// Shape here of a parameter that is `width` wide.
    pub(super) fn ours(self, width: usize) -> Vec<usize> {
        match self {
            Self::Vector | Self::OneRow => vec![width],
            Self::Rows { n, .. } => vec![n, width],
            Self::Conv1d { n_in } | Self::Linear { n_in } => vec![n_in, width],
        }
    }

    /// Rows of the parameter here, each of which holds a stretch of every piece.
    pub(super) fn n_rows(self) -> usize {
        match self {
            Self::Vector | Self::OneRow => 1,
            Self::Rows { n, .. } => n,
            Self::Conv1d { n_in } | Self::Linear { n_in } => n_in,
        }
    }
}

impl Row {
    /// Width of the whole parameter.
    pub(super) fn width(&self) -> usize {
        self.pieces.iter().map(|piece| piece.width).sum()
    }

    /// Shape of the parameter here.
    pub(super) fn shape(&self) -> Vec<usize> {
        self.layout.ours(self.width())
    }
}

/// A weighted part of a layer in a family's table.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    /// `gamma` and `beta` here, `weight` and `bias` there.
    LayerNorm,
    /// `gamma` here, `weight` there.
    RmsNorm,
    /// A matrix as [`Layout::Linear`], and a bias.
    Linear,
    /// A matrix as [`Layout::Conv1d`], and a bias.
    Conv1d,
    /// A matrix as [`Layout::Linear`] alone.
    LinearWithoutBias,
}

/// One line of a family's table: our part, what it is, features that go in, and their part or parts with the features
/// that come out of each.
pub(super) type Line<'a> = (&'a str, Part, usize, &'a [(&'a str, usize)]);

impl Table {
    /// Adds the rows of `lines`; names start with `ours` and `theirs`.
    pub(super) fn add(&mut self, ours: &str, theirs: &str, lines: &[Line<'_>]) {
        for &(name, part, n_in, pieces) in lines {
            let row = |our_end: &str, their_end: &str, layout| Row {
                ours: format!("{ours}{name}.{our_end}"),
                layout,
                pieces: pieces
                    .iter()
                    .map(|(piece, width)| Piece { theirs: format!("{theirs}{piece}.{their_end}"), width: *width })
                    .collect(),
                zeros_if_absent: false,
            };
            match part {
                Part::LayerNorm => {
                    self.rows.extend([row("gamma", "weight", Layout::Vector), row("beta", "bias", Layout::Vector)]);
                }
                Part::RmsNorm => self.rows.push(row("gamma", "weight", Layout::Vector)),
                Part::Linear => {
                    self.rows.push(row("weight", "weight", Layout::Linear { n_in }));
                    self.rows.push(row("bias", "bias", Layout::Vector));
                }
                Part::Conv1d => {
                    self.rows.push(row("weight", "weight", Layout::Conv1d { n_in }));
                    self.rows.push(row("bias", "bias", Layout::Vector));
                }
                Part::LinearWithoutBias => self.rows.push(row("weight", "weight", Layout::Linear { n_in })),
            }
        }
    }

    /// Adds a table of `n` rows, `width` wide, behind `unused` rows in the file.
    pub(super) fn add_rows(&mut self, ours: &str, theirs: &str, [n, width]: [usize; 2], unused: usize) {
        self.add_one(ours, theirs, Layout::Rows { n, unused }, width);
    }

    /// Adds one parameter that is one tensor of the file.
    pub(super) fn add_one(&mut self, ours: &str, theirs: &str, layout: Layout, width: usize) {
        let pieces = vec![Piece { theirs: theirs.to_owned(), width }];
        self.rows.push(Row { ours: ours.to_owned(), layout, pieces, zeros_if_absent: false });
    }

    /// Adds the projection to the vocabulary, `[d, v]`; a tied one is no more than a second name of `embedding`.
    pub(super) fn add_output(&mut self, tie: TieEmbeddings, [d, v]: [usize; 2], embedding: &str) {
        if tie == TieEmbeddings::None {
            self.add_one("output.weight", OUTPUT, Layout::Linear { n_in: d }, v);
        } else {
            self.add_copy(OUTPUT, embedding);
        }
    }

    /// Lets the last row be absent in files: it is zeros then.
    pub(super) fn zeros_if_absent(&mut self) {
        self.rows.last_mut().expect("a row was added before").zeros_if_absent = true;
    }

    /// Says that files may hold `original` under the name `copy` as well, or instead.
    pub(super) fn add_copy(&mut self, copy: &str, original: &str) {
        self.copies.push((copy.to_owned(), original.to_owned()));
    }
}
