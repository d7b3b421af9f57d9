//! The state of decoding: the encoded source, and each layer's keys and values of the source and of earlier positions.

mod buffer;

pub(crate) use buffer::KeyValueBuffer;
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_kernels::capture::{overwrite, overwrite_floats};

use crate::places::{Places, Slots, Step};

/// An encoded batch of sources.
#[derive(Debug, Clone)]
pub struct Memory {
    /// `[B * S, D]`
    pub hidden: Tensor<2>,
    /// Non-padding source positions, `[B]`.
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

/// The state of a batch of unfinished targets.
///
/// A model's `start` creates it, `prefill` fills it with prompts, and `decode_step` advances it. Prompts may differ in
/// length: each row then counts its own positions. [`DecoderOnly::extend`](crate::DecoderOnly::extend) gives a single text
/// another end.
#[derive(Debug, Clone)]
pub struct DecoderCache {
    pub(crate) layers: Vec<LayerCache>,
    pub(crate) source_lengths: Option<Tensor<1, Int>>,
    /// Positions of each row, `[B]`. None: all rows have `len`.
    lengths: Option<Tensor<1, Int>>,
    /// Where keys and values lie. None: row i of every buffer, and of the sources, belongs to row i.
    places: Option<Places>,
    /// Whether the layers of texts read keys and values by [`Step::places`].
    looks_up: bool,
    /// Positions of a text at most, where buffers and lengths stay in their memory ([`Self::fixed`]).
    fixed: Option<usize>,
    batch_size: usize,
    len: usize,
}

impl DecoderCache {
    pub(crate) fn new(layers: Vec<LayerCache>, batch_size: usize, source_lengths: Option<Tensor<1, Int>>) -> Self {
        Self { layers, source_lengths, lengths: None, places: None, looks_up: false, fixed: None, batch_size, len: 0 }
    }

    /// Lets rows share keys and values, which a decoder must look up by [`Step::places`].
    pub(crate) fn with_places(mut self, device: &Device) -> Self {
        self.places = Some(Places::new(self.batch_size, KeyValueBuffer::CHUNK, device));
        self
    }

    /// Gives each row a copy of its source, before prompts of several lengths are read.
    pub(crate) fn without_places(&mut self) {
        if let Some(places) = self.places.take() {
            let sources = places.sources().clone().reshape([self.batch_size]);
            self.layers.iter_mut().for_each(|layer| layer.select_source(&sources));
        }
    }

    /// Returns an empty state of as many texts, with room for at least `capacity` positions in memory of its own. Steps write there and count on
    /// the device, so that a recorded step can be replayed. No text becomes longer than `most_positions`: one that would stays at the
    /// last position, and has no meaning from then on.
    ///
    /// # Panics
    /// If the texts have a source, or `self` is empty.
    pub fn fixed(&self, capacity: usize, most_positions: usize) -> Self {
        assert!(self.source_lengths.is_none() && !self.is_empty(), "only texts have fixed buffers");
        let layers = self.layers.iter().map(|layer| {
            let [b, _, width] = layer.target.buffer().dims();
            let buffer = layer.target.buffer();
            let zeros =
                Tensor::zeros([b, KeyValueBuffer::capacity_of(capacity), width], (&buffer.device(), buffer.dtype()));
            LayerCache { source: None, target: KeyValueBuffer { buffer: Some(zeros) } }
        });
        let lengths = self.lengths().expect("texts count their positions");
        Self {
            layers: layers.collect(),
            lengths: Some(overwrite(lengths.zeros_like(), lengths.zeros_like())),
            fixed: Some(KeyValueBuffer::capacity_of(capacity).min(most_positions)),
            len: 0,
            ..self.clone()
        }
    }

