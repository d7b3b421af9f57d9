//! Continuations: they do not depend on the batch, equal the full forward pass and end in time.

use burn::tensor::{Int, Tensor};
use kiln_data::{TextConfig, TextCorpus, TextFormat, TextTokenizer, TokenizerConfig, TokenizerKind};
use kiln_model::{DecoderOnly, TextBatch};

use super::*;
use crate::config::GenerateConfig;

/// A vocabulary of bytes and some words, and a model with random weights.
struct Writer {
    tokenizer: TextTokenizer,
    model: DecoderOnly,
}

impl Writer {
    fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("text.txt");
        std::fs::write(&file, "one two three four five six seven\n".repeat(20)).expect("writable");
        let text = TextConfig { format: TextFormat::Lines, ..TextConfig::default() };
        let corpus = TextCorpus::open(&[file], &text).expect("a text");
        let tokenizer =
            TokenizerConfig { kind: TokenizerKind::ByteLevelBpe, vocab_size: 290, ..TokenizerConfig::default() };
        let tokenizer = TextTokenizer::train(&tokenizer, &corpus, 1).expect("a vocabulary");
        let config = TransformerConfig {
            d_model: 16,
            n_heads: 2,
            d_ff: 32,
            n_decoder_layers: 2,
            max_positions: 48,
            ..TransformerConfig::gpt2_124m()
        };
        let mut config = config.with_vocab_size(tokenizer.vocab_size());
        config.init = kiln_model::InitScheme::Xavier; // far from even, so that likely tokens stand out
        Self { model: config.init_decoder_only(seed, FloatDType::F32, &Device::flex()), tokenizer }
    }

    fn generator(&self, config: GenerateConfig) -> TextGenerator {
        TextGenerator::new(&self.model, self.tokenizer.clone(), config).expect("they fit")
    }

    /// Logits of the token after `ids`, by the full forward pass without a cache.
    fn next_logits(&self, ids: &[u32]) -> Vec<f32> {
        let input: Vec<i32> = ids.iter().map(|id| id.cast_signed()).collect();
        let n = input.len();
        let input: Tensor<1, Int> = int_tensor(input, &Device::flex());
        let batch = TextBatch {
            labels: input.clone(),
            input,
            positions: None,
            documents: None,
            token_types: None,
            preference: None,
            max_labels: None,
            lengths: int_tensor(vec![n as i32], &Device::flex()),
            batch_size: 1,
            seq_len: n,
            tokens: n as u64,
        };
        self.model.logits(&batch, None).slice(n - 1..n).into_data().iter::<f32>().collect()
    }
}

const PROMPTS: [&str; 5] =
    ["one", "two three four five six", "seven", "one two three", "six six six six six six six six"];

fn greedy_config() -> GenerateConfig {
    GenerateConfig { max_new_tokens: 12, ..GenerateConfig::default() }
}

fn sampled_config() -> GenerateConfig {
    GenerateConfig { sample: true, temperature: 0.8, top_k: 50, top_p: 0.95, seed: 9, ..greedy_config() }
}

#[test]
fn a_text_does_not_depend_on_the_other_prompts() {
    let writer = Writer::new(1);
    for config in [
        greedy_config(),
        sampled_config(),
        GenerateConfig { repetition_penalty: 1.3, ..greedy_config() },
        GenerateConfig { beam_size: 3, ..greedy_config() },
    ] {
        let together = writer.generator(config.clone()).generate(&PROMPTS, 0).expect("texts");

        // A budget of one token: every prompt is a batch of its own.
        let small = GenerateConfig { batch_tokens: 1, ..config.clone() };
        assert_eq!(writer.generator(small).generate(&PROMPTS, 0).expect("texts"), together);
        for (row, prompt) in (0..).zip(PROMPTS) {
            let mut pieces = String::new();
            let streamed = writer.generator(config.clone()).stream(prompt, row, &mut |piece| {
                pieces.push_str(piece);
                Ok(())
            });
            let streamed = streamed.expect("a text");
            assert_eq!(streamed, together[row as usize], "{prompt}");
            assert_eq!(pieces, streamed.text, "the pieces are the text");
        }
        let later = writer.generator(config).generate(&PROMPTS[2..], 2).expect("texts");
        assert_eq!(later, together[2..], "prompts are numbered on");
    }
}

