//! Checks a configuration before any work. Each problem names its key, the value found and a remedy.

use kiln_model::{Architecture, ClassHead, TransformerConfig};

use super::task::{Classes, Reads, TaskTraits, traits_of};
use super::{Config, OptimConfig, Preset, Schedule, TrainConfig};

impl Config {
    /// Returns all problems at once, or an empty list if the run can start. Each begins with its key.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = self.validate_sections();
        let reads = traits_of(self.task).reads;
        problems.extend(match reads {
            Reads::Pairs => self.tokenizer.validate(),
            Reads::Text => self.tokenizer.validate_for_text(),
        });

        // Sections against each other.
        self.validate_task(&mut problems);
        self.validate_ending(&mut problems);
        self.validate_freeze(&mut problems);
        problems.extend(self.train.master_weights.problem(self));
        match reads {
            Reads::Pairs => self.validate_pairs(&mut problems),
            Reads::Text => self.validate_text(&mut problems),
        }
        problems
    }

    /// Returns what is outside its limits in a configuration that is read from a run. What only a training needs is left out:
    /// a vocabulary that is there already, time for a decay, a head for the task.
    #[doc(hidden)]
    pub fn problems_when_read(&self) -> Vec<String> {
        let mut problems = self.validate_sections();
        problems.retain(|problem| !problem.starts_with("optim.warmup_steps "));
        problems
    }

    /// Checks the keys of each section, without the section of the vocabulary.
    fn validate_sections(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.seed > i64::MAX as u64 {
            problems.push(format!(
                "seed {} is above {}, the largest number in TOML; choose a smaller one",
                self.seed,
                i64::MAX
            ));
        }

        self.validate_data(&mut problems);
        problems.extend(self.loader.validate());
        problems.extend(self.model.validate());
        self.optim.validate(self.train.steps, &mut problems);
        self.train.validate(&mut problems);
        self.generate.validate(&mut problems);
        problems
    }

    fn validate_data(&self, problems: &mut Vec<String>) {
        problems.extend(self.data.corpus.validate());
        problems.extend(self.data.labels.validate());
        let max_positions = match traits_of(self.task).reads {
            Reads::Pairs => 0,
            Reads::Text => self.model.text_positions(),
        };
        problems.extend(self.data.text.validate(max_positions).into_iter().chain(super::chat::problem(self)));
        problems.extend(super::mix::problems(self));
        problems.extend(super::filter::problems(self));
        if self.is_built_in_task() && !self.data.valid.is_empty() {
            problems.push(
                "data.valid names validation text, but data.train names no training text; set data.train, or remove \
                 data.valid to train on the built-in task"
                    .into(),
            );
        }

        let split = self.data.split;
        if !(split >= 0.0 && split.is_finite()) || (split >= 1.0 && split.fract() != 0.0) {
            problems.push(format!(
                "data.split {split} is neither a fraction below 1 nor a number of rows; 0.02 or 500 is usual"
            ));
        }
        if split > 0.0 && !self.data.valid.is_empty() {
            problems.push(
                "data.split takes validation rows from data.train, but data.valid names some; remove one of the two"
                    .into(),
            );
        }
    }

    /// Checks that the model can do the task, and that the task has the metric.
    fn validate_task(&self, problems: &mut Vec<String>) {
        let row = traits_of(self.task);
        let TaskTraits { name: task, reads, hides_tokens, .. } = row;
        let preset = Preset::usual_for(self.task, true);
        if let Some(scored) = self.lacks_metric(reads == Reads::Pairs, hides_tokens) {
            let metric = self.train.best_metric.name();
            problems.push(format!(
                "train.best_metric = \"{metric}\" scores {scored}, and a run with task = \"{task}\" has none here; set \
                 train.best_metric = \"loss\""
            ));
        }

        if !row.suits(self.model.architecture) {
            problems.push(format!(
                "task = \"{task}\" needs model.architecture = {}; choose a preset for it (--preset {preset}), or another task",
                row.architectures()
            ));
        } else if let Some(problem) = self.wrong_class_head() {
            problems.push(problem);
        } else if hides_tokens && !self.model.mlm_head {
            problems.push(
                "model.mlm_head = false removes the head that predicts masked tokens; task = \"mlm\" needs it to be true"
                    .into(),
            );
        }
    }

    /// Says why the model's head for classes does not fit the task.
    fn wrong_class_head(&self) -> Option<String> {
        let row = traits_of(self.task);
        let (model, n_names) = (&self.model, self.data.labels.names.len());
        let wanted = match (row.classes, model.class_head) {
            (None, ClassHead::None)
            | (Some(Classes::OfTexts), ClassHead::Pooled | ClassHead::Dense | ClassHead::Last)
            | (Some(Classes::OfWords), ClassHead::Tokens) => {
                let differs = n_names > 0 && model.n_classes > 0 && n_names != model.n_classes;
                return differs.then(|| {
                    format!(
                        "model.n_classes {} is not the number of data.labels.names, {n_names}; leave it at 0 to take that number",
                        model.n_classes
                    )
                });
            }
            (None, _) => "\"none\"",
            (Some(Classes::OfTexts), _) if model.architecture == Architecture::DecoderOnly => "\"last\"",
            (Some(Classes::OfTexts), _) => "\"pooled\" or \"dense\"",
            (Some(Classes::OfWords), _) => "\"tokens\"",
        };
        let found = serde_json::to_string(&model.class_head).expect("a name");
        Some(format!("model.class_head = {found} does not suit task = \"{}\", which needs {wanted}", row.name))
    }

    fn has_two_vocabularies(&self) -> bool {
        match &self.tokenizer.path {
            Some(_) => self.tokenizer.target_path.is_some(),
            None => !self.tokenizer.joint,
        }
    }

    /// Checks the keys of different sections against each other, for plain text.
    fn validate_text(&self, problems: &mut Vec<String>) {
        if !self.tokenizer.joint {
            problems.push(
                "tokenizer.joint = false makes two vocabularies, but plain text needs one; set tokenizer.joint = true"
                    .into(),
            );
        }
        problems.extend(super::prompt::problem(self));
        let most = self.model.text_positions();
        let seq_len = self.data.text.resolved(most).seq_len;
        if seq_len <= most && self.loader.batch_tokens < seq_len {
            problems.push(format!(
                "loader.batch_tokens {} cannot hold one row of {seq_len} tokens (data.text.seq_len; 0 takes \
                 model.max_positions); raise it to at least {seq_len}, or lower data.text.seq_len",
                self.loader.batch_tokens
            ));
        }
    }

    /// Checks the keys of different sections against each other, for pairs.
    fn validate_pairs(&self, problems: &mut Vec<String>) {
        if self.has_two_vocabularies() && self.model.tie_embeddings.ties_inputs() {
            problems.push(
                "model.tie_embeddings = \"three_way\" shares one matrix between source and target, but there are two \
                 vocabularies; set model.tie_embeddings = \"output\", or tokenizer.joint = true (and no tokenizer.target_path)"
                    .into(),
            );
        }

        let TransformerConfig { max_positions, .. } = self.model;
        let corpus = &self.data.corpus;
        for (key, len) in [("max_source_len", corpus.max_source_len), ("max_target_len", corpus.max_target_len)] {
            if len > max_positions {
                problems.push(format!(
                    "data.corpus.{key} {len} is above model.max_positions {max_positions}; lower it (0 takes the model's) \
                     or raise model.max_positions (trained weights with learned positions keep it)"
                ));
            }
        }

        let corpus = corpus.resolved(max_positions);
        let longest = corpus.max_source_len.max(corpus.max_target_len);
        let padded = longest.next_multiple_of(self.loader.bucket_multiple.max(1));
        if longest <= max_positions && self.loader.batch_tokens < padded {
            problems.push(format!(
                "loader.batch_tokens {} cannot hold one row of {padded} tokens, the longest that data.corpus and \
                 model.max_positions allow; raise it to at least {padded}, or lower data.corpus.max_source_len and \
                 data.corpus.max_target_len",
                self.loader.batch_tokens
            ));
        }
    }
}

