//! The step of a batch of texts as a CUDA graph: one launch in place of a few for each layer.
//!
//! A recording has buffers of its own, in which keys and values are written and positions counted on the device. It serves the texts
//! of a batch until they outgrow its room, or half of them have ended. Where the likeliest token follows, it also chooses that token and
//! reads it in the next replay: the host launches graphs alone.

use burn::tensor::{DType, Device, Int, Tensor};
use kiln_kernels::ColumnSet;
use kiln_kernels::capture::{CaptureError, Captured, can_capture, capture_step, overwrite, overwrite_numbers};
use kiln_model::{DecoderCache, DecoderOnly};

use super::batching::{int_tensor, likeliest};

/// Steps of a batch before its step is recorded, which costs about as much as five more.
const STEPS_BEFORE: usize = 4;
/// Rooms are multiples of this many positions.
const ROOM: usize = 512;
/// Rooms are made for whole texts up to this many positions. Longer texts are recorded again as they grow.
const WHOLE: usize = 4096;

/// Decides when a step is recorded, and replays it.
#[derive(Debug)]
pub(super) struct Replays {
    recorded: Option<Box<Recorded>>,
    /// Steps since the texts of the batch were others.
    n_steps: usize,
    /// Whether steps are recorded at all.
    wanted: bool,
    /// Positions that the longest text may have.
    most: usize,
}

/// What a recorded step writes.
#[derive(Debug)]
struct Written {
    /// `[R, V]`
    logits: Tensor<2>,
    /// The token that was chosen behind each position, `[R, S]`; only where the step chooses.
    chosen: Option<Tensor<2, Int>>,
    _state: DecoderCache,
    _ids: Tensor<1, Int>,
}

/// A recorded step, and which texts it serves.
#[derive(Debug)]
struct Recorded {
    captured: Captured<Written>,
    /// The state that the recording reads and writes.
    state: DecoderCache,
    /// The tokens that it reads, `[R]`.
    ids: Tensor<1, Int>,
    room: usize,
    /// The row of each text. Rows of texts that have ended go on and are ignored.
    rows: Vec<usize>,
}

impl Replays {
    /// For texts of `lengths` positions that get up to `limits` more.
    pub(super) fn on(device: &Device, lengths: &[usize], limits: &[usize]) -> Self {
        let most = lengths.iter().zip(limits).map(|(len, limit)| len + limit).max().unwrap_or(0);
        Self { recorded: None, n_steps: 0, wanted: can_capture(device), most }
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
        self.n_steps += 1;
        self.prepare(model, lengths, cache, None);
        let logits = self.recorded.as_mut()?.replay(ids);
        self.or_leave(logits, lengths, cache)
    }

    /// Appends `ids` and then the likeliest token that is not in `never`, `n` times in all, and returns the likeliest tokens, `[B, n]`.
    /// None: the caller does so.
    pub(super) fn follow(
        &mut self,
        model: &DecoderOnly,
        ids: &Tensor<1, Int>,
        n: usize,
        lengths: &[usize],
        cache: &mut DecoderCache,
        never: &ColumnSet,
    ) -> Option<Tensor<2, Int>> {
        self.n_steps += n;
        self.prepare(model, lengths, cache, Some((never, n)));
        let chosen = self.recorded.as_mut()?.follow(ids, n, lengths)?;
        self.or_leave(chosen, lengths, cache)
    }

    /// Makes a recording if it is time for one, with room for `n` further positions. It chooses tokens if there are some that it must
    /// not choose.
    fn prepare(
        &mut self,
        model: &DecoderOnly,
        lengths: &[usize],
        cache: &mut DecoderCache,
        choice: Option<(&ColumnSet, usize)>,
    ) {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let end = longest + choice.map_or(1, |(_, n)| n);
        // The device counts up to the last position of the room.
        if self.recorded.as_ref().is_some_and(|recorded| end >= recorded.room) {
            self.leave(lengths, cache);
        }
        if self.recorded.is_none() && self.wanted && self.n_steps > STEPS_BEFORE {
            let room = (end + 1).max(self.most.min(WHOLE)).next_multiple_of(ROOM);
            self.recorded = Recorded::new(model, cache, room, choice.map(|(never, _)| never)).ok().map(Box::new);
            self.wanted = self.recorded.is_some();
        }
    }