    /// Overwrites the buffers of [`Self::fixed`] with the positions of `texts`, which are as many.
    ///
    /// # Panics
    /// If `texts` are longer than the capacity.
    pub fn refill(&mut self, texts: &Self) {
        let KeyValueBuffer { buffer } = &self.layers[0].target;
        let capacity = buffer.as_ref().expect("fixed buffers").dims()[1];
        for (fixed, layer) in self.layers.iter_mut().zip(&texts.layers) {
            let buffer = layer.target.buffer();
            let room = buffer.dims()[1].min(capacity);
            let filled = KeyValueBuffer::extended_to(buffer.narrow(1, 0, room), capacity);
            fixed.target.buffer = fixed.target.buffer.take().map(|own| overwrite_floats(own, filled));
        }
        let lengths = texts.lengths().expect("texts count their positions").clone();
        self.lengths = self.lengths.take().map(|own| overwrite(own, lengths));
    }

    /// Returns a copy of some `rows` of [`Self::fixed`], the longest of which has `len` positions, in buffers that grow.
    ///
    /// # Shapes
    /// - `rows`: `[B']`
    pub fn growing(&self, rows: &Tensor<1, Int>, len: usize) -> Self {
        let mut texts = Self { fixed: None, len, ..self.clone() };
        for layer in &mut texts.layers {
            layer.target.shorten(len);
        }
        texts.select_targets(rows);
        texts
    }

    /// Rows (B): unfinished targets.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// The device of the texts.
    ///
    /// # Panics
    /// If it has not a single position.
    pub fn device(&self) -> Device {
        self.layers[0].target.buffer().device()
    }

    /// Target positions so far, in the longest row.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Positions of each row, `[B]`. None: all have [`Self::len`].
    pub fn lengths(&self) -> Option<&Tensor<1, Int>> {
        self.lengths.as_ref()
    }

    /// Whether no position has been decoded yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Replaces row i by the former row `rows[i]`: to drop finished rows, to widen one row to several beams, or to move
    /// beams from one source to another.
    ///
    /// # Shapes
    /// - `rows`: `[B']`, each in `0..B`, repetitions allowed; the batch has B' rows afterwards
    pub fn select(&mut self, rows: &Tensor<1, Int>) {
        if let Some(lengths) = &mut self.source_lengths {
            lengths.inplace(|lengths| lengths.select(0, rows.clone()));
        }
        if let Some(places) = &mut self.places {
            places.select(rows, self.len);
            [self.batch_size] = rows.dims();
            return;
        }
        self.layers.iter_mut().for_each(|layer| layer.select_source(rows));
        self.select_targets(rows);
    }

    /// Sets the length of the longest row, after [`Self::select`] has dropped longer ones, and frees the memory that no row
    /// needs any more. The host has to say so, because the lengths of unequal rows are on the device.
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

    /// Forgets the positions of a single text after the first `len`.
    ///
    /// # Panics
    /// If there are several rows, or `len` is 0 or above [`Self::len`].
    pub(crate) fn truncate(&mut self, len: usize) {
        assert_eq!(self.batch_size, 1, "only a single text can be given another end");
        assert!(len > 0 && len <= self.len, "{len} positions to keep, but the cache has {}", self.len);
        for layer in &mut self.layers {
            layer.target.truncate(len);
        }
        (self.lengths, self.len) = (None, len);
    }

