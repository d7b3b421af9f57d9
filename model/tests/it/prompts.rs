//! Prompts: checks of given prompts, and learned prompts.

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData};
use kiln_model::{Insertion, PromptError, Prompts, Rows, TextBatch, TransformerConfig};

use crate::support::{
    assert_close, bert_config, gpt2_config, ids, random_rows, scalar, text_batch, train_device, values,
};

#[test]
fn prompts_are_padded_to_the_longest() {
    let device = Device::flex();
    let prompts = Prompts::new(&[vec![5_u32, 6, 7], vec![8]], &gpt2_config(), &device).expect("sound prompts");
    assert_eq!((prompts.batch_size, prompts.len), (2, 3));
    assert_eq!(values(prompts.ids.clone().float()), [5.0, 6.0, 7.0, 8.0, 0.0, 0.0]);
    assert_eq!(values(prompts.lengths.clone().float()), [3.0, 1.0]);
    let model = gpt2_config().init_decoder_only(1, DType::F32, &device);
    let (logits, _) = model.prefill(prompts.ids, prompts.lengths);
    assert_eq!(logits.dims(), [2, 12]);
}

#[test]
fn prompts_that_cannot_be_continued_are_refused_by_name() {
    let config = gpt2_config(); // 64 positions, 12 tokens
    let refused = |rows: &[Vec<i32>]| Prompts::new(rows, &config, &Device::flex()).expect_err("unsound prompts");
    assert_eq!(refused(&[]), PromptError::NoPrompts);
    assert_eq!(refused(&[vec![3], vec![]]), PromptError::Empty { row: 1 });
    assert_eq!(refused(&[vec![3; 64]]), PromptError::TooLong { row: 0, len: 64, max_positions: 64 });
    assert_eq!(refused(&[vec![3, 12]]), PromptError::UnknownId { row: 0, position: 1, id: 12, vocab_size: 12 });
    assert_eq!(refused(&[vec![-1]]), PromptError::UnknownId { row: 0, position: 0, id: -1, vocab_size: 12 });
    let text = refused(&[vec![3; 64]]).to_string();
    assert!(text.contains("64 tokens") && text.contains("shorten the prompt to 63 tokens"), "{text}");
    let text = refused(&[vec![3, 12]]).to_string();
    assert!(text.contains("id 12") && text.contains("ids 0 to 11"), "{text}");
    assert!(Prompts::new(&[vec![3; 63]], &config, &Device::flex()).is_ok());
}

#[test]
#[should_panic(expected = "65 positions, but the model has 64")]
fn a_row_longer_than_the_positions_is_refused_with_both_numbers() {
    let device = Device::flex();
    let model = gpt2_config().init_decoder_only(1, DType::F32, &device);
    model.prefill(ids(&[3; 65], &device), ids(&[65], &device));
}

#[test]
#[should_panic(expected = "index 12 out of bounds for dimension of size 12")]
fn an_id_outside_the_embedding_is_refused_on_the_cpu() {
    let device = Device::flex();
    let model = gpt2_config().init_decoder_only(1, DType::F32, &device);
    values(model.logits(&text_batch(&[vec![3, 12, 4]], 0, &device), None));
}

#[test]
#[should_panic(expected = "holds 3 positions")]
fn a_cache_is_filled_once() {
    let device = Device::flex();
    let model = crate::support::small_config().init_encoder_decoder(1, DType::F32, &device);
    let memory = model.encode(ids(&[3, 4], &device), ids(&[2], &device), 1, None);
    let mut cache = model.start(&memory);
    for _ in 0..2 {
        model.prefill(ids(&[1, 3, 4], &device), ids(&[3], &device), &mut cache);
    }
}

const P: usize = 3;

/// Positions of the prompt in two rows of 4 + 3.
const POSITIONS: [i32; 2 * P] = [0, 1, 4, 2, 5, 6];

/// The origin of each position of the longer rows: a row of the tokens (`Ok`) or of the prompt (`Err`).
fn origins() -> Vec<Result<usize, usize>> {
    let mut origins = vec![];
    for row in 0..2 {
        let positions = &POSITIONS[row * P..][..P];
        let mut token = row * 4;
        for here in 0..7 {
            match positions.iter().position(|&position| position == here) {
                Some(prompt) => origins.push(Err(prompt)),
                None => {
                    origins.push(Ok(token));
                    token += 1;
                }
            }
        }
    }
    origins
}

