//! Decoder-only and encoder-only models: cached decoding, and changes of the input that must not affect a loss.

use burn::tensor::{DType, Device};
use kiln_model::{Batch, DecoderCache, DecoderOnly, Positions, TextBatch, Transformer, TransformerConfig};

use crate::support::{
    ByPath, assert_close, bert_config, cuda, gpt2_config, gradients, ids, llama_config, random_rows, scalar,
    text_batch, train_device, values,
};

const TOLERANCE: f32 = 1e-5;

/// Logits of all positions of each row, computed alone, without padding and cache.
fn alone(model: &DecoderOnly, rows: &[Vec<i32>], device: &Device) -> Vec<Vec<f32>> {
    let v = model.config().vocab_size();
    rows.iter()
        .flat_map(|row| {
            let logits = values(model.logits(&text_batch(std::slice::from_ref(row), 0, device), None));
            logits.chunks_exact(v).map(<[f32]>::to_vec).collect::<Vec<_>>()
        })
        .collect()
}

/// Feeds `rows` token by token after prompts of `begin` tokens, and checks that each step gives the logits of the row alone.
/// Rows must have the same length after their prompts.
fn assert_continues(
    model: &DecoderOnly,
    mut cache: DecoderCache,
    rows: &[Vec<i32>],
    begin: &[usize],
    steps: usize,
    device: &Device,
) -> DecoderCache {
    for step in 0..steps {
        let next: Vec<i32> = rows.iter().zip(begin).map(|(row, begin)| row[begin + step]).collect();
        let found = values(model.decode_step(ids(&next, device), &mut cache));
        let wanted: Vec<f32> = rows
            .iter()
            .zip(begin)
            .flat_map(|(row, begin)| {
                let row = row[..=begin + step].to_vec();
                alone(model, &[row], device).pop().expect("one position at least")
            })
            .collect();
        assert_close(&found, &wanted, TOLERANCE, TOLERANCE, &format!("logits of step {step}"));
    }
    cache
}

/// Rows of `begin[b] + more` tokens.
fn rows(begin: &[usize], more: usize) -> Vec<Vec<i32>> {
    begin.iter().enumerate().flat_map(|(row, len)| random_rows(1, len + more..=len + more, row as u64)).collect()
}

fn prefilled(model: &DecoderOnly, rows: &[Vec<i32>], begin: &[usize], device: &Device) -> DecoderCache {
    let prompts: Vec<Vec<i32>> = rows.iter().zip(begin).map(|(row, &len)| row[..len].to_vec()).collect();
    let batch = text_batch(&prompts, 0, device);
    let (logits, cache) = model.prefill(batch.input, batch.lengths);
    let wanted: Vec<f32> = prompts
        .iter()
        .flat_map(|prompt| alone(model, std::slice::from_ref(prompt), device).pop().expect("a row"))
        .collect();
    assert_close(&values(logits), &wanted, TOLERANCE, TOLERANCE, "logits after the prompts");
    assert_eq!((cache.batch_size(), cache.len()), (rows.len(), *begin.iter().max().expect("rows")));
    cache
}

#[test]
fn texts_from_nothing_equal_the_full_forward_beyond_one_chunk_of_cache() {
    let device = Device::flex();
    for config in [gpt2_config(), llama_config()] {
        let model = config.init_decoder_only(3, DType::F32, &device);
        let rows = rows(&[0, 0, 0], 40);
        assert_continues(&model, model.start(3), &rows, &[0, 0, 0], 40, &device);
    }
}

#[test]
fn prompts_of_unequal_length_equal_each_row_alone() {
    let device = Device::flex();
    for config in [gpt2_config(), llama_config()] {
        let model = config.init_decoder_only(4, DType::F32, &device);
        // The longest prompt ends just before a chunk of 32, so that rows cross its boundary at different steps.
        for begin in [[5, 1, 3], [31, 2, 30]] {
            let rows = rows(&begin, 6);
            let cache = prefilled(&model, &rows, &begin, &device);
            assert_continues(&model, cache, &rows, &begin, 6, &device);
        }
    }
}