#[test]
fn greedy_texts_are_those_of_the_full_forward_pass() {
    let writer = Writer::new(2);
    let rules = TokenRules::of_text(&writer.tokenizer);
    for found in writer.generator(greedy_config()).generate(&PROMPTS, 0).expect("texts").iter().zip(PROMPTS) {
        let (found, prompt) = found;
        let mut ids = writer.tokenizer.encode_prompt(prompt).expect("ids");
        let n_prompt = ids.len();
        let ended = loop {
            let logits = writer.next_logits(&ids);
            let allowed = (0..logits.len()).filter(|id| !rules.never.contains(&(*id as u32)));
            let best = allowed.max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("tokens") as u32;
            if rules.is_end(best) {
                break EndedBy::Token;
            }
            ids.push(best);
            if ids.len() - n_prompt == 12 {
                break EndedBy::Limit;
            }
        };

        assert_eq!((found.n_tokens, found.ended), (ids.len() - n_prompt, ended), "{prompt}");
        let (whole, of_prompt) = (writer.tokenizer.decode(&ids), writer.tokenizer.decode(&ids[..n_prompt]));
        assert!(!found.text.contains('\u{fffd}') || whole.as_ref().is_ok_and(|text| text.contains('\u{fffd}')));
        if !found.text.contains('\u{fffd}') {
            assert_eq!(whole.expect("text"), of_prompt.expect("text") + &found.text);
        }
    }
}

#[test]
fn other_seeds_and_rows_draw_other_texts() {
    let writer = Writer::new(3);
    let text = |seed: u64, row: u64| {
        let config = GenerateConfig { temperature: 1.5, top_k: 0, top_p: 1.0, seed, ..sampled_config() };
        writer.generator(config).generate(&["one two"], row).expect("a text").remove(0).text
    };
    assert_eq!(text(1, 0), text(1, 0));
    assert_ne!(text(1, 0), text(2, 0));
    assert_ne!(text(1, 0), text(1, 1));
}

#[test]
fn a_text_ends_before_its_stop_string_or_token_and_at_the_last_position() {
    let writer = Writer::new(4);
    let whole = writer.generator(greedy_config()).generate(&["one two"], 0).expect("a text").remove(0);
    let stop: String = whole.text.chars().skip(3).take(2).collect();
    let cut = &whole.text[..whole.text.find(&stop).expect("part of it")];
    let config = GenerateConfig { stop: vec![stop.clone()], ..greedy_config() };
    for found in [
        writer.generator(config.clone()).generate(&["one two"], 0).expect("a text").remove(0),
        writer.generator(config.clone()).stream("one two", 0, &mut |_| Ok(())).expect("a text"),
        writer
            .generator(GenerateConfig { beam_size: 1, batch_tokens: 9, ..config })
            .generate(&["one two"], 0)
            .expect("a text")
            .remove(0),
    ] {
        assert_eq!((found.text.as_str(), found.ended), (cut, EndedBy::StopString), "before {stop:?} in {whole:?}");
    }

    let prompt = "one two three four five six seven one two three four five six seven".repeat(2);
    let n_prompt = writer.tokenizer.encode_prompt(&prompt).expect("ids").len();
    let long = GenerateConfig { max_new_tokens: 1000, ..greedy_config() };
    // On a GPU the host reads rows of unequal length every few steps only. None may continue past the last position.
    let found = writer.generator(long).generate(&[prompt.as_str(), "one"], 0).expect("texts");
    let limits = [48 - n_prompt, 48 - writer.tokenizer.encode_prompt("one").expect("ids").len()];
    for (found, limit) in found.iter().zip(limits) {
        assert!(found.n_tokens <= limit && (found.ended == EndedBy::Token || found.n_tokens == limit), "{found:?}");
    }
}

#[test]
fn prompts_that_cannot_be_continued_are_named() {
    let writer = Writer::new(5);
    let generator = writer.generator(greedy_config());
    let error = generator.generate(&["one", ""], 10).expect_err("empty").to_string();
    assert!(error.starts_with("prompt 12 is empty"), "{error}");
    let error = generator.generate(&["one ".repeat(100)], 0).expect_err("too long").to_string();
    assert!(error.starts_with("prompt 1 has ") && error.contains("model.max_positions"), "{error}");
    let unknown = GenerateConfig { stop_tokens: vec!["<|nothing|>".into()], ..greedy_config() };
    let error = TextGenerator::new(&writer.model, writer.tokenizer.clone(), unknown).expect_err("unknown").to_string();
    assert!(error.contains("no token \"<|nothing|>\""), "{error}");
}

#[test]
fn weights_that_are_not_numbers_are_an_error() {
    let writer = Writer::new(6);
    let table = writer.model.embedding.table.val() * f32::NAN;
    let mut model = writer.model.clone();
    model.embedding.table = burn::module::Param::from_tensor(table);
    let generator = TextGenerator::new(&model, writer.tokenizer.clone(), sampled_config()).expect("they fit");
    let error = generator.generate(&["one"], 4).expect_err("NaN").to_string();
    assert!(error.contains("row 5") && error.contains("NaN or infinite"), "{error}");
}
