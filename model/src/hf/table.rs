//! The table of a family: which tensors of the file make up each Kiln parameter, and their layout. [`super::import`] and
//! [`super::export`] read the same rows.

use crate::config::TieEmbeddings;

/// The projection to the vocabulary, in families that generate text.
pub(super) const OUTPUT: &str = "lm_head.weight";

/// All rows for one configuration, and other tensors that a file may hold.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
    /// A prefix that names lack in files of the bare model.
    pub(super) optional_prefix: &'static str,
    /// Second names of tensors in some files: `(copy, original)`.
    pub(super) copies: Vec<(String, String)>,
    /// Tensors that are not parameters in Kiln.
    pub(super) skipped: &'static [Skipped],
}

/// Tensors that import leaves out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Skipped {
    /// End of the name.
    pub(super) suffix: &'static str,
    /// What is lost with them. None for constants that the code computes by itself.
    pub(super) lost: Option<&'static str>,
}

/// One Kiln parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// Path of the parameter.
    pub(super) ours: String,
    pub(super) layout: Layout,
    /// Tensors of the file: end to end in a vector, next to each other in the columns of a matrix.
    pub(super) pieces: Vec<Piece>,
    /// Whether the parameter is zero if the file lacks it.
    pub(super) zeros_if_absent: bool,
}

/// A tensor of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) theirs: String,
    /// Elements that it fills in the parameter's last dimension.
    pub(super) width: usize,
}

/// The layout of a parameter in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// `[n]` in both.
    Vector,
    /// `[1, n]` in the file, `[n]` here.
    OneRow,
    /// `[n]` in both, less 1 in the file: Gemma's norms scale by 1 more than their weights.
    LessOne,
    /// `[n, d]` in both, after `unused` more rows in the file.
    Rows { n: usize, unused: usize },
    /// `[n_in, n_out]` in both: GPT-2's Conv1D.
    Conv1d { n_in: usize },
    /// `[n_out, n_in]` in the file, as in PyTorch's Linear; `[n_in, n_out]` here.
    Linear { n_in: usize },
}

impl Layout {
    /// Shape in the file of a piece that is `width` wide.
    pub(super) fn theirs(self, width: usize) -> Vec<usize> {
        match self {
            Self::Vector | Self::LessOne => vec![width],
            Self::OneRow => vec![1, width],
            Self::Rows { n, unused } => vec![n + unused, width],
            Self::Conv1d { n_in } => vec![n_in, width],
            Self::Linear { n_in } => vec![width, n_in],
        }
    }

    /// Shape here of a parameter that is `width` wide.
    pub(super) fn ours(self, width: usize) -> Vec<usize> {
        match self {
            Self::Vector | Self::OneRow | Self::LessOne => vec![width],
            Self::Rows { n, .. } => vec![n, width],
            Self::Conv1d { n_in } | Self::Linear { n_in } => vec![n_in, width],
        }
    }

    /// Rows of the parameter here. Each holds a part of every piece.
    pub(super) fn n_rows(self) -> usize {
        match self {
            Self::Vector | Self::OneRow | Self::LessOne => 1,
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

/// A sublayer with weights, in a family's table.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sublayer {
    /// `gamma` and `beta` here, `weight` and `bias` there.
    LayerNorm,
    /// `gamma` here, `weight` there.
    RmsNorm,
    /// As [`Layout::LessOne`].
    RmsNormLessOne,
    /// A matrix as [`Layout::Linear`], and a bias.
    Linear,
    /// A matrix as [`Layout::Conv1d`], and a bias.
    Conv1d,
    /// A matrix as [`Layout::Linear`] alone.
    LinearWithoutBias,
}

/// One line of a family's table: our sublayer, what it is, its input features, and the sublayers of the file with the output
/// features of each.
pub(super) type Line<'a> = (&'a str, Sublayer, usize, &'a [(&'a str, usize)]);

impl Table {
    /// Adds the rows of `lines`. `ours` and `theirs` are the prefixes of the names.
    pub(super) fn add(&mut self, ours: &str, theirs: &str, lines: &[Line<'_>]) {
        for &(name, sublayer, n_in, pieces) in lines {
            let row = |our_end: &str, their_end: &str, layout| Row {
                ours: format!("{ours}{name}.{our_end}"),
                layout,
                pieces: pieces
                    .iter()
                    .map(|(piece, width)| Piece { theirs: format!("{theirs}{piece}.{their_end}"), width: *width })
                    .collect(),
                zeros_if_absent: false,
            };

            match sublayer {
                Sublayer::LayerNorm => {
                    self.rows.extend([row("gamma", "weight", Layout::Vector), row("beta", "bias", Layout::Vector)]);
                }
                Sublayer::RmsNorm => self.rows.push(row("gamma", "weight", Layout::Vector)),
                Sublayer::RmsNormLessOne => self.rows.push(row("gamma", "weight", Layout::LessOne)),
                Sublayer::Linear => {
                    self.rows.push(row("weight", "weight", Layout::Linear { n_in }));
                    self.rows.push(row("bias", "bias", Layout::Vector));
                }
                Sublayer::Conv1d => {
                    self.rows.push(row("weight", "weight", Layout::Conv1d { n_in }));
                    self.rows.push(row("bias", "bias", Layout::Vector));
                }
                Sublayer::LinearWithoutBias => self.rows.push(row("weight", "weight", Layout::Linear { n_in })),
            }
        }
    }

    /// Adds a table of `[n, width]`, which follows `unused` rows in the file.
    pub(super) fn add_rows(&mut self, ours: &str, theirs: &str, [n, width]: [usize; 2], unused: usize) {
        self.add_one(ours, theirs, Layout::Rows { n, unused }, width);
    }

    /// Adds one parameter that is one tensor of the file.
    pub(super) fn add_one(&mut self, ours: &str, theirs: &str, layout: Layout, width: usize) {
        let pieces = vec![Piece { theirs: theirs.to_owned(), width }];
        self.rows.push(Row { ours: ours.to_owned(), layout, pieces, zeros_if_absent: false });
    }

    /// Adds the projection to the vocabulary, `[d, v]`. If it is tied, it is only a second name of `embedding`.
    pub(super) fn add_output(&mut self, tie: TieEmbeddings, [d, v]: [usize; 2], embedding: &str) {
        if tie == TieEmbeddings::None {
            self.add_one("output.weight", OUTPUT, Layout::Linear { n_in: d }, v);
        } else {
            self.add_copy(OUTPUT, embedding);
        }
    }

    /// Makes the last row optional: if a file lacks it, it is zeros.
    pub(super) fn zeros_if_absent(&mut self) {
        self.rows.last_mut().expect("a row was added before").zeros_if_absent = true;
    }

    /// Allows files to hold `original` under the name `copy` too, or instead.
    pub(super) fn add_copy(&mut self, copy: &str, original: &str) {
        self.copies.push((copy.to_owned(), original.to_owned()));
    }
}