impl OptimConfig {
    fn validate(&self, steps: u64, problems: &mut Vec<String>) {
        if !(self.lr > 0.0 && self.lr.is_finite()) {
            problems.push(format!("optim.lr {} is not above 0; 1e-4 to 2e-3 is usual (noam: 1)", self.lr));
        }
        for (key, value) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&value) {
                problems
                    .push(format!("optim.{key} {value} is outside [0, 1); 0.9 and 0.98 are usual for Transformers"));
            }
        }

        if !(self.eps > 0.0 && self.eps.is_finite()) {
            problems.push(format!("optim.eps {} is not above 0; 1e-9 to 1e-8 is usual", self.eps));
        }
        for (key, value, off) in [
            ("weight_decay", self.weight_decay, "0 switches weight decay off"),
            ("max_grad_norm", self.max_grad_norm, "0 switches clipping off"),
        ] {
            if !(value >= 0.0 && value.is_finite()) {
                problems.push(format!("optim.{key} {value} is not a finite number of at least 0; {off}"));
            }
        }

        if !(self.outer_lr > 0.0 && self.outer_lr.is_finite()) {
            problems.push(format!("optim.outer_lr {} is not above 0; 0.7 to 1 is usual", self.outer_lr));
        }
        if !(0.0..1.0).contains(&self.outer_momentum) {
            problems
                .push(format!("optim.outer_momentum {} is outside [0, 1); 0.5 to 0.9 is usual", self.outer_momentum));
        }

        if !(0.0..=1.0).contains(&self.min_lr_ratio) {
            problems.push(format!(
                "optim.min_lr_ratio {} is outside [0, 1]; it is the final learning rate as a fraction of optim.lr",
                self.min_lr_ratio
            ));
        }
        if !(self.decay_fraction > 0.0 && self.decay_fraction <= 1.0) {
            problems.push(format!(
                "optim.decay_fraction {} is outside (0, 1]; it is the fraction of train.steps spent decaying, 0.1 is usual",
                self.decay_fraction
            ));
        }
        if !(0.0..1.0).contains(&self.warmup_ratio) {
            problems.push(format!(
                "optim.warmup_ratio {} is outside [0, 1); it is the warm-up as a fraction of train.steps, 0.03 to 0.1 is usual",
                self.warmup_ratio
            ));
        }
        if self.schedule == Schedule::Noam && self.warmup_steps == 0 && self.warmup_ratio == 0.0 {
            problems.push("optim.warmup_steps is 0, but optim.schedule = \"noam\" divides by it; 4000 is usual".into());
        }
        let decays = matches!(self.schedule, Schedule::Cosine | Schedule::Linear | Schedule::WarmupStableDecay);
        if decays && steps > 0 && self.warmup_steps >= steps && self.warmup_ratio == 0.0 {
            problems.push(format!(
                "optim.warmup_steps {} leaves no steps for the decay, because train.steps is {steps}; lower optim.warmup_steps (a \
                 tenth of the steps is usual) or raise train.steps",
                self.warmup_steps
            ));
        }
    }
}

