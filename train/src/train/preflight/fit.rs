//! Makes a step small enough for the memory of the device.

use anyhow::{Result, anyhow};
use burn::tensor::Device;
use kiln_data::Shape;
use kiln_model::ActivationCheckpointing;
use serde_json::json;

use super::probe::{Failure, make_room};
use crate::config::computed_again;
use crate::train::guard::explained;

/// What decides, for a given batch, how much memory a step needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Footprint {
    /// Micro-batches that every batch is cut into.
    pub(super) splits: usize,
    /// Activations that are kept.
    pub(super) checkpointing: ActivationCheckpointing,
}

/// What may change so that a step needs less memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Freedom {
    pub(super) splits: bool,
    pub(super) checkpointing: bool,
}

impl Footprint {
    /// Returns the next smaller one for batches of `batch_size` rows. Smaller micro-batches cost less time than computing activations
    /// again.
    fn smaller(self, freedom: Freedom, batch_size: usize) -> Option<Self> {
        if freedom.splits && self.splits < batch_size {
            return Some(Self { splits: (2 * self.splits).min(batch_size), ..self });
        }
        let checkpointing = match self.checkpointing {
            _ if !freedom.checkpointing => return None,
            ActivationCheckpointing::Off => ActivationCheckpointing::Selective,
            ActivationCheckpointing::Selective => ActivationCheckpointing::Layer,
            ActivationCheckpointing::Layer => return None,
        };
        Some(Self { checkpointing, ..self })
    }

    /// Says that a batch of `shape` did not fit, and that this is tried next instead of `before`.
    fn note(self, before: Self, shape: Shape) -> String {
        let change = match computed_again(self.checkpointing) {
            Some(again) if self.checkpointing != before.checkpointing => {
                format!("{again} (train.activation_checkpointing = {})", json!(self.checkpointing))
            }
            _ => format!("cutting every batch into {} micro-batches", self.splits),
        };
        format!("{shape} does not fit into memory: {change}")
    }

    fn refuse(self, freedom: Freedom, shape: Shape, reason: &str) -> anyhow::Error {
        let again = match self.checkpointing {
            ActivationCheckpointing::Off => "",
            ActivationCheckpointing::Selective => ", selective activation checkpointing",
            ActivationCheckpointing::Layer => ", activation checkpointing by layer",
        };
        let remedy = match freedom.splits {
            true => "a single row is already too much: lower the length limits of the data or use a smaller model",
            false => {
                "start with --auto-micro-batch, or lower loader.batch_tokens and raise train.grad_accum_steps by the same factor"
            }
        };
        let fewer = match self.checkpointing {
            ActivationCheckpointing::Layer => "",
            _ => "set train.activation_checkpointing = \"auto\"; or ",
        };
        anyhow!(
            "out of device memory for the largest batch, {} in {} micro-batch(es){again}, tried before the first step; \
             {fewer}{remedy} ({reason})",
            explained(shape),
            self.splits,
        )
    }
}

