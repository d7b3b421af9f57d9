//! Keys that count in epochs and fractions, as steps.

use super::Config;

/// From so many epochs on, several of them lie between validations.
const N_VALIDATIONS: f64 = 10.0;

impl Config {
    /// Sets the steps that `train.epochs` and `optim.warmup_ratio` mean for an epoch of `batches_per_epoch` on all devices. A warm-up
    /// that would take half of the run becomes a tenth of it. Validations come after each epoch, and of many short epochs after every
    /// few, about ten times in all.
    pub(crate) fn take_epochs(&mut self, batches_per_epoch: u64, n_devices: usize) {
        if self.train.epochs > 0.0 {
            let per_step = (self.train.grad_accum_steps * n_devices).max(1) as f64;
            let per_epoch = batches_per_epoch.max(1) as f64 / per_step;
            self.train.steps = ((self.train.epochs * per_epoch).ceil() as u64).max(1);
            if self.optim.warmup_steps * 2 > self.train.steps {
                self.optim.warmup_steps = self.train.steps / 10;
            }
            for every in [&mut self.train.validate_every, &mut self.train.save_every] {
                if *every >= self.train.steps {
                    let epochs = (self.train.epochs / N_VALIDATIONS).ceil();
                    *every = ((epochs * per_epoch).ceil() as u64).clamp(1, self.train.steps);
                }
            }
        }
        self.take_warmup_ratio();
    }

    /// Sets the warm-up that `optim.warmup_ratio` means.
    pub(super) fn take_warmup_ratio(&mut self) {
        if self.optim.warmup_ratio > 0.0 {
            self.optim.warmup_steps = (self.optim.warmup_ratio * self.train.steps as f64).round() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::presets;

    #[test]
    fn epochs_become_steps_on_any_number_of_devices() {
        let mut config = presets::tiny();
        config.train.epochs = 2.5;
        config.train.grad_accum_steps = 2;
        config.take_epochs(400, 1);
        assert_eq!((config.train.steps, config.optim.warmup_steps), (500, 200));
        assert_eq!(config.train.validate_every, 200);
        let again = config.clone();
        config.take_epochs(400, 1);
        assert_eq!(config, again, "a run that is resumed keeps its length");
        let mut short = presets::tiny();
        short.train.epochs = 30.0;
        short.take_epochs(5, 1);
        assert_eq!((short.train.steps, short.train.validate_every), (150, 15), "every three epochs");
        config.take_epochs(400, 2);
        assert_eq!((config.train.steps, config.optim.warmup_steps), (250, 25), "a warm-up that leaves time");
    }

    #[test]
    fn a_ratio_becomes_steps_of_warm_up() {
        let mut config = presets::tiny();
        config.optim.warmup_ratio = 0.03;
        config.train.steps = 1000;
        config.take_epochs(7, 1);
        assert_eq!((config.train.steps, config.optim.warmup_steps), (1000, 30));
    }
}