/// Windows shorter than the text, relative positions, and a learned prompt in front of it, too.
#[test]
fn a_text_with_another_end_equals_the_full_forward() {
    let device = Device::flex();
    let windowed = TransformerConfig { attention_window: 5, ..llama_config() };
    let relative = TransformerConfig { positions: Positions::Relative, ..llama_config() };
    let prompted = TransformerConfig { prompt_tokens: 3, ..gpt2_config() };
    for config in [gpt2_config(), llama_config(), windowed, relative, prompted] {
        let (model, p) = (config.init_decoder_only(6, DType::F32, &device), config.prompt_tokens);
        let mut cache = prefilled_texts(&model, &rows(&[10], 0), &device);
        let mut text = rows(&[10], 0).remove(0);
        // Within the first chunk of the cache, across it, with a step or several in between, and of a single token.
        for (turn, (keep, n, steps)) in [(10, 7, 3), (12, 25, 1), (37, 1, 4), (5, 27, 2)].into_iter().enumerate() {
            text.truncate(keep);
            text.extend(random_rows(1, n + steps..=n + steps, 20 + turn as u64).remove(0));
            let wanted = alone(&model, std::slice::from_ref(&text), &device);
            let mut found = model.extend(ids(&text[keep..keep + n], &device), p + keep, &mut cache);
            for step in keep + n..=text.len() {
                let what = format!("logits of turn {turn} at {step}");
                assert_close(&values(found.clone()), &wanted[step - 1], TOLERANCE, TOLERANCE, &what);
                let Some(id) = text.get(step) else { break };
                found = model.decode_step(ids(&[*id], &device), &mut cache);
            }
            assert_eq!(cache.len(), p + text.len());
        }
    }
}

fn prefilled_texts(model: &DecoderOnly, rows: &[Vec<i32>], device: &Device) -> DecoderCache {
    let batch = text_batch(rows, 0, device);
    model.prefill(batch.input, batch.lengths).1
}

#[test]
#[should_panic(expected = "65 positions, but the model has 64")]
fn an_end_behind_the_last_position_is_refused() {
    let device = Device::flex();
    let model = gpt2_config().init_decoder_only(1, DType::F32, &device);
    let mut cache = prefilled_texts(&model, &rows(&[10], 0), &device);
    model.extend(ids(&[3; 56], &device), 9, &mut cache);
}

#[test]
fn selected_rows_of_unequal_length_continue_unchanged() {
    let device = Device::flex();
    for config in [gpt2_config(), llama_config()] {
        let model = config.init_decoder_only(5, DType::F32, &device);
        let begin = [4, 1, 2];
        let before = rows(&begin, 8);
        let cache = prefilled(&model, &before, &begin, &device);
        let mut cache = assert_continues(&model, cache, &before, &begin, 3, &device);

        let order = [1, 1, 0];
        cache.select(&ids(&order, &device));
        let mut after: Vec<Vec<i32>> = order.iter().map(|&row| before[row as usize].clone()).collect();
        let begin: Vec<usize> = order.iter().map(|&row| begin[row as usize] + 3).collect();
        after[1][4] = 3 + (after[1][4] - 2) % 9; // two rows of the same origin diverge
        assert_continues(&model, cache, &after, &begin, 5, &device);
    }
}

#[test]
fn fixed_buffers_continue_as_growing_ones_and_give_their_texts_back() {
    let device = Device::flex();
    let windowed = TransformerConfig { attention_window: 5, ..llama_config() };
    for config in [gpt2_config(), llama_config(), windowed] {
        let model = config.init_decoder_only(5, DType::F32, &device);
        let begin = [4, 1, 31];
        let rows = rows(&begin, 12);
        let cache = prefilled(&model, &rows, &begin, &device);
        let mut fixed = cache.fixed(48, config.max_positions);
        // What steps leave in the buffers before the texts come.
        model.decode_step(ids(&[3, 4, 5], &device), &mut fixed);
        fixed.refill(&cache);
        let fixed = assert_continues(&model, fixed, &rows, &begin, 5, &device);
        assert_eq!(fixed.len(), 0, "the host does not count");

        let kept = [rows[0].clone(), rows[2].clone()];
        let growing = fixed.growing(&ids(&[0, 2], &device), 36);
        assert_continues(&model, growing, &kept, &[9, 36], 6, &device);
    }
}

#[test]
fn a_recorded_step_on_a_gpu_has_the_bits_of_the_step() {
    let Some(gpu) = cuda() else { return };
    for config in [gpt2_config(), llama_config()] {
        let config = TransformerConfig { d_model: 64 * config.n_heads, ..config };
        let model = config.init_decoder_only(4, DType::BF16, &gpu);
        let begin = [31, 2, 30];
        let rows = rows(&begin, 20);
        let prompts: Vec<Vec<i32>> = rows.iter().zip(begin).map(|(row, len)| row[..len].to_vec()).collect();
        let batch = text_batch(&prompts, 0, &gpu);
        let (_, mut cache) = model.prefill(batch.input, batch.lengths);
        let mut state = cache.fixed(64, config.max_positions);
        let read = ids(&[0; 3], &gpu);
        let read = kiln_kernels::capture::overwrite(read.zeros_like(), read);
        let work = {
            let (model, state, read) = (model.clone(), state.clone(), read.clone());
            move || {
                let mut state = state.clone();
                (model.decode_step(read.clone(), &mut state), state)
            }
        };

        let (recorded, _) = kiln_kernels::capture::capture(&gpu, work, |_| ()).expect("a recording");
        state.refill(&cache);
        for step in 0..20 {
            let next: Vec<i32> = rows.iter().zip(begin).map(|(row, begin)| row[begin + step]).collect();
            kiln_kernels::capture::overwrite(read.clone(), ids(&next, &gpu));
            let found = values(recorded.replay().expect("a replay").0.clone());
            let wanted = values(model.decode_step(ids(&next, &gpu), &mut cache));
            assert_eq!(found, wanted, "logits of step {step}");
        }
    }
}