impl TrainConfig {
    fn validate(&self, problems: &mut Vec<String>) {
        for (key, value, remedy) in [
            ("steps", self.steps, "set the number of optimizer steps"),
            ("grad_accum_steps", self.grad_accum_steps as u64, "1 means no accumulation"),
            ("split_batches", self.split_batches as u64, "1 keeps batches whole"),
            ("sync_every", self.sync_every, "1 exchanges gradients in every step"),
            ("log_every", self.log_every, "10 is usual"),
            ("keep_last", self.keep_last as u64, "at least 1 is needed to resume"),
        ] {
            if value == 0 {
                problems.push(format!("train.{key} is 0; {remedy}"));
            }
        }
        if !(self.epochs >= 0.0 && self.epochs.is_finite()) {
            problems.push(format!(
                "train.epochs {} is not a finite number of at least 0; 0 lets train.steps count",
                self.epochs
            ));
        }
        if !(self.max_minutes >= 0.0 && self.max_minutes.is_finite()) {
            problems.push(format!(
                "train.max_minutes {} is not a finite number of at least 0; 0 means no limit",
                self.max_minutes
            ));
        }

        if !(0.0..1.0).contains(&self.label_smoothing) {
            problems.push(format!(
                "train.label_smoothing {} is outside [0, 1); 0.1 is usual, 0 switches it off",
                self.label_smoothing
            ));
        }
        if !(self.preference_beta > 0.0 && self.preference_beta.is_finite()) {
            problems.push(format!(
                "train.preference_beta {} is not a finite number above 0; 0.1 is usual",
                self.preference_beta
            ));
        }
        if !(self.masked_share > 0.0 && self.masked_share <= 1.0) {
            problems.push(format!(
                "train.masked_share {} is outside (0, 1]; 0.15 is usual, up to 0.4 can be better",
                self.masked_share
            ));
        }
        problems.extend(self.f32_products.problem(self.precision));
        problems.extend(self.fp8_layers.problem(self.precision));
        problems.extend(super::byte_size::problems(self));
        self.loss_scale.validate(problems);
    }
}

#[cfg(test)]
mod tests;
