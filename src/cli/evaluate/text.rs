//! lm and mlm: loss, perplexity, bits per byte, masked-token accuracy.

use anyhow::Result;
use burn::tensor::{Device, FloatDType};
use kiln_data::OnePass;
use serde_json::{Value, json};

use super::{Args, Scratch};
use crate::cli::error::Usage;
use crate::config::Task;
use crate::dataset::text::{OpenedText, valid_text};
use crate::eval::{Masking, ValidationLoss, validation_loss};
use crate::run::TrainedModel;

pub(super) fn run(args: &Args, run: &TrainedModel, dtype: FloatDType, device: &Device) -> Result<()> {
    if args.hypotheses.is_some() || !args.generate.is_empty() {
        return Err(Usage(
            "options of translation do not apply to text: leave out --hypotheses and how to generate".into(),
        )
        .into());
    }
    if run.config.task == Task::Mlm && !run.model.mlm_head {
        return Err(Usage(format!(
            "{} has no head for masked tokens, so there is nothing to score; give it one with kiln train --from {} --set \
             model.mlm_head=true",
            run.path.display(),
            args.run.display()
        ))
        .into());
    }
    let scratch = Scratch::new()?;
    let opened = valid_text(&run.config, &args.data, &scratch.0, &run.vocabulary, &mut |line| eprintln!("{line}"))?;
    let Some(OpenedText { source, n_bytes, .. }) = opened else {
        return Err(Usage("this run has no validation text; name text with --data".into()).into());
    };
    let model = run.load_model(dtype, device)?;
    eprintln!("scoring {} on {n_bytes} bytes of text", run.path.display());
    let batches = OnePass::new(source, &run.config.loader)?;
    let masking = Masking::of(&run.config, &run.vocabulary)?;
    let loss = validation_loss(&model, batches, run.config.train.label_smoothing, masking.as_ref(), device)?;
    let n_bytes = (run.config.task == Task::Lm).then_some(n_bytes);
    if args.json {
        println!("{}", as_json(run.step, &loss, n_bytes));
    } else {
        print!("{}", as_lines(&loss, n_bytes));
    }
    Ok(())
}

fn as_lines(loss: &ValidationLoss, n_bytes: Option<u64>) -> String {
    let mut text = format!(
        "loss {:.4}  nll {:.4}  perplexity {:.3}  ({} {})\n",
        loss.loss,
        loss.nll,
        loss.nll.exp(),
        loss.target_tokens,
        if loss.masked.is_some() { "masked tokens" } else { "tokens" },
    );
    if let Some(n_bytes) = n_bytes {
        text += &format!("{:.4} bits per byte  ({n_bytes} bytes)\n", loss.bits_per_byte(n_bytes));
    }
    if let Some(masked) = loss.masked {
        text += &format!(
            "masked-token accuracy {:.2}%  (always the most frequent token: {:.2}%)\n",
            100.0 * masked.model,
            100.0 * masked.unigram
        );
    }
    text
}

fn as_json(step: u64, loss: &ValidationLoss, n_bytes: Option<u64>) -> Value {
    let mut json = json!({
        "step": step,
        "loss": loss.loss,
        "nll": loss.nll,
        "perplexity": loss.nll.exp(),
        "target_tokens": loss.target_tokens,
    });
    if let Some(n_bytes) = n_bytes {
        json["n_bytes"] = n_bytes.into();
        json["bits_per_byte"] = loss.bits_per_byte(n_bytes).into();
    }
    if let Some(masked) = loss.masked {
        json["masked_accuracy"] = masked.model.into();
        json["unigram_accuracy"] = masked.unigram.into();
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::MaskedAccuracy;

    #[test]
    fn each_task_shows_its_own_numbers() {
        let loss = ValidationLoss { loss: 1.0, nll: 1.0, target_tokens: 1000, masked: None };
        let text = as_lines(&loss, Some(2000));
        assert!(text.contains("perplexity 2.718  (1000 tokens)") && text.contains("0.7213 bits per byte"), "{text}");
        assert!(!text.contains("masked"), "{text}");
        let masked = ValidationLoss { masked: Some(MaskedAccuracy { model: 0.5, unigram: 0.0421 }), ..loss };
        let text = as_lines(&masked, None);
        assert!(text.contains("accuracy 50.00%  (always the most frequent token: 4.21%)"), "{text}");
        assert!(!text.contains("bits"), "{text}");
        assert_eq!(as_json(7, &masked, None)["masked_accuracy"], 0.5);
        assert!(as_json(7, &loss, None).get("bits_per_byte").is_none());
    }
}