/// The GPU computes in bf16, so that its kernels run. The reference is the CPU in f32.
#[test]
fn a_gpu_continues_prompts_of_unequal_length() {
    let Some(gpu) = cuda() else { return };
    let cpu = Device::flex();
    for config in [gpt2_config(), llama_config()] {
        // Heads of 64 dimensions, which have a kernel.
        let config = TransformerConfig { d_model: 64 * config.n_heads, ..config };
        let (model, exact) =
            (config.init_decoder_only(4, DType::BF16, &gpu), config.init_decoder_only(4, DType::F32, &cpu));

        let begin = [31, 2, 30];
        let rows = rows(&begin, 6);
        let prompts: Vec<Vec<i32>> = rows.iter().zip(begin).map(|(row, len)| row[..len].to_vec()).collect();
        let batch = text_batch(&prompts, 0, &gpu);
        let (mut logits, mut cache) = model.prefill(batch.input, batch.lengths);
        for step in 0..6 {
            let wanted: Vec<f32> = rows
                .iter()
                .zip(begin)
                .flat_map(|(row, begin)| {
                    alone(&exact, &[row[..begin + step].to_vec()], &cpu).pop().expect("a position")
                })
                .collect();
            assert_close(&values(logits), &wanted, 0.04, 0.04, &format!("logits after step {step}"));
            let next: Vec<i32> = rows.iter().zip(begin).map(|(row, begin)| row[begin + step]).collect();
            logits = model.decode_step(ids(&next, &gpu), &mut cache);
        }
    }
}

fn loss_and_gradients(model: &Transformer, batch: TextBatch) -> (f64, ByPath) {
    let loss = model.loss(&Batch::Text(batch), 0.1, None).loss_sum;
    (scalar(loss.clone()), gradients(model, &loss.backward()))
}

fn assert_same(found: &(f64, ByPath), wanted: &(f64, ByPath)) {
    assert!(((found.0 - wanted.0) / wanted.0).abs() < 1e-5, "losses {} and {}", found.0, wanted.0);
    let largest = wanted.1.values().flatten().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    for (path, wanted) in &wanted.1 {
        assert_close(&found.1[path], wanted, 1e-4, 1e-6 * largest, &format!("gradient of {path}"));
    }
}

/// Labels for an encoder-only model: some of the tokens.
fn labelled(mut batch: TextBatch, config: &TransformerConfig) -> TextBatch {
    if config.architecture == kiln_model::Architecture::EncoderOnly {
        let counted = batch.labels.clone().not_equal_elem(TextBatch::NOT_COUNTED);
        let nothing = batch.labels.full_like(TextBatch::NOT_COUNTED);
        batch.labels = nothing.mask_where(counted, batch.input.clone());
    }
    batch
}

#[test]
fn padding_changes_no_loss_and_no_gradient() {
    let device = train_device();
    for config in [gpt2_config(), llama_config(), bert_config()] {
        let model = config.init(1, DType::F32, &device);
        let rows = random_rows(4, 2..=7, 11);
        let of = |len| loss_and_gradients(&model, labelled(text_batch(&rows, len, &device), &config));
        assert_same(&of(20), &of(0));
    }
}

