//! `kiln train --from RUN`: a new run that starts from the weights of another one.

use anyhow::Result;
use kiln_model::{Positions, TransformerConfig};

use crate::checkpoint::{Checkpoints, RUN_CONFIG_FILE, Run, Weights, drawn_tensors, read_weights};
use crate::cli::exit::Usage;
use crate::config::Config;

/// Puts the weights of `run` into the new run, as its checkpoint before the first step: a run that is interrupted before
/// its first save begins there again. A head for masked tokens that they lack is drawn.
pub(super) fn begin(run: &Run, config: &Config, checkpoints: &Checkpoints) -> Result<Weights> {
    if !fits(&run.model, &config.model) {
        return Err(Usage(format!(
            "--from {}: these weights are of another model than model.* of the configuration; change none of these keys but \
             dropout, attention_dropout, activation_dropout, mlm_head and, without learned positions, max_positions",
            run.path.display()
        ))
        .into());
    }
    let mut weights = read_weights(&run.path)?;
    if config.model.mlm_head && !run.model.mlm_head {
        let drawn = drawn_tensors(&config.model, config.seed);
        weights.weights.extend(drawn.into_iter().filter(|tensor| tensor.name.starts_with("head.")));
    }
    weights.step = 0;
    weights.model = config.model.clone();
    for file in weights.files.iter_mut().filter(|file| file.name == RUN_CONFIG_FILE) {
        file.bytes = config.to_toml().into_bytes();
    }
    checkpoints.save_weights(&weights)?;
    Ok(weights)
}

/// Whether weights of the model `saved` compute in `wanted` what they computed there.
fn fits(saved: &TransformerConfig, wanted: &TransformerConfig) -> bool {
    let max_positions = if saved.positions == Positions::Learned { saved.max_positions } else { wanted.max_positions };
    let changed = TransformerConfig {
        max_positions,
        dropout: wanted.dropout,
        attention_dropout: wanted.attention_dropout,
        activation_dropout: wanted.activation_dropout,
        mlm_head: saved.mlm_head || wanted.mlm_head,
        init: wanted.init,
        ..saved.clone()
    };
    changed == *wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_leaves_the_weights_their_meaning_may_change() {
        type Change = fn(&mut TransformerConfig);
        let changes: [(bool, Change); 8] = [
            (true, |_| ()),
            (true, |model| model.dropout = 0.3),
            (true, |model| model.activation_dropout = Some(0.0)),
            (true, |model| model.max_positions = 1000),
            (false, |model| model.d_model = 128),
            (false, |model| model.n_heads = 2),
            (false, |model| model.positions = Positions::SinusoidalHalves),
            (false, |model| (model.positions, model.max_positions) = (Positions::Learned, 1000)),
        ];
        for (i, (wanted, change)) in changes.into_iter().enumerate() {
            let mut model = TransformerConfig::tiny();
            change(&mut model);
            assert_eq!(fits(&TransformerConfig::tiny(), &model), wanted, "change {i}");
        }
    }
}
