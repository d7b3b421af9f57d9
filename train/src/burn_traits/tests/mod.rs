//! What Burn's traits give equals what the trainer computes and the loader makes.

mod data;
mod optimizer;

use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::{Module, ModuleVisitor, Param};
use burn::store::ModuleRecord;
use burn::tensor::{Device, FloatDType, Tensor};
use kiln_model::Transformer;

use super::*;
use crate::config::Config;
use crate::optim::LearningRate;

#[test]
fn the_schedule_has_the_rate_of_every_step_and_resumes_from_its_record() {
    for schedule in ["constant", "cosine", "linear", "noam", "warmup_stable_decay"] {
        let config = Config::preset("gpt2-tiny")
            .set("optim.schedule", schedule)
            .set("optim.warmup_steps", 5)
            .set("train.steps", 40)
            .validate()
            .expect("a valid configuration");
        let rate = LearningRate::new(&config.optim, 40, config.model.d_model);
        let mut steps = BurnSchedule::new(&config);
        for step in 1..=17 {
            assert_eq!(steps.step(), rate.at(step), "{schedule}, step {step}");
        }

        // As a learner saves it: in the record of all groups.
        let bytes = ModuleLrScheduler::new(steps).to_record().into_bytes().expect("bytes");
        let record = burn::lr_scheduler::LrSchedulerRecord::from_bytes(bytes).expect("a record");
        let mut resumed = ModuleLrScheduler::new(BurnSchedule::new(&config)).load_record(record);
        for step in 18..=45 {
            assert_eq!(resumed.step().base(), rate.at(step), "{schedule}, step {step}");
        }
    }
}

#[test]
fn weights_are_records_of_burn() {
    let config = Config::preset("gpt2-tiny").validate().expect("a valid configuration");
    let (shape, device) = (config.model.with_vocab_size(300), Device::flex());
    let model = |seed| shape.init(seed, FloatDType::F32, &device);

    let bytes = model(1).into_record().into_bytes().expect("bytes");
    let loaded = model(2).load_record(ModuleRecord::from_bytes(bytes).expect("a record"));
    assert_ne!(numbers(&model(1)), numbers(&model(2)), "the record is what makes them equal");
    assert_eq!(numbers(&model(1)), numbers(&loaded));
    assert!(loaded.to_string().contains("params"), "{loaded}");
}

/// The paths and the weights of a model.
fn numbers(model: &Transformer) -> Vec<(String, Vec<f32>)> {
    let mut read = Read::default();
    model.visit(&mut read);
    read.parameters
}

#[derive(Default)]
struct Read {
    path: Vec<String>,
    parameters: Vec<(String, Vec<f32>)>,
}

impl ModuleVisitor for Read {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let values = param.val().into_data().as_slice::<f32>().expect("f32").to_vec();
        self.parameters.push((self.path.join("."), values));
    }
}
