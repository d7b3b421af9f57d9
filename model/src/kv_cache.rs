//! What decoding remembers: the encoded source, and every layer's keys and values of source and of earlier positions.

use burn::tensor::{DType, Device, IndexingUpdateOp, Int, Tensor};

use crate::rows::Rows;

/// An encoded batch of sources.
#[derive(Debug, Clone)]
pub struct Memory {
    /// `[B * S, D]`
    pub hidden: Tensor<2>,
    /// Source positions that are no padding, `[B]`.
    pub lengths: Tensor<1, Int>,
    /// B.
    pub batch_size: usize,
}

impl Memory {
    /// S, padding included.
    pub fn source_len(&self) -> usize {
        self.hidden.dims()[0] / self.batch_size
    }
}

/// The state of a batch of unfinished targets. Made by `start` of a model, filled with prompts by `prefill`, advanced by
/// `decode_step`. Prompts may differ in length: every row then has positions of its own.
#[derive(Debug, Clone)]
pub struct DecoderCache {
    pub(crate) layers: Vec<LayerCache>,
    pub(crate) source_lengths: Option<Tensor<1, Int>>,
    /// Positions of each row, `[B]`; None while all rows have `len`.
    lengths: Option<Tensor<1, Int>>,
    batch_size: usize,
    len: usize,
}

/// One position more of every row.
pub(crate) struct Step {
    /// Its place in the row, `[B]`.
    pub(crate) positions: Tensor<1, Int>,
    /// Places with this one, `[B]`.
    pub(crate) lengths: Tensor<1, Int>,
    /// Where its keys and values go.
    pub(crate) slots: Slots,
}

/// Where a position's keys and values go in a [`KeyValueBuffer`].
#[expect(clippy::large_enum_variant, reason = "one per position")]
pub(crate) enum Slots {
    /// The same place in every row.
    Same(usize),
    /// Another place in each row.
    Each {
        /// Row of the flat buffer `[B * capacity, W]` for each row of the batch, `[B]`.
        flat: Tensor<1, Int>,
        /// The largest place.
        longest: usize,
    },
}

impl DecoderCache {
    pub(crate) fn new(layers: Vec<LayerCache>, batch_size: usize, source_lengths: Option<Tensor<1, Int>>) -> Self {
        Self { layers, source_lengths, lengths: None, batch_size, len: 0 }
    }

    /// Rows (B): targets in the making.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// Target positions so far, of the longest row.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Positions of each row, `[B]`; None if all have [`Self::len`].
    pub(crate) fn lengths(&self) -> Option<&Tensor<1, Int>> {
        self.lengths.as_ref()
    }

    /// True before the first position.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes row i what row `rows[i]` was: drops finished rows, widens one row to several beams, or moves beams from
    /// one source to another.
    ///
    /// # Shapes
    /// - `rows`: `[B']`, each in `0..B`, repetitions allowed; the batch has B' rows afterwards
    pub fn select(&mut self, rows: &Tensor<1, Int>) {
        if let Some(lengths) = &mut self.source_lengths {
            lengths.inplace(|lengths| lengths.select(0, rows.clone()));
        }
        for layer in &mut self.layers {
            if let Some(source) = &mut layer.source {
                source.inplace(|source| source.select(0, rows.clone()));
            }
        }
        self.select_targets(rows);
    }

    /// Says that the longest row has `len` positions, after [`Self::select`] has dropped longer ones: lengths of unequal rows
    /// lie on the device, and without this the positions of the dropped row would go on being counted. Room that no row
    /// needs any more is given back.
    ///
    /// # Panics
    /// If `len` is 0 or above [`Self::len`].
    pub fn shorten(&mut self, len: usize) {
        assert!(len > 0 && len <= self.len, "rows of {len} positions, but the cache has {}", self.len);
        if self.lengths.is_none() || len == self.len {
            return;
        }
        for layer in &mut self.layers {
            layer.target.shorten(len);
        }
        self.len = len;
    }

    /// [`Self::select`] for a step of beam search, where every row's new origin has the same source as the row: keys
    /// and values of the source stay where they are.
    ///
    /// # Shapes
    /// - `rows`: `[B]`, each in `0..B`
    ///
    /// # Panics
    /// If `rows` does not have B elements.
    pub fn reorder_beams(&mut self, rows: &Tensor<1, Int>) {
        let [found] = rows.dims();
        assert_eq!(found, self.batch_size, "a new order of beams names each row once");
        self.select_targets(rows);
    }

    fn select_targets(&mut self, rows: &Tensor<1, Int>) {
        if let Some(lengths) = &mut self.lengths {
            lengths.inplace(|lengths| lengths.select(0, rows.clone()));
        }
        for layer in &mut self.layers {
            layer.target.select(rows);
        }
        [self.batch_size] = rows.dims();
    }

    /// What the layers need to know of the position that comes next.
    pub(crate) fn next_step(&self, device: &Device) -> Step {
        let options = (&device.clone().inner(), DType::I32);
        match &self.lengths {
            None => Step {
                positions: Tensor::full([self.batch_size], self.len as i64, options),
                lengths: Tensor::full([self.batch_size], self.len as i64 + 1, options),
                slots: Slots::Same(self.len),
            },
            Some(lengths) => {
                let capacity = KeyValueBuffer::capacity_of(self.len + 1);
                let first = Tensor::<1, Int>::arange(0..self.batch_size as i64, options) * capacity as i64;
                Step {
                    positions: lengths.clone(),
                    lengths: lengths.clone() + 1,
                    slots: Slots::Each { flat: first + lengths.clone(), longest: self.len },
                }
            }
        }
    }