#[test]
fn packed_documents_are_documents_alone() {
    let device = train_device();
    for config in [gpt2_config(), llama_config(), bert_config()] {
        let model = config.init(1, DType::F32, &device);
        let documents = random_rows(3, 4..=6, 3);
        let alone = labelled(text_batch(&documents, 0, &device), &config);
        let n_labels = scalar(model.loss(&Batch::Text(alone.clone()), 0.0, None).n_labels);

        let packed: Vec<i32> = documents.concat();
        let column = |value: &dyn Fn(usize, usize) -> i32| -> Vec<i32> {
            documents.iter().enumerate().flat_map(|(d, row)| (0..row.len()).map(move |at| value(d, at))).collect()
        };
        let labels = column(&|d, at| documents[d].get(at + 1).copied().unwrap_or(TextBatch::NOT_COUNTED));
        let len = packed.len();
        let mut batch = text_batch(&[packed], 0, &device);
        batch.labels = ids(&labels, &device);
        batch.positions = Some(ids(&column(&|_, at| at as i32), &device));
        batch.documents = Some(ids(&column(&|d, _| d as i32), &device));
        assert_eq!(batch.seq_len, len);
        let batch = labelled(batch, &config);
        assert_eq!(scalar(model.loss(&Batch::Text(batch.clone()), 0.0, None).n_labels), n_labels);
        assert_same(&loss_and_gradients(&model, batch), &loss_and_gradients(&model, alone));
    }
}

#[test]
fn a_contiguous_upload_is_sliced_in_the_documented_order() {
    let device = Device::flex();
    let numbers: Vec<i32> = (0..4 * 6 + 2).collect();
    let batch = TextBatch::from_contiguous(ids(&numbers, &device), [2, 3], 5, true);
    let host = |tensor: burn::tensor::Tensor<1, burn::tensor::Int>| -> Vec<i32> {
        tensor.into_data().convert::<i32>().try_to_vec().expect("converted to i32")
    };
    assert_eq!(host(batch.input), (0..6).collect::<Vec<_>>());
    assert_eq!(host(batch.labels), (6..12).collect::<Vec<_>>());
    assert_eq!(host(batch.positions.expect("packed")), (12..18).collect::<Vec<_>>());
    assert_eq!(host(batch.documents.expect("packed")), (18..24).collect::<Vec<_>>());
    assert_eq!(host(batch.lengths), [24, 25]);
    let plain = TextBatch::from_contiguous(ids(&numbers, &device), [2, 3], 5, false);
    assert!(plain.positions.is_none() && plain.documents.is_none());
}

#[test]
fn evaluation_counts_correct_predictions() {
    let device = Device::flex();
    for config in [gpt2_config(), bert_config()] {
        let model = config.init(2, DType::F32, &device);
        let batch = labelled(text_batch(&random_rows(5, 3..=9, 8), 0, &device), &config);
        let v = config.vocab_size();
        let labels: Vec<i32> = batch.labels.to_data().convert::<i32>().try_to_vec().expect("converted to i32");
        let logits = values(model.logits(&Batch::Text(batch.clone()), None));
        let likeliest = |row: &[f32]| (0..v).max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("a vocabulary") as i32;
        let right = logits.chunks_exact(v).zip(&labels).filter(|(row, label)| likeliest(row) == **label).count();
        let sums = model.evaluate(&Batch::Text(batch.clone()), 0.0);
        assert_eq!(scalar(sums.n_correct), right as f64);
        assert_eq!(scalar(sums.losses.n_labels), labels.iter().filter(|&&label| label >= 0).count() as f64);
        assert_eq!(scalar(sums.losses.loss_sum), scalar(model.loss(&Batch::Text(batch), 0.0, None).loss_sum));
    }
}

#[test]
#[should_panic(expected = "a batch of text for a model of architecture EncoderDecoder")]
fn text_for_an_encoder_decoder_is_refused() {
    let device = Device::flex();
    let model = crate::support::small_config().init(1, DType::F32, &device);
    model.loss(&Batch::Text(text_batch(&[vec![3, 4]], 0, &device)), 0.0, None);
}

#[test]
#[should_panic(expected = "this model has no head for masked tokens")]
fn a_loss_without_a_head_is_refused() {
    let device = Device::flex();
    let model = TransformerConfig { mlm_head: false, ..bert_config() }.init(1, DType::F32, &device);
    model.loss(&Batch::Text(text_batch(&[vec![3, 4]], 0, &device)), 0.0, None);
}

#[test]
fn token_types_and_the_pooler_are_used() {
    let device = Device::flex();
    let model = TransformerConfig { pooler: true, ..bert_config() }.init_encoder_only(1, DType::F32, &device);
    let mut batch = text_batch(&random_rows(2, 5..=5, 1), 0, &device);
    let first = values(model.read(&batch, None));
    batch.token_types = Some(ids(&[0; 10], &device));
    assert_eq!(values(model.read(&batch, None)), first, "kind 0 is what None means");
    batch.token_types = Some(ids(&[0, 0, 1, 1, 1, 0, 0, 0, 1, 1], &device));
    assert_ne!(values(model.read(&batch, None)), first);
    let pooled = model.pooled(model.read(&batch, None), 2).expect("a pooler");
    assert_eq!(pooled.dims(), [2, 16]);
}