    /// Leaves a recording that cannot be replayed.
    fn or_leave<T>(
        &mut self,
        result: Result<T, CaptureError>,
        lengths: &[usize],
        cache: &mut DecoderCache,
    ) -> Option<T> {
        if result.is_err() {
            self.leave(lengths, cache);
            self.wanted = false;
        }
        result.ok()
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
    /// Records the step of as many texts as `cache` has, each with `room` positions, and copies them. The step chooses a token that is not
    /// in `never`, if there is such a set.
    fn new(
        model: &DecoderOnly,
        cache: &DecoderCache,
        room: usize,
        never: Option<&ColumnSet>,
    ) -> Result<Self, CaptureError> {
        let (n, most) = (cache.batch_size(), model.config().max_positions);
        let mut state = cache.fixed(room, most);
        let device = state.device();
        let zeros = Tensor::<1, Int>::zeros([n], (&device, DType::I32));
        let ids = overwrite(zeros.clone(), zeros);

        let work = {
            let (model, state, ids) = (model.clone(), state.clone(), ids.clone());
            let chosen = Tensor::<2, Int>::zeros([n, room], (&device, DType::I32));
            let choice = never.cloned().map(|never| (never, overwrite(chosen.clone(), chosen)));
            move || {
                let mut state = state.clone();
                let logits = model.decode_step(ids.clone(), &mut state);
                let Some((never, chosen)) = &choice else {
                    return Written { logits, chosen: None, _state: state, _ids: ids.clone() };
                };
                let next = likeliest(logits.clone(), never);
                let counted = state.lengths().expect("texts count their positions").clone();
                let chosen = overwrite_numbers(chosen.clone(), next.clone(), counted);
                Written { logits, chosen: Some(chosen), _state: state, _ids: overwrite(ids.clone(), next) }
            }
        };
        // Rehearsals and recording see empty texts; the texts come afterwards.
        let captured = capture_step(&device, work)?;
        state.refill(cache);
        Ok(Self { captured, state, ids, room, rows: (0..n).collect() })
    }

    /// # Shapes
    /// - `ids`: `[B]`; result `[B, V]`
    fn replay(&mut self, ids: &Tensor<1, Int>) -> Result<Tensor<2>, CaptureError> {
        self.read(ids);
        let logits = self.captured.replay()?.logits.clone();
        if self.rows.len() == self.ids.dims()[0] {
            return Ok(logits);
        }
        Ok(logits.select(0, int_tensor(self.rows.iter().map(|&row| row as i32).collect(), &ids.device())))
    }

    /// See [`Replays::follow`]. None: the step does not choose.
    fn follow(
        &mut self,
        ids: &Tensor<1, Int>,
        n: usize,
        lengths: &[usize],
    ) -> Option<Result<Tensor<2, Int>, CaptureError>> {
        self.captured.output().chosen.as_ref()?;
        self.read(ids);
        let mut replayed = Ok(());
        for _ in 0..n {
            replayed = replayed.and_then(|()| self.captured.replay().map(|_| ()));
        }
        let all = self.captured.output().chosen.clone()?;
        let places = self.rows.iter().zip(lengths).flat_map(|(row, len)| {
            let first = row * self.room + len + 1;
            (first..first + n).map(|place| place as i32)
        });
        let places = int_tensor(places.collect(), &ids.device());
        let [rows, room] = all.dims();
        Some(replayed.map(|()| all.reshape([rows * room]).select(0, places).reshape([lengths.len(), n])))
    }

    /// Overwrites the tokens that the step reads. Rows without a text read the token of the first one.
    fn read(&mut self, ids: &Tensor<1, Int>) {
        let ([n], device) = (self.ids.dims(), ids.device());
        let mut ids = ids.clone();
        if self.rows.len() < n {
            let mut from = vec![0; n];
            self.rows.iter().enumerate().for_each(|(text, &row)| from[row] = text as i32);
            ids = ids.select(0, int_tensor(from, &device));
        }
        self.ids = overwrite(self.ids.clone(), ids);
    }
}
