//! Checks the keys of early stopping and of averaged weights.

use super::{Config, LostReplicas};

impl Config {
    /// Checks when the run may end early, and what its average needs.
    pub(super) fn validate_ending(&self, problems: &mut Vec<String>) {
        let train = &self.train;
        if !(train.min_improvement >= 0.0 && train.min_improvement.is_finite()) {
            problems.push(format!(
                "train.min_improvement {} is not a finite number of at least 0; 0 counts every improvement",
                train.min_improvement
            ));
        }

        problems.extend(super::profile_at::problem(train));

        let validates = !self.data.valid_files().is_empty() || self.data.split > 0.0 || self.is_built_in_task();
        if train.patience > 0 && !validates {
            problems.push(format!(
                "train.patience {} waits for validations, but the run has no validation text; set data.valid or \
                 data.split, or train.patience = 0",
                train.patience
            ));
        } else if train.patience > 0 && train.validate_every == 0 && train.translate_every == 0 {
            problems.push(format!(
                "train.patience {} waits for validations, but train.validate_every = 0 validates at the end only; set \
                 train.validate_every",
                train.patience
            ));
        }

        if !(0.0..1.0).contains(&train.ema_decay) {
            problems.push(format!(
                "train.ema_decay {} is outside [0, 1); 0.999 to 0.9999 is usual, 0 keeps no average",
                train.ema_decay
            ));
        } else if train.ema_decay > 0.0 && train.sync_every > 1 {
            problems.push(format!(
                "train.ema_decay {} averages the weights of every step, but with train.sync_every = {} each device has \
                 weights of its own between two exchanges; set one of them to its default",
                train.ema_decay, train.sync_every
            ));
        }

        if train.lost_replicas == LostReplicas::GoOn && train.sync_every <= 1 {
            problems.push(
                "train.lost_replicas = \"go_on\" is for devices that take steps alone: where gradients are exchanged in every step, \
                 none can continue without another; set train.sync_every above 1, or train.lost_replicas = \"end\""
                    .into(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, LostReplicas, presets};

    #[test]
    fn each_impossible_ending_is_one_problem_that_begins_with_its_key() {
        type Change = fn(&mut Config);
        let cases: [(&str, Change); 9] = [
            ("train.min_improvement", |c| c.train.min_improvement = -0.1),
            ("train.min_improvement", |c| c.train.min_improvement = f64::NAN),
            ("train.patience", |c| (c.train.patience, c.data.train) = (3, vec!["pairs.tsv".into()])),
            ("train.patience", |c| (c.train.patience, c.train.validate_every) = (3, 0)),
            ("train.ema_decay", |c| c.train.ema_decay = 1.0),
            ("train.ema_decay", |c| c.train.ema_decay = -0.5),
            ("train.ema_decay", |c| c.train.ema_decay = f64::NAN),
            ("train.ema_decay", |c| (c.train.ema_decay, c.train.sync_every) = (0.99, 10)),
            ("train.lost_replicas", |c| c.train.lost_replicas = LostReplicas::GoOn),
        ];
        for (key, change) in cases {
            let mut config = presets::base();
            change(&mut config);
            let problems = config.validate();
            assert_eq!(problems.len(), 1, "{key}: {problems:#?}");
            assert!(problems[0].starts_with(key), "{key}: {problems:#?}");
        }
        let mut config = presets::base();
        (config.train.patience, config.train.ema_decay, config.train.min_improvement) = (3, 0.999, 0.01);
        assert_eq!(config.validate(), Vec::<String>::new());
    }
}