    /// After a step.
    pub(crate) fn advance(&mut self, step: Step) {
        if self.lengths.is_some() {
            self.lengths = Some(step.lengths);
        }
        self.len += 1;
    }

    /// After prompts of `lengths`, padded to `len` positions.
    pub(crate) fn filled(&mut self, lengths: Tensor<1, Int>, len: usize) {
        self.lengths = Some(lengths);
        self.len = len;
    }
}

/// One decoder layer's share of a [`DecoderCache`].
#[derive(Debug, Clone, Default)]
pub(crate) struct LayerCache {
    /// Keys and values of the source, `[B, S, W]`.
    source: Option<Tensor<3>>,
    /// Keys and values of the target so far.
    pub(crate) target: KeyValueBuffer,
}

impl LayerCache {
    /// # Shapes
    /// - `key_value`: `[B * S, W]`, of the source
    pub(crate) fn with_source(key_value: Tensor<2>, batch_size: usize) -> Self {
        let [rows, width] = key_value.dims();
        let source = Some(key_value.reshape([batch_size, rows / batch_size, width]));
        Self { source, target: KeyValueBuffer::default() }
    }

    /// `[B * S, W]`
    pub(crate) fn source_rows(&self) -> Tensor<2> {
        let source = self.source.as_ref().expect("a layer that looks at a source has one");
        let [b, s, width] = source.dims();
        source.clone().reshape([b * s, width])
    }
}

/// Keys and values of earlier positions, `[B, capacity, W]` with W = 2 G K. Room is made in chunks, so that a step writes
/// one row and copies none, and shapes change (and GPU kernels are chosen) once per chunk. What is not written is zero.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyValueBuffer {
    buffer: Option<Tensor<3>>,
}

impl KeyValueBuffer {
    /// Positions by which the buffer grows.
    const CHUNK: usize = 32;

    /// Room that a buffer of `len` positions has.
    fn capacity_of(len: usize) -> usize {
        len.next_multiple_of(Self::CHUNK)
    }

    /// Puts the first positions of all rows in place, those of padding as zeros.
    ///
    /// # Shapes
    /// - `key_value`: `[B * T, W]`
    pub(crate) fn fill(&mut self, key_value: Tensor<2>, rows: &Rows) {
        let ([n, width], b) = (key_value.dims(), rows.batch_size);
        let len = rows.len(n);
        let mut filled = key_value.reshape([b, len, width]);
        if let Some(lengths) = &rows.lengths {
            let place = Tensor::<1, Int>::arange(0..len as i64, (&lengths.device(), lengths.dtype())).reshape([1, len]);
            let padding = place.greater_equal(lengths.clone().reshape([b, 1]));
            filled = filled.mask_fill(padding.reshape([b, len, 1]).expand([b, len, width]), 0.0);
        }
        let room = Self::capacity_of(len) - len;
        if room > 0 {
            let zeros = Tensor::zeros([b, room, width], (&filled.device(), filled.dtype()));
            filled = Tensor::cat(vec![filled, zeros], 1);
        }
        self.buffer = Some(filled);
    }

    /// Puts one position's keys and values in place.
    ///
    /// # Shapes
    /// - `key_value`: `[B, W]`
    pub(crate) fn write(&mut self, key_value: Tensor<2>, slots: &Slots) {
        let [b, width] = key_value.dims();
        let position = match slots {
            Slots::Same(position) => *position,
            Slots::Each { longest, .. } => *longest,
        };
        let capacity = Self::capacity_of(position + 1);
        let options = (&key_value.device(), key_value.dtype());
        let buffer = match self.buffer.take() {
            None => Tensor::zeros([b, capacity, width], options),
            Some(buffer) if buffer.dims()[1] < capacity => {
                let more = Tensor::zeros([b, capacity - buffer.dims()[1], width], options);
                Tensor::cat(vec![buffer, more], 1)
            }
            Some(buffer) => buffer,
        };
        self.buffer = Some(match slots {
            Slots::Same(position) => {
                let row = key_value.reshape([b, 1, width]);
                buffer.slice_assign([0..b, *position..*position + 1, 0..width], row)
            }
            // The place is still zero, so adding is writing.
            Slots::Each { flat, .. } => buffer
                .reshape([b * capacity, width])
                .select_assign(0, flat.clone(), key_value, IndexingUpdateOp::Add)
                .reshape([b, capacity, width]),
        });
    }

    /// Keeps the room that `len` positions need.
    fn shorten(&mut self, len: usize) {
        if let Some(buffer) = &mut self.buffer {
            buffer.inplace(|buffer| buffer.narrow(1, 0, Self::capacity_of(len)));
        }
    }

    /// All positions, `[B * capacity, W]`; those not written yet are zero.
    pub(crate) fn rows(&self) -> Tensor<2> {
        let buffer = self.buffer.as_ref().expect("positions are written before they are read");
        let [b, capacity, width] = buffer.dims();
        buffer.clone().reshape([b * capacity, width])
    }

    fn select(&mut self, rows: &Tensor<1, Int>) {
        if let Some(buffer) = self.buffer.take() {
            self.buffer = Some(buffer.select(0, rows.clone()));
        }
    }
}