#[test]
fn a_learned_prompt_is_inserted_and_gathers_its_gradient() {
    let device = train_device();
    let prompt = gpt2_config().init_learned_prompt(P, 1, DType::F32, &device);
    let numbers: Vec<f32> = (0..8 * 16).map(|i| i as f32).collect();
    let tokens = Tensor::<2>::from_data(TensorData::new(numbers.clone(), [8, 16]), &device).require_grad();
    let insertion = Insertion::new(ids(&POSITIONS, &device), 2, 4);

    let out = prompt.insert(tokens.clone(), &insertion);
    let table = values(prompt.table.val());
    let wanted: Vec<f32> = origins()
        .iter()
        .flat_map(|origin| match origin {
            Ok(token) => numbers[token * 16..][..16].to_vec(),
            Err(prompt) => table[prompt * 16..][..16].to_vec(),
        })
        .collect();
    assert_eq!(values(out.clone()), wanted);
    assert_eq!(
        values(insertion.ids(ids(&[10, 11, 12, 13, 20, 21, 22, 23], &device), -1).float()),
        [-1.0, -1.0, 10.0, 11.0, -1.0, 12.0, 13.0, 20.0, 21.0, -1.0, 22.0, 23.0, -1.0, -1.0]
    );

    // d(sum(out * weights)): a token gets the weight of its position, a prompt vector the sum over both rows.
    let weights: Vec<f32> = (0..14 * 16).map(|i| ((i * 7) % 31) as f32).collect();
    let loss = (out * Tensor::<2>::from_data(TensorData::new(weights.clone(), [14, 16]), &device)).sum();
    let gradients = loss.backward();
    let (mut of_tokens, mut of_prompt) = (vec![0.0; 8 * 16], vec![0.0; P * 16]);
    for (position, origin) in origins().into_iter().enumerate() {
        let (into, row) = match origin {
            Ok(token) => (&mut of_tokens, token),
            Err(prompt) => (&mut of_prompt, prompt),
        };
        for i in 0..16 {
            into[row * 16 + i] += weights[position * 16 + i];
        }
    }
    assert_eq!(values(tokens.grad(&gradients).expect("a gradient")), of_tokens);
    assert_eq!(values(prompt.table.val().grad(&gradients).expect("a gradient")), of_prompt);
}

/// A frozen model learns a task through its prompt only.
#[test]
fn prompt_tuning_lowers_the_loss_of_a_frozen_model() {
    let device = train_device();
    let config = gpt2_config();
    let model = config.init_decoder_only(1, DType::F32, &device).freeze();
    let mut prompt = config.init_learned_prompt(P, 2, DType::F32, &device);
    let rows = random_rows(6, 5..=5, 4);
    let batch = text_batch(&rows, 0, &device);
    let positions: Vec<i32> = (0..6).flat_map(|_| 0..P as i32).collect();
    let insertion = Insertion::new(ids(&positions, &device), 6, 5);
    let labels = insertion.ids(batch.labels.clone(), TextBatch::NOT_COUNTED);
    let loss = |prompt: &kiln_model::LearnedPrompt| {
        let x = prompt.insert(model.embedding.forward(batch.input.clone()), &insertion);
        let logits = model.project(model.hidden(x, &Rows::new(6), None));
        let config =
            kiln_kernels::CrossEntropyConfig { label_smoothing: 0.0, ignore_index: TextBatch::NOT_COUNTED.into() };
        kiln_kernels::cross_entropy(logits, labels.clone(), &config).loss_sum / 24.0
    };

    let before = scalar(loss(&prompt));
    for _ in 0..60 {
        let gradients = loss(&prompt).backward();
        let gradient = prompt.table.val().grad(&gradients).expect("a gradient");
        prompt.table = prompt.table.map(|table| (table.inner() - gradient * 0.3).autodiff().require_grad());
    }
    let after = scalar(loss(&prompt));
    assert!(after < 0.9 * before, "loss {before} became {after}");
}

