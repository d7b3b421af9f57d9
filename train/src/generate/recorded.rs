//! The step of a batch of texts as a CUDA graph: one launch in place of a few for each layer.
//!
//! A recording has buffers of its own, in which keys and values are written and positions counted on the device. It serves the texts
//! of a batch until they outgrow its room, or half of them have ended.

use burn::tensor::{DType, Device, Int, Tensor};
use kiln_kernels::capture::{CaptureError, Captured, can_capture, capture, overwrite};
use kiln_model::{DecoderCache, DecoderOnly};

use super::batching::int_tensor;

/// Steps of a batch before its step is recorded, which costs about as much as five more.
const STEPS_BEFORE: usize = 8;
/// Rooms are multiples of this many positions.
const ROOM: usize = 512;

/// Decides when a step is recorded, and replays it.
#[derive(Debug)]
pub(super) struct Replays {
    recorded: Option<Box<Recorded>>,
    /// Steps since the texts of the batch were others.
    n_steps: usize,
    /// Whether steps are recorded at all.
    wanted: bool,
}

/// A recorded step, and which texts it serves.
#[derive(Debug)]
struct Recorded {
    captured: Captured<(Tensor<2>, DecoderCache)>,
    /// The state that the recording reads and writes.
    state: DecoderCache,
    /// The tokens that it reads, `[R]`.
    ids: Tensor<1, Int>,
    room: usize,
    /// The row of each text. Rows of texts that have ended go on and are ignored.
    rows: Vec<usize>,
}

impl Replays {
    pub(super) fn on(device: &Device) -> Self {
        Self { recorded: None, n_steps: 0, wanted: can_capture(device) }
    }

    /// Appends a token to each text by a replay, and returns the logits of the next. None: the caller does so. `lengths` are the
    /// positions of the texts before. `cache` is theirs, unless a recording has it.
    pub(super) fn step(
        &mut self,
        model: &DecoderOnly,
        ids: &Tensor<1, Int>,
        lengths: &[usize],
        cache: &mut DecoderCache,
    ) -> Option<Tensor<2>> {
        let longest = lengths.iter().copied().max()?;
        if self.recorded.as_ref().is_some_and(|recorded| longest >= recorded.room) {
            self.leave(lengths, cache);
        }
        self.n_steps += 1;
        if self.recorded.is_none() && self.wanted && self.n_steps > STEPS_BEFORE {
            self.recorded = Recorded::new(model, cache, longest).ok().map(Box::new);
            self.wanted = self.recorded.is_some();
        }
        self.recorded.as_mut()?.replay(ids).map(Some).unwrap_or_else(|_| {
            self.leave(lengths, cache);
            self.wanted = false;
            None
        })
    }

    /// Goes on with some of the texts. Returns whether that is all there is to do; otherwise `cache` has all texts.
    pub(super) fn select(&mut self, rows: &[usize], lengths: &[usize], cache: &mut DecoderCache) -> bool {
        let Some(recorded) = &mut self.recorded else {
            self.n_steps = 0;
            return false;
        };
        let is_part = rows.windows(2).all(|pair| pair[0] < pair[1]);
        if is_part && 2 * rows.len() > recorded.ids.dims()[0] {
            recorded.rows = rows.iter().map(|&row| recorded.rows[row]).collect();
            return true;
        }
        self.leave(lengths, cache);
        self.n_steps = 0;
        false
    }

    /// Records nothing from now on, because the rows move at every step.
    pub(super) fn never(&mut self, lengths: &[usize], cache: &mut DecoderCache) {
        self.leave(lengths, cache);
        self.wanted = false;
    }

    /// Gives the texts of a recording back to `cache`.
    pub(super) fn leave(&mut self, lengths: &[usize], cache: &mut DecoderCache) {
        if let Some(recorded) = self.recorded.take() {
            let rows = recorded.rows.iter().map(|&row| row as i32).collect();
            let rows = int_tensor(rows, &recorded.ids.device());
            *cache = recorded.state.growing(&rows, lengths.iter().copied().max().unwrap_or(1));
        }
    }
}

impl Recorded {
    /// Records the step of as many texts as `cache` has, the longest of `longest` positions, and copies them.
    fn new(model: &DecoderOnly, cache: &DecoderCache, longest: usize) -> Result<Self, CaptureError> {
        let (n, most) = (cache.batch_size(), model.config().max_positions);
        let room = (longest + 1).next_multiple_of(ROOM);
        let mut state = cache.fixed(room, most);
        let device = state.device();
        let zeros = Tensor::<1, Int>::zeros([n], (&device, DType::I32));
        let ids = overwrite(zeros.clone(), zeros);
        let work = {
            let (model, state, ids) = (model.clone(), state.clone(), ids.clone());
            move || {
                let mut state = state.clone();
                (model.decode_step(ids.clone(), &mut state), state)
            }
        };
        // Rehearsals and recording see empty texts; the texts come afterwards.
        let (captured, _) = capture(&device, work, |_| ())?;
        state.refill(cache);
        Ok(Self { captured, state, ids, room, rows: (0..n).collect() })
    }

    /// # Shapes
    /// - `ids`: `[B]`; result `[B, V]`
    fn replay(&mut self, ids: &Tensor<1, Int>) -> Result<Tensor<2>, CaptureError> {
        let ([n], device) = (self.ids.dims(), ids.device());
        if self.rows.len() == n {
            self.ids = overwrite(self.ids.clone(), ids.clone());
            return Ok(self.captured.replay()?.0.clone());
        }
        // Rows without a text read the token of the first one.
        let mut from = vec![0; n];
        self.rows.iter().enumerate().for_each(|(text, &row)| from[row] = text as i32);
        self.ids = overwrite(self.ids.clone(), ids.clone().select(0, int_tensor(from, &device)));
        let rows = int_tensor(self.rows.iter().map(|&row| row as i32).collect(), &device);
        Ok(self.captured.replay()?.0.clone().select(0, rows))
    }
}
