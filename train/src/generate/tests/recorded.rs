//! Recorded steps of texts on a GPU: the tokens of steps that are not recorded.

use burn::tensor::{Int, Tensor};
use kiln_model::{DecoderCache, DecoderOnly, Prompts};

use super::*;
use crate::device::DeviceChoice;

/// The texts of [`Texts`], without a recording.
struct Steps<'a> {
    model: &'a DecoderOnly,
    cache: DecoderCache,
    lengths: Vec<usize>,
}

impl Sequences for Steps<'_> {
    fn step(&mut self, ids: Tensor<1, Int>) -> Tensor<2> {
        self.lengths.iter_mut().for_each(|len| *len += 1);
        self.model.decode_step(ids, &mut self.cache)
    }

    fn select(&mut self, rows: &[usize]) {
        let device = self.cache.device();
        self.lengths = rows.iter().map(|&row| self.lengths[row]).collect();
        self.cache.select(&int_tensor(rows.iter().map(|&row| row as i32).collect(), &device));
        self.cache.shorten(self.lengths.iter().copied().max().expect("rows are left"));
    }

    fn reorder_beams(&mut self, _rows: &[usize]) {
        unreachable!("greedy search has no beams");
    }
}

#[test]
fn a_recorded_search_finds_the_tokens_of_single_steps() {
    let device = match DeviceChoice::Cuda(0).open() {
        Ok(device) => device,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let small = |config: TransformerConfig, kv_heads| {
        TransformerConfig {
            d_model: 128,
            n_heads: 2,
            n_kv_heads: kv_heads,
            d_ff: 256,
            n_decoder_layers: 2,
            max_positions: 1100,
            init: kiln_model::InitScheme::Xavier, // far from even, so that texts differ
            ..config
        }
        .with_vocab_size(3001)
    };
    let (prompts, limits) = ([5, 3, 9], vec![1000, 300, 700]);
    for config in [small(TransformerConfig::gpt2_124m(), 2), small(TransformerConfig::llama_1b(), 1)] {
        let model = config.init_decoder_only(3, FloatDType::BF16, &device);
        let ids: Vec<Vec<u32>> = prompts.iter().map(|n| (0..*n).map(|i| (17 * n + i) as u32).collect()).collect();
        let rules = TokenRules { ends: vec![3001], never: vec![7, 8, 9], bans: Bans::default() };

        let read = Prompts::new(&ids, &config, &device).expect("prompts that fit");
        let begun = Texts::begin(&model, &read, prompts.to_vec(), limits.clone());
        let found = greedy(begun, &rules, 8).expect("a search");

        let (logits, cache) = model.prefill(read.ids, read.lengths);
        let sequences = Steps { model: &model, cache, lengths: prompts.to_vec() };
        let wanted = greedy(Begun { sequences, logits, limits: limits.clone() }, &rules, 8).expect("a search");
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), limits);
        for (text, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            let differs = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
            assert_eq!(differs, None, "the first other token of text {text}");
        }
    }
}
