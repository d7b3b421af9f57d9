//! On the CPU, a target and its score have the same bits whatever the other rows of its batch.

use super::*;

/// Rows of all lengths, at sizes of which some products copy their operands and others do not.
#[test]
fn a_target_has_the_same_bits_in_any_batch() {
    let config = TransformerConfig {
        d_model: 128,
        n_heads: 4,
        d_ff: 512,
        n_encoder_layers: 2,
        n_decoder_layers: 2,
        source_vocab_size: 1003,
        target_vocab_size: 1003,
        max_positions: 64,
        ..TransformerConfig::tiny()
    };
    let device = Device::flex();
    let model = config.init_encoder_decoder(5, FloatDType::F32, &device);
    let row = |i: usize| {
        let mut ids: Vec<u32> = (1..3 + i * 7 % 37).map(|j| 4 + ((i * 31 + j) * 7919 % 999) as u32).collect();
        ids.push(SPECIAL.eos);
        SourceRow { limit: 4 + i % 9, ids }
    };
    let rows: Vec<SourceRow> = (0..90).map(row).collect();
    let lengths: Vec<usize> = rows.iter().map(|row| row.ids.len()).collect();

    for beam_size in [1, 4] {
        let search = beams(beam_size, 0.6, beam_size);
        // The tokens of each row, and the bits of their log-probabilities.
        let found_in = |batches: Vec<Vec<usize>>| {
            let mut found = vec![Vec::new(); rows.len()];
            for batch in batches {
                let of_batch: Vec<&SourceRow> = batch.iter().map(|row| &rows[*row]).collect();
                let sources = SourceBatch::new(&of_batch, SPECIAL.pad, config.max_positions, &device);
                let begun = Targets::begin(&model, &sources, SPECIAL);
                let targets = beam_search(begun, &TokenRules::of(SPECIAL), &search).expect("the CPU answers");
                for (row, targets) in batch.into_iter().zip(targets) {
                    found[row] = targets.into_iter().map(|one| (one.tokens, one.log_prob.to_bits())).collect();
                }
            }
            found
        };

        let together = found_in(vec![(0..rows.len()).collect()]);
        assert!(together.iter().all(|targets| !targets.is_empty()));
        let of_size = |size: usize| (0..rows.len()).collect::<Vec<_>>().chunks(size).map(<[usize]>::to_vec).collect();
        for size in [1, 7, 64] {
            assert!(found_in(of_size(size)) == together, "{beam_size} beams, batches of {size}");
        }
        for batch_tokens in [256, 2048] {
            let planned = batching::plan(&lengths, &GenerateConfig { beam_size, batch_tokens, ..Default::default() });
            assert!(found_in(planned) == together, "{beam_size} beams, batches of {batch_tokens} tokens");
        }
    }
}
