//! The next position of unfinished targets, and where the keys and values of earlier ones lie: a search that moves rows changes a table
//! and copies no keys.

use burn::tensor::{DType, Device, Int, Tensor};

/// The next position of every row.
pub(crate) struct Step {
    /// Its number in the row, `[B]`.
    pub(crate) positions: Tensor<1, Int>,
    /// Positions of the row, this one included, `[B]`.
    pub(crate) lengths: Tensor<1, Int>,
    /// Where its keys and values go.
    pub(crate) slots: Slots,
    /// Where keys and values lie, unless each row has its own.
    pub(crate) places: Option<Places>,
    /// Whether attention itself appends the position to the row's own buffers.
    pub(crate) appends: bool,
    /// What relative positions add to its scores, `[B, H, 1, S]` with S the capacity of the buffers.
    pub(crate) bias: Option<Tensor<4>>,
}

/// Where a position's keys and values go in a buffer.
#[expect(clippy::large_enum_variant, reason = "one per position")]
pub(crate) enum Slots {
    /// The same position in every row.
    Same(usize),
    /// Its own position in each row.
    Each {
        /// `[B]`
        positions: Tensor<1, Int>,
        /// The largest position.
        longest: usize,
    },
}

/// For each row (R) the rows of the buffers that hold its keys and values.
///
/// Every row writes the next position into its own row of the buffers. No other position lies there, so that rows share all earlier
/// ones.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// The buffers' row of each target position, `[R, capacity]`, or of all of them, `[R, 1]`.
    targets: Tensor<2, Int>,
    /// The source of each row, `[R, 1]`.
    sources: Tensor<2, Int>,
    /// Rows of the buffers, at least R once there is room for the next position.
    n_buffer_rows: usize,
}

impl Places {
    /// Each of `n` rows in its own row of the buffers, and with a source of its own.
    pub(crate) fn new(n: usize, capacity: usize, device: &Device) -> Self {
        Self { targets: own(n, capacity, device), sources: own(n, 1, device), n_buffer_rows: n }
    }

    /// Each of `n` rows in its own row of the buffers, where it stays.
    pub(crate) fn of_texts(n: usize, device: &Device) -> Self {
        Self::new(n, 1, device)
    }

    /// The buffers' row of each target position, see [`Self`].
    pub(crate) fn targets(&self) -> &Tensor<2, Int> {
        &self.targets
    }

    /// The source of each row, `[R, 1]`.
    pub(crate) fn sources(&self) -> &Tensor<2, Int> {
        &self.sources
    }

    /// Replaces row i by the former row `rows[i]`, whose first `len` positions are written.
    pub(crate) fn select(&mut self, rows: &Tensor<1, Int>, len: usize) {
        self.sources.inplace(|sources| sources.select(0, rows.clone()));
        self.reorder(rows, len);
    }

    /// [`Self::select`] if each row keeps its source.
    pub(crate) fn reorder(&mut self, rows: &Tensor<1, Int>, len: usize) {
        let ([n], [_, capacity]) = (rows.dims(), self.targets.dims());
        let written = self.targets.clone().narrow(1, 0, len).select(0, rows.clone());
        let next = own(n, capacity - len, &rows.device());
        self.targets = match (len, capacity - len) {
            (0, _) => next,
            (_, 0) => written,
            _ => Tensor::cat(vec![written, next], 1),
        };
    }

    /// Makes room for the position after the first `len` if the buffers have none. Returns where these positions lie in the buffers,
    /// `[R * len]` of `[N * capacity]`: the caller moves them, so that each row has all of its own in buffers of `capacity` positions.
    pub(crate) fn make_room(&mut self, len: usize, capacity: usize) -> Option<Tensor<1, Int>> {
        let [n, former] = self.targets.dims();
        if len < former && n <= self.n_buffer_rows {
            return None;
        }
        let device = self.targets.device();
        let position = Tensor::<1, Int>::arange(0..len as i64, (&device, DType::I32)).reshape([1, len]);
        let at = self.targets.clone().narrow(1, 0, len) * former as i64 + position.expand([n, len]);
        (self.targets, self.n_buffer_rows) = (own(n, capacity, &device), n);
        Some(at.reshape([n * len]))
    }
}

/// The number of each row, `[n, width]`, at least one column.
fn own(n: usize, width: usize, device: &Device) -> Tensor<2, Int> {
    let rows = Tensor::<1, Int>::arange(0..n as i64, (&device.clone().inner(), DType::I32));
    rows.reshape([n, 1]).expand([n, width.max(1)])
}
