//! Logits, loss and gradients of a translator, compared with `transformers`.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use kiln::checkpoint::named_tensors;
use kiln::hugging_face::Folder;
use kiln::optim::{FlatGradients, ParamTable};
use kiln_data::PairTokenizers;
use kiln_model::{Batch, NamedTensor, PairBatch, hf};
use serde_json::Value;

/// The batch of some pairs on `device`.
fn batch(tokenizers: &PairTokenizers, pairs: &[Value], device: &Device) -> PairBatch {
    let text = |key: &str| pairs.iter().map(|pair| pair[key].as_str().expect("a text")).collect::<Vec<_>>();
    let sources = tokenizers.encode_sources(&text("src")).expect("encodes");
    let labels = tokenizers.encode_targets(&text("trg")).expect("encodes");
    let special = tokenizers.special();
    let inputs: Vec<Vec<u32>> = labels.iter().map(|row| [&[special.bos], &row[..row.len() - 1]].concat()).collect();

    let longest = |rows: &[Vec<u32>]| rows.iter().map(Vec::len).max().expect("rows");
    let (source_len, target_len) = (longest(&sources), longest(&labels));
    let padded = |rows: &[Vec<u32>], len: usize| -> Vec<i32> {
        let pad = std::iter::repeat(special.pad);
        rows.iter().flat_map(|row| row.iter().copied().chain(pad.clone()).take(len)).map(|id| id as i32).collect()
    };
    let lengths = |rows: &[Vec<u32>]| rows.iter().map(|row| row.len() as i32).collect::<Vec<_>>();
    let flat = [
        padded(&sources, source_len),
        padded(&inputs, target_len),
        padded(&labels, target_len),
        lengths(&sources),
        lengths(&labels),
    ]
    .concat();
    let n = flat.len();
    let flat: Tensor<1, Int> = Tensor::from_data(TensorData::new(flat, [n]), device);
    let count = |rows: &[Vec<u32>]| rows.iter().map(|row| row.len() as u64).sum();
    PairBatch::from_contiguous(flat, [pairs.len(), source_len, target_len], count(&sources), count(&labels))
}

/// Compares the numbers of the model in `dir` on the pairs of `expected`. `leaves_start_out`: the fixture has no gradient of the
/// start token's vector.
pub(crate) fn compare(dir: &Path, tokenizers: &PairTokenizers, expected: &Value, leaves_start_out: bool) {
    let pairs = expected["pairs"].as_array().expect("pairs");
    let device = Device::flex().autodiff();
    let folder = Folder::open(dir).expect("a model");
    let imported = hf::import(folder.config(), &folder.tensors()).expect("imports");
    let (config, tokens) = (imported.config.clone(), imported.tokens);
    let model = imported.into_model(FloatDType::F32, &device);
    let batch = Batch::Pairs(batch(tokenizers, pairs, &device));

    let logits: Vec<f32> = model.logits(&batch, None).slice(2..3).into_data().try_into_vec().expect("f32");
    let wanted: Vec<f32> = serde_json::from_value(expected["logits"].clone()).expect("numbers");
    assert_eq!(logits.len(), wanted.len());
    for (token, (found, wanted)) in logits.iter().zip(&wanted).enumerate() {
        assert!((found - wanted).abs() < 2e-4, "logit of token {token}: {found} instead of {wanted}");
    }

    let sums = model.loss(&batch, 0.0, None);
    let loss = sums.loss_sum / sums.n_labels;
    let (found, wanted) = (f64::from(loss.clone().into_scalar::<f32>()), expected["loss"].as_f64().expect("a number"));
    assert!(wanted > 1.0 && ((found - wanted) / wanted).abs() < 1e-5, "{found} instead of {wanted}");

    let table = ParamTable::of(&model);
    let FlatGradients(flat) = table.flatten_gradients(&model, &mut loss.backward(), FloatDType::F32, None);
    let gradients = named_tensors(&table, &flat.values.into_data());
    let theirs = hf::export(&config, &gradients, &tokens).expect("the layout of the weights").tensors;
    let theirs: BTreeMap<String, NamedTensor> =
        theirs.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    let wanted = expected["gradients"].as_object().expect("by name");
    assert!(wanted.len() > 40);
    for (name, wanted) in wanted {
        let mut found = theirs[name].clone();
        if name == "model.shared.weight" && leaves_start_out {
            let (start, d) = (tokens.decoder_start.expect("a start") as usize, found.shape[1]);
            found.values[start * d..][..d].fill(0.0);
        }
        let values = || found.values.iter().map(|x| f64::from(*x));
        let norm = values().map(|x| x * x).sum::<f64>().sqrt();
        let sum: f64 = values().enumerate().map(|(i, x)| x * (i as f64).sin()).sum();
        let [wanted_norm, wanted_sum] = [&wanted[0], &wanted[1]].map(|x| x.as_f64().expect("a number"));
        // A bias of keys changes no attention: its gradient is 0 up to rounding.
        let tolerance = 1e-4 * wanted_norm.max(1e-3);
        assert!((norm - wanted_norm).abs() < tolerance, "{name}: norm {norm} instead of {wanted_norm}");
        assert!((sum - wanted_sum).abs() < tolerance, "{name}: sum {sum} instead of {wanted_sum}");
    }
}