#[test]
fn a_learned_prompt_goes_before_cached_decoding() {
    let device = Device::flex();
    let config = gpt2_config();
    let model = config.init_decoder_only(1, DType::F32, &device);
    let prompt = config.init_learned_prompt(P, 2, DType::F32, &device);
    let full = [5, 6, 7, 8, 9];
    let with_prompt = |tokens: &[i32]| {
        let insertion = Insertion::new(ids(&[0, 1, 2], &device), 1, tokens.len());
        prompt.insert(model.embedding.forward(ids(tokens, &device)), &insertion)
    };
    let wanted = values(model.project(model.hidden(with_prompt(&full), &Rows::new(1), None)));
    let (logits, mut cache) = model.prefill_vectors(with_prompt(&full[..3]), ids(&[3 + P as i32], &device));
    let mut found = values(logits);
    for &id in &full[3..] {
        found.extend(values(model.decode_step(ids(&[id], &device), &mut cache)));
    }
    assert_close(&found, &wanted[(P + 2) * 12..], 1e-5, 1e-5, "logits behind the prompt");
}

#[test]
fn all_positions_of_a_masked_model_see_its_prompt() {
    let device = Device::flex();
    let config = TransformerConfig { n_encoder_layers: 1, ..bert_config() };
    let model = config.init_encoder_only(1, DType::F32, &device);
    let batch = text_batch(&random_rows(2, 4..=4, 1), 0, &device);
    let prompt = |seed| config.init_learned_prompt(P, seed, DType::F32, &device);
    let insertion = Insertion::new(ids(&POSITIONS, &device), 2, 4);
    let rows = Rows::of_lengths(batch.lengths.clone() + P as i32);
    let hidden = |seed| {
        let x = model.embed(batch.input.clone(), None);
        values(model.hidden(prompt(seed).insert(x, &insertion), &rows, None))
    };
    assert_eq!(hidden(1).len(), 14 * 16);
    for (one, other) in hidden(1).chunks(16).zip(hidden(2).chunks(16)) {
        assert_ne!(one, other);
    }
    assert_close(&hidden(1), &hidden(1), 0.0, 0.0, "the same prompt");
}

#[test]
#[should_panic(expected = "5 positions of prompt tokens do not divide into 2 rows")]
fn positions_that_do_not_divide_into_rows_are_refused() {
    Insertion::new(ids(&[0, 1, 2, 3, 4], &Device::flex()), 2, 4);
}

/// Each row alone, its vectors put together one by one.
#[test]
fn a_prompt_in_the_middle_of_an_encoders_rows_equals_a_loop() {
    let device = train_device();
    let config = TransformerConfig { prompt_tokens: P, dropout: 0.0, ..bert_config() };
    let model = config.init_encoder_only(3, DType::F32, &device);
    let rows = random_rows(4, 3..=9, 5);
    let batch = text_batch(&rows, 0, &device);
    let longest = batch.seq_len;
    let table = || model.learned_prompt.as_ref().expect("configured").table.val();
    let gradient = |of: Tensor<1>| values(table().grad(&of.backward()).expect("a gradient"));
    // A weight for each feature, so that no gradient cancels out.
    let weighed = |hidden: Tensor<2>| {
        let [n, d] = hidden.dims();
        let weights: Vec<f32> = (0..d).map(|i| ((i * 7) % 5) as f32 - 1.5).collect();
        (hidden * Tensor::<2>::from_data(TensorData::new(weights, [1, d]), &device).expand([n, d])).sum()
    };

    let hidden = model.read(&batch, None);
    let d = hidden.dims()[1];
    let (mut wanted, mut sum) = (Vec::new(), Tensor::<1>::zeros([1], &device));
    let mut real = Tensor::<1>::zeros([1], &device);
    for (n, row) in rows.iter().enumerate() {
        let x = model.embed(ids(row, &device), None);
        let len = row.len();
        let parts = vec![x.clone().narrow(0, 0, 1), table(), x.narrow(0, 1, len - 1)];
        let alone = model.hidden(Tensor::cat(parts, 0), &Rows::new(1), None);
        let alone = Tensor::cat(vec![alone.clone().narrow(0, 0, 1), alone.narrow(0, 1 + P, len - 1)], 0);
        let together = hidden.clone().narrow(0, n * longest, len);
        assert_close(&values(together.clone()), &values(alone.clone()), 1e-4, 1e-5, &format!("row {n}"));
        sum = sum + weighed(alone.clone());
        real = real + weighed(together);
        wanted.push(values(alone).len());
    }
    assert_eq!(wanted, rows.iter().map(|row| row.len() * d).collect::<Vec<_>>());
    assert_close(&gradient(real), &gradient(sum), 1e-3, 1e-4, "gradient of the prompt");
}
