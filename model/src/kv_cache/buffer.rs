//! Where a decoder layer keeps the keys and values of earlier positions.

use burn::tensor::{Int, Tensor};
use kiln_kernels::capture::overwrite_rows;

use crate::places::Slots;
use crate::rows::Rows;

/// Keys and values of earlier positions, `[B, capacity, W]` with W = 2 G K. Unwritten positions are zero.
///
/// The capacity grows in chunks. A step then writes one row per sequence without copying the others. Shapes, and with them
/// the choice of GPU kernels, change once per chunk.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyValueBuffer {
    pub(crate) buffer: Option<Tensor<3>>,
}

impl KeyValueBuffer {
    /// Positions by which the buffer grows.
    pub(crate) const CHUNK: usize = 32;

    /// Capacity of a buffer that holds `len` positions.
    pub(crate) fn capacity_of(len: usize) -> usize {
        len.next_multiple_of(Self::CHUNK)
    }

    /// Stores the first positions of all rows. Padding becomes zeros.
    ///
    /// # Shapes
    /// - `key_value`: `[B * T, W]`
    pub(crate) fn fill(&mut self, key_value: Tensor<2>, rows: &Rows) {
        let ([n, width], b) = (key_value.dims(), rows.batch_size);
        let len = rows.len(n);
        let mut filled = key_value.reshape([b, len, width]);

        if let Some(lengths) = &rows.lengths {
            let position =
                Tensor::<1, Int>::arange(0..len as i64, (&lengths.device(), lengths.dtype())).reshape([1, len]);
            let padding = position.greater_equal(lengths.clone().reshape([b, 1]));
            filled = filled.mask_fill(padding.reshape([b, len, 1]).expand([b, len, width]), 0.0);
        }

        self.buffer = Some(Self::with_room(filled));
    }

    /// Stores further positions of a single text after [`Self::truncate`], and returns all of them without room for more.
    ///
    /// # Shapes
    /// - `key_value`: `[T, W]`
    /// - result: `[len + T, W]`
    pub(crate) fn append(&mut self, key_value: Tensor<2>) -> Tensor<2> {
        let [n, width] = key_value.dims();
        let before = self.buffer.take().expect("a text that is continued has a beginning");
        let all = Tensor::cat(vec![before, key_value.reshape([1, n, width])], 1);
        let rows = all.clone().reshape([all.dims()[1], width]);
        self.buffer = Some(Self::with_room(all));
        rows
    }

    /// Extends positions by zeros to their capacity.
    pub(crate) fn with_room(filled: Tensor<3>) -> Tensor<3> {
        let [_, len, _] = filled.dims();
        Self::extended_to(filled, Self::capacity_of(len))
    }

    pub(crate) fn extended_to(filled: Tensor<3>, capacity: usize) -> Tensor<3> {
        let [b, len, width] = filled.dims();
        let room = capacity - len;
        if room == 0 {
            return filled;
        }
        let zeros = Tensor::zeros([b, room, width], (&filled.device(), filled.dtype()));
        Tensor::cat(vec![filled, zeros], 1)
    }

    /// Stores the keys and values of one position of each row, after growing the buffer if it is full.
    ///
    /// # Shapes
    /// - `key_value`: `[B, W]`
    pub(crate) fn write(&mut self, key_value: Tensor<2>, slots: &Slots) {
        let [b, width] = key_value.dims();
        let buffer = self.with_room_for(slots, [b, width], &key_value);
        self.buffer = Some(match slots {
            Slots::Same(position) => {
                let row = key_value.reshape([b, 1, width]);
                buffer.slice_assign([0..b, *position..*position + 1, 0..width], row)
            }
            Slots::Each { positions, .. } => overwrite_rows(buffer, key_value, positions.clone()),
        });
    }

    /// Takes the buffer of `[B, W]` rows, grown if it is full. It has the device and dtype of `like`.
    pub(crate) fn with_room_for(&mut self, slots: &Slots, [b, width]: [usize; 2], like: &Tensor<2>) -> Tensor<3> {
        let position = match slots {
            Slots::Same(position) => *position,
            Slots::Each { longest, .. } => *longest,
        };
        let capacity = Self::capacity_of(position + 1);
        let options = (&like.device(), like.dtype());
        match self.buffer.take() {
            None => Tensor::zeros([b, capacity, width], options),
            Some(buffer) if buffer.dims()[1] < capacity => {
                let more = Tensor::zeros([b, capacity - buffer.dims()[1], width], options);
                Tensor::cat(vec![buffer, more], 1)
            }
            Some(buffer) => buffer,
        }
    }

    /// Shrinks the buffer to the capacity that `len` positions need.
    pub(crate) fn shorten(&mut self, len: usize) {
        if let Some(buffer) = &mut self.buffer {
            buffer.inplace(|buffer| buffer.narrow(1, 0, Self::capacity_of(len)));
        }
    }

    /// Cuts the buffer to its first `len` positions, without room for more.
    pub(crate) fn truncate(&mut self, len: usize) {
        if let Some(buffer) = &mut self.buffer {
            buffer.inplace(|buffer| buffer.narrow(1, 0, len));
        }
    }

    /// All rows, `[N, capacity, W]`.
    pub(crate) fn buffer(&self) -> Tensor<3> {
        self.buffer.clone().expect("positions are written before they are read")
    }

    /// Moves positions so that each of `n` rows has its own, with room for more, in which any numbers stand. `written` says where they
    /// lie, see `Places::make_room`.
    pub(crate) fn gather(&mut self, written: &Tensor<1, Int>, n: usize) {
        if let Some(buffer) = self.buffer.take() {
            let ([rows, capacity, width], [all]) = (buffer.dims(), written.dims());
            let (len, wanted) = (all / n, Self::capacity_of(all / n + 1));
            let written = written.clone().reshape([n, len]);
            let room = Tensor::<2, Int>::zeros([n, wanted - len], (&written.device(), written.dtype()));
            let places = Tensor::cat(vec![written, room], 1).reshape([n * wanted]);
            let own = buffer.reshape([rows * capacity, width]).select(0, places);
            self.buffer = Some(own.reshape([n, wanted, width]));
        }
    }

    /// All positions, `[B * capacity, W]`. Unwritten ones are zero.
    pub(crate) fn rows(&self) -> Tensor<2> {
        let buffer = self.buffer.as_ref().expect("positions are written before they are read");
        let [b, capacity, width] = buffer.dims();
        buffer.clone().reshape([b * capacity, width])
    }

    pub(crate) fn select(&mut self, rows: &Tensor<1, Int>) {
        if let Some(buffer) = self.buffer.take() {
            self.buffer = Some(buffer.select(0, rows.clone()));
        }
    }
}