    /// [`Self::select`] for a step of beam search, where beams move only within their source. Keys and values of the source
    /// stay where they are.
    ///
    /// # Shapes
    /// - `rows`: `[B]`, each in `0..B`
    ///
    /// # Panics
    /// If `rows` does not have B elements.
    pub fn reorder_beams(&mut self, rows: &Tensor<1, Int>) {
        let [found] = rows.dims();
        assert_eq!(found, self.batch_size, "a new order of beams names each row once");
        match &mut self.places {
            Some(places) => places.reorder(rows, self.len),
            None => self.select_targets(rows),
        }
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

    /// Describes the next position to the layers, after making room for it.
    pub(crate) fn next_step(&mut self, device: &Device) -> Step {
        let capacity = self.next_capacity();
        if let Some(written) = self.places.as_mut().and_then(|places| places.make_room(self.len, capacity)) {
            self.layers.iter_mut().for_each(|layer| layer.target.gather(&written, self.batch_size));
        }

        let options = (&device.clone().inner(), DType::I32);
        match &self.lengths {
            None => Step {
                positions: Tensor::full([self.batch_size], self.len as i64, options),
                lengths: Tensor::full([self.batch_size], self.len as i64 + 1, options),
                slots: Slots::Same(self.len),
                places: self.places.clone(),
                appends: false,
                bias: None,
            },
            Some(lengths) => Step {
                positions: lengths.clone(),
                lengths: lengths.clone() + 1,
                slots: Slots::Each { positions: lengths.clone(), longest: self.len },
                // Texts with a source look it up.
                places: (self.looks_up && self.source_lengths.is_some())
                    .then(|| Places::of_texts(self.batch_size, device)),
                appends: self.looks_up,
                bias: None,
            },
        }
    }

    /// The capacity of every layer's buffer once the next position is in it.
    pub(crate) fn next_capacity(&self) -> usize {
        match (self.fixed, self.layers.first()) {
            (Some(_), Some(layer)) => layer.target.buffer().dims()[1],
            _ => KeyValueBuffer::capacity_of(self.len + 1),
        }
    }

    /// Counts the position of `step`, after the layers have processed it.
    pub(crate) fn advance(&mut self, step: Step) {
        match self.fixed {
            // The host does not count positions that a replay adds.
            Some(most) => {
                let next = step.lengths.clamp_max(most as i64 - 1);
                self.lengths = self.lengths.take().map(|lengths| overwrite(lengths, next));
            }
            None => {
                self.lengths = self.lengths.is_some().then_some(step.lengths);
                self.len += 1;
            }
        }
    }

    /// Counts `n` further positions of a single text, after the layers have processed them.
    pub(crate) fn extended(&mut self, n: usize, device: &Device) {
        self.len += n;
        self.lengths = Some(Tensor::full([1], self.len as i64, (&device.clone().inner(), DType::I32)));
    }

    /// Counts prompts of `lengths`, padded to `len` positions, after the layers have processed them. `looks_up`: whether the layers read
    /// keys and values by [`Step::places`].
    pub(crate) fn filled(&mut self, lengths: Tensor<1, Int>, len: usize, looks_up: bool) {
        self.lengths = Some(lengths);
        self.looks_up = looks_up;
        self.len = len;
    }
}

/// The keys and values of one decoder layer.
#[derive(Debug, Clone, Default)]
pub(crate) struct LayerCache {
    /// Keys and values of the source, `[B, S, W]`.
    source: Option<Tensor<3>>,
    /// Keys and values of the target so far.
    pub(crate) target: KeyValueBuffer,
}

impl LayerCache {
    /// A cache with the keys and values of the source and an empty target.
    ///
    /// # Shapes
    /// - `key_value`: `[B * S, W]`, of the source
    pub(crate) fn with_source(key_value: Tensor<2>, batch_size: usize) -> Self {
        let [rows, width] = key_value.dims();
        let source = Some(key_value.reshape([batch_size, rows / batch_size, width]));
        Self { source, target: KeyValueBuffer::default() }
    }

    /// Keys and values of the sources, `[N, S, W]`.
    pub(crate) fn sources(&self) -> Tensor<3> {
        self.source.clone().expect("a layer that looks at a source has one")
    }

    fn select_source(&mut self, rows: &Tensor<1, Int>) {
        if let Some(source) = &mut self.source {
            source.inplace(|source| source.select(0, rows.clone()));
        }
    }

    /// Keys and values of the source, `[B * S, W]`.
    pub(crate) fn source_rows(&self) -> Tensor<2> {
        let source = self.source.as_ref().expect("a layer that looks at a source has one");
        let [b, s, width] = source.dims();
        source.clone().reshape([b * s, width])
    }
}