/// Finds a footprint with which the largest batch fits: the given one or, as far as there is `freedom`, the next smaller ones.
/// `attempt` tries one, and `note` gets a line about each that is too large.
///
/// Each attempt gets a fresh state from `begin`, because a failed one can leave every tensor it touched unreadable,
/// including the weights. The state of the last attempt is returned.
pub(super) fn fit<S>(
    device: &Device,
    mut footprint: Footprint,
    freedom: Freedom,
    begin: impl Fn(ActivationCheckpointing) -> Result<S>,
    attempt: impl Fn(&S, usize) -> Result<(), Failure>,
    mut note: impl FnMut(&str) -> Result<()>,
) -> Result<(S, Footprint)> {
    footprint.splits = footprint.splits.max(1);
    loop {
        let state = begin(footprint.checkpointing)?;
        let (shape, reason) = match attempt(&state, footprint.splits) {
            Ok(()) => return Ok((state, footprint)),
            Err(Failure::Other(error)) => return Err(error),
            Err(Failure::Memory { shape, reason }) => (shape, reason),
        };

        let Some(smaller) = footprint.smaller(freedom, shape.batch_size) else {
            return Err(footprint.refuse(freedom, shape, &reason));
        };
        note(&smaller.note(footprint, shape))?;
        footprint = smaller;
        drop(state);
        make_room(device);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::probe::guarded;
    use super::*;

    const SHAPE: Shape = Shape { batch_size: 6, source_len: 40, target_len: 50 };
    const WHOLE: Footprint = Footprint { splits: 1, checkpointing: ActivationCheckpointing::Off };
    const LAYER: Footprint = Footprint { splits: 1, checkpointing: ActivationCheckpointing::Layer };
    const NEITHER: Freedom = Freedom { splits: false, checkpointing: false };
    const SPLITS: Freedom = Freedom { splits: true, checkpointing: false };
    const CHECKPOINTING: Freedom = Freedom { splits: false, checkpointing: true };
    const BOTH: Freedom = Freedom { splits: true, checkpointing: true };

    /// A state, whether an attempt has spoiled it, and its activations in sixteenths.
    struct State {
        is_spoiled: Cell<bool>,
        kept: usize,
    }

    /// Fits `SHAPE` into a device with the memory of `room` sixteenths of a whole batch.
    fn fitted(room: usize, start: Footprint, freedom: Freedom) -> (Result<Footprint>, Vec<String>) {
        let begin = |checkpointing| {
            let kept = match checkpointing {
                ActivationCheckpointing::Off => 16,
                ActivationCheckpointing::Selective => 10,
                ActivationCheckpointing::Layer => 2,
            };
            Ok(State { is_spoiled: Cell::new(false), kept })
        };
        let attempt = |state: &State, splits: usize| {
            assert!(!state.is_spoiled.replace(true), "a state of a failed attempt");
            guarded(SHAPE, || {
                let fits = state.kept <= room * splits;
                assert!(fits, "several failures\n  can't allocate buffer of size: 12800\nAsked at:");
                Ok(())
            })
        };

        let mut notes = Vec::new();
        let note = |note: &str| {
            notes.push(note.to_string());
            Ok(())
        };
        let result = fit(&Device::flex(), start, freedom, begin, attempt, note);
        (result.map(|(_, footprint)| footprint), notes)
    }

    #[test]
    fn micro_batches_are_halved_until_they_fit() {
        assert_eq!(fitted(16, WHOLE, NEITHER).0.expect("fits at once"), WHOLE);
        let (footprint, notes) = fitted(5, WHOLE, BOTH);
        assert_eq!((footprint.expect("fits in four"), notes.len()), (Footprint { splits: 4, ..WHOLE }, 2));
        assert!(notes[1].contains("6 x (40 + 50)") && notes[1].contains("into 4"), "{notes:?}");
        assert_eq!(fitted(3, WHOLE, SPLITS).0.expect("a row each").splits, 6);
    }

    #[test]
    fn activations_are_computed_again_until_they_fit() {
        let (footprint, notes) = fitted(10, WHOLE, CHECKPOINTING);
        let selective = Footprint { splits: 1, checkpointing: ActivationCheckpointing::Selective };
        assert_eq!((footprint.expect("selective fits"), notes.len()), (selective, 1));
        assert!(notes[0].starts_with("6 x (40 + 50) does not fit") && notes[0].contains("\"selective\""), "{notes:?}");
        let (footprint, notes) = fitted(2, WHOLE, CHECKPOINTING);
        assert_eq!((footprint.expect("layers fit"), notes.len()), (LAYER, 2));
        assert!(notes[1].contains("every layer again"), "{notes:?}");
        // Rows of their own and layers of their own.
        let (footprint, notes) = fitted(1, WHOLE, BOTH);
        assert_eq!((footprint.expect("both fit").splits, notes.len()), (6, 5));
    }

    #[test]
    fn a_batch_that_does_not_fit_is_named_with_a_remedy() {
        let error = fitted(8, WHOLE, NEITHER).0.expect_err("too large").to_string();
        for part in
            ["6 x (40 + 50)", "before the first step", "--auto-micro-batch", "of size: 12800)", "= \"auto\"; or"]
        {
            assert!(error.contains(part), "{part:?} is missing in {error}");
        }
        let text = |_: &(), _| guarded(Shape::text(4, 1024), || Err(anyhow!("can't allocate buffer of size: 12800")));
        let error =
            fit(&Device::flex(), LAYER, NEITHER, |_| Ok(()), text, |_| Ok(())).expect_err("too large").to_string();
        assert!(error.contains("4 x 1024 (rows x tokens)") && error.contains("checkpointing by layer"), "{error}");
        assert!(!error.contains("\"auto\""), "{error}");
        let error = fitted(0, WHOLE, BOTH).0.expect_err("not even a row").to_string();
        assert!(error.contains("a single row is already too much"), "{error}");
    }

    #[test]
    fn another_failure_is_no_matter_of_memory() {
        let broken = |_: &(), _| guarded(SHAPE, || Err(anyhow!("an illegal address")));
        let error = fit(&Device::flex(), WHOLE, BOTH, |_| Ok(()), broken, |_| Ok(())).expect_err("broken");
        let error = format!("{error:#}");
        assert!(error.contains("an illegal address") && error.contains("6 x (40 + 50)"), "{error}");
    }
}
