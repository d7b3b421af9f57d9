//! The length of a run in epochs, with the steps that it has taken before.

use kiln_data::Position;
use kiln_metrics::units::thousands;

use crate::checkpoint::Resume;
use crate::config::MANY_EPOCHS;

/// Above the limit of epochs by this factor, a run is warned about: Kiln itself chooses a number of steps by an estimate.
const ESTIMATE: f64 = 1.1;

/// The steps that a run has taken before it goes on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Done {
    pub(super) steps: u64,
    position: Position,
}

impl Done {
    /// The steps before a checkpoint; none without one.
    pub(super) fn of(resume: Option<&Resume>) -> Self {
        let state = resume.map(|resume| &resume.snapshot.state);
        state.map_or(Self::default(), |state| Self { steps: state.step, position: state.position })
    }

    /// Passes over the data, with an epoch of so many batches.
    pub(super) fn epochs(self, batches_per_epoch: f64) -> f64 {
        self.position.epoch as f64 + self.position.batch as f64 / batches_per_epoch
    }
}

/// Warns if a run has many epochs, with the number of steps that is enough, unless it has taken as many. Of its `n_epochs` and `steps`, it
/// has done some.
pub(super) fn many_epochs(n_epochs: f64, steps: u64, (epochs_done, steps_done): (f64, u64)) -> Option<String> {
    let (epochs_left, steps_left) = (n_epochs - epochs_done, steps.saturating_sub(steps_done));
    if n_epochs <= ESTIMATE * MANY_EPOCHS || steps_left == 0 {
        return None;
    }
    let enough = steps_done as f64 + (steps_left as f64 * (MANY_EPOCHS - epochs_done) / epochs_left).ceil();
    let instead = match epochs_done < MANY_EPOCHS {
        true => format!("--set train.steps={enough} is {MANY_EPOCHS} epochs"),
        false => format!("this run has taken {}", epochs(epochs_done)),
    };
    Some(format!("warning: above {MANY_EPOCHS} epochs a model mostly learns its data by heart; {instead}"))
}

/// `0.4`, `42`, `2,300`.
pub(super) fn epochs(epochs: f64) -> String {
    if epochs < 10.0 { format!("{epochs:.1}") } else { thousands(epochs) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_goes_on_is_not_told_to_take_fewer_steps_than_it_has() {
        // 1,000 steps were 20 epochs, and 5,000 more are 200.
        let warning = many_epochs(220.0, 6000, (20.0, 1000)).expect("many");
        assert!(warning.contains("train.steps=3000 is 100 epochs"), "{warning}");
        let over = many_epochs(220.0, 6000, (120.0, 5900)).expect("many");
        assert!(over.ends_with("this run has taken 120") && !over.contains("--set"), "{over}");
        assert_eq!(many_epochs(220.0, 6000, (220.0, 6000)), None, "nothing is left to decide");
        assert_eq!(many_epochs(105.0, 6000, (0.0, 0)), None, "an estimate of 100 epochs may be so far off");
        let done = Done { steps: 7, position: Position { epoch: 2, batch: 5 } };
        assert_eq!((done.epochs(10.0), Done::of(None).steps), (2.5, 0));
    }
}
