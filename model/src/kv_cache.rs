//! What decoding remembers: the encoded source, and every layer's keys and values of source and of earlier positions.

use burn::tensor::{Int, Tensor, TensorCreationOptions};

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

/// The state of a batch of unfinished targets, all of the same length. Made by
/// [`EncoderDecoder::start`](crate::EncoderDecoder::start), advanced by
/// [`EncoderDecoder::decode_step`](crate::EncoderDecoder::decode_step).
#[derive(Debug, Clone)]
pub struct DecoderCache {
    pub(crate) layers: Vec<LayerCache>,
    pub(crate) source_lengths: Tensor<1, Int>,
    pub(crate) len: usize,
}

impl DecoderCache {
    /// Rows (B): targets in the making.
    pub fn batch_size(&self) -> usize {
        self.source_lengths.dims()[0]
    }

    /// Target positions decoded so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True before the first step.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes row i what row `rows[i]` was: drops finished rows, widens one row to several beams, or moves beams from
    /// one source to another.
    ///
    /// # Shapes
    /// - `rows`: `[B']`, each in `0..B`, repetitions allowed; the batch has B' rows afterwards
    pub fn select(&mut self, rows: &Tensor<1, Int>) {
        self.source_lengths.inplace(|lengths| lengths.select(0, rows.clone()));
        for layer in &mut self.layers {
            layer.source.inplace(|source| source.select(0, rows.clone()));
            layer.target.select(rows);
        }
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
        assert_eq!(found, self.batch_size(), "a new order of beams names each row once");
        for layer in &mut self.layers {
            layer.target.select(rows);
        }
    }
}

/// One decoder layer's share of a [`DecoderCache`].
#[derive(Debug, Clone)]
pub(crate) struct LayerCache {
    /// Keys and values of the source, `[B, S, 2 * D]`.
    pub(crate) source: Tensor<3>,
    /// Keys and values of the target so far.
    pub(crate) target: KeyValueBuffer,
}

impl LayerCache {
    /// # Shapes
    /// - `key_value`: `[B * S, 2 * D]`, of the source
    pub(crate) fn new(key_value: Tensor<2>, batch_size: usize) -> Self {
        let [rows, width] = key_value.dims();
        let target = KeyValueBuffer::new(batch_size, width, (&key_value.device(), key_value.dtype()).into());
        Self { source: key_value.reshape([batch_size, rows / batch_size, width]), target }
    }

    /// `[B * S, 2 * D]`
    pub(crate) fn source_rows(&self) -> Tensor<2> {
        let [b, s, width] = self.source.dims();
        self.source.clone().reshape([b * s, width])
    }
}

/// Keys and values of earlier positions, `[B, capacity, 2 * D]`. Room is made in chunks, so that a step writes one row
/// and copies none, and shapes change (and GPU kernels are chosen) once per chunk.
#[derive(Debug, Clone)]
pub(crate) struct KeyValueBuffer {
    buffer: Tensor<3>,
}

impl KeyValueBuffer {
    /// Positions by which the buffer grows.
    const CHUNK: usize = 32;

    fn new(batch_size: usize, width: usize, options: TensorCreationOptions) -> Self {
        Self { buffer: Tensor::zeros([batch_size, Self::CHUNK, width], options) }
    }

    /// Puts one position's keys and values in place.
    ///
    /// # Shapes
    /// - `key_value`: `[B, 2 * D]`
    pub(crate) fn write(&mut self, key_value: Tensor<2>, position: usize) {
        let [b, capacity, width] = self.buffer.dims();
        if position == capacity {
            let more = self.buffer.zeros_like().narrow(1, 0, Self::CHUNK);
            self.buffer.inplace(|buffer| Tensor::cat(vec![buffer, more], 1));
        }
        let row = key_value.reshape([b, 1, width]);
        self.buffer.inplace(|buffer| buffer.slice_assign([0..b, position..position + 1, 0..width], row));
    }

    /// All positions, `[B * capacity, 2 * D]`; those not written yet are zero.
    pub(crate) fn rows(&self) -> Tensor<2> {
        let [b, capacity, width] = self.buffer.dims();
        self.buffer.clone().reshape([b * capacity, width])
    }

    fn select(&mut self, rows: &Tensor<1, Int>) {
        self.buffer.inplace(|buffer| buffer.select(0, rows.clone()));
    }
}
