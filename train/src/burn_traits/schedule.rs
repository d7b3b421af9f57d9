//! A schedule as Burn's `LrScheduler`.

use burn::lr_scheduler::{LrScheduler, LrSchedulerRecord};

use crate::config::Config;
use crate::optim::LearningRate;

/// Name of the number of steps in a record.
const STEP: &str = "step";

/// The learning rates of a run, one per optimizer step. Its record is the number of steps.
#[derive(Debug, Clone)]
pub struct BurnSchedule {
    rate: LearningRate,
    step: u64,
}

impl BurnSchedule {
    /// The schedule of `config`, from its first step on.
    pub fn new(config: &Config) -> Self {
        Self { rate: LearningRate::new(&config.optim, config.train.steps, config.model.d_model), step: 0 }
    }
}

impl LrScheduler for BurnSchedule {
    fn step(&mut self) -> f64 {
        self.step += 1;
        self.rate.at(self.step)
    }

    fn to_record(&self) -> LrSchedulerRecord {
        LrSchedulerRecord::new().with_scalar(STEP, self.step)
    }

    /// Continues behind the step of `record`. As Burn's schedulers, it ignores the record of another one.
    fn load_record(&mut self, record: LrSchedulerRecord) {
        if let Some(step) = record.scalar(STEP) {
            self.step = step;
        }
    }
}
