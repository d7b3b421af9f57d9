//! Conversations: the same text as without memory of earlier turns, from fewer computed tokens.

use kiln_data::{ChatMessage, Role, TextTokenizer};
use kiln_model::{DecoderOnly, Transformer, prompt_of_tokens};

use super::transformers::{imported_with, repository};
use super::*;

const QUESTIONS: [&str; 3] = ["the cat sat", "one two three", "a model reads a text"];

/// The model of `model/fixtures/hf/FAMILY` with positions for a conversation, and its vocabulary.
fn fixture(family: &str, prompt_tokens: usize) -> (DecoderOnly, TextTokenizer) {
    let model = imported_with(family, |imported| {
        imported.config.max_positions = 400;
        imported.config.prompt_tokens = prompt_tokens;
        if prompt_tokens > 0 {
            imported.weights.extend(prompt_of_tokens(&imported.config, &imported.weights, 1));
        }
    });
    let Transformer::DecoderOnly(model) = model else { panic!("{family} continues text") };
    let folder = repository().join("model/fixtures/hf").join(family);
    (model, TextTokenizer::load_dir(&folder).expect("fixtures are committed"))
}

fn config() -> GenerateConfig {
    GenerateConfig { max_new_tokens: 12, ..GenerateConfig::default() }
}

fn generator(model: &DecoderOnly, tokenizer: &TextTokenizer, config: GenerateConfig) -> TextGenerator {
    TextGenerator::new(model, tokenizer.clone(), config).expect("they fit")
}

/// Three questions and their answers, with and without memory. `rewrite` changes the messages before they are encoded.
fn talk(
    family: &str,
    prompt_tokens: usize,
    config: GenerateConfig,
    rewrite: impl Fn(&mut Vec<ChatMessage>),
) -> [u64; 3] {
    let (model, tokenizer) = fixture(family, prompt_tokens);
    let (template, encoder) = (tokenizer.chat_template().expect("ChatML"), tokenizer.special_encoder().expect("one"));
    let fresh = generator(&model, &tokenizer, config.clone());
    let mut conversation = Conversation::new(generator(&model, &tokenizer, config));
    let (mut messages, mut before) = (Vec::new(), Vec::new());
    let mut saved = [0; 3];

    for (turn, question) in QUESTIONS.into_iter().enumerate() {
        messages.push(ChatMessage::new(Role::User, question));
        rewrite(&mut messages);
        let ids = encoder.encode(&template.render(&messages, true).expect("a conversation")).expect("ids");
        let mut pieces = String::new();
        let n_before = conversation.n_computed();
        let found = conversation.answer(ids.clone(), turn as u64, &mut |piece| {
            pieces.push_str(piece);
            Ok(())
        });
        let found = found.expect("an answer");
        let wanted = fresh.stream_ids(ids.clone(), turn as u64, &mut |_| Ok(())).expect("an answer");
        assert_eq!((&found, &pieces), (&wanted, &wanted.text), "{family}, turn {turn}");

        // The last token of an answer that ran out of room is not read again.
        let n_computed = conversation.n_computed() - n_before;
        let n_steps = found.n_tokens as u64 - u64::from(found.ended == EndedBy::Limit);
        saved[turn] = (ids.len() as u64 + n_steps).checked_sub(n_computed).expect("no more than everything");
        let same = ids.iter().zip(&before).take_while(|(now, before)| now == before).count() as u64;
        assert!(saved[turn] >= same, "{family}, turn {turn}: {saved:?}, but {same} ids are those of the last turn");
        messages.push(ChatMessage::new(Role::Assistant, found.text.trim()));
        before = ids;
    }
    saved
}

#[test]
fn a_conversation_says_the_same_and_computes_only_what_is_new() {
    for (family, prompt_tokens) in [("mistral", 0), ("llama", 4), ("gemma3", 0), ("qwen3", 3)] {
        let [first, second, third] = talk(family, prompt_tokens, config(), |_| ());
        assert!(first == 0 && second > 20 && third > second, "{family}: {first}, {second}, {third} tokens saved");
    }
}

#[test]
fn a_template_that_rewrites_earlier_turns_costs_tokens_but_not_the_text() {
    let [_, second, third] = talk("mistral", 0, config(), |messages| {
        let n = messages.len();
        messages[0] = ChatMessage::new(Role::User, format!("{n} {}", QUESTIONS[0]));
    });
    assert!(second < 20 && third < 20, "{second}, {third}");
}

#[test]
fn beams_and_samples_keep_the_conversation_too() {
    let beams = GenerateConfig { beam_size: 3, ..config() };
    let (model, tokenizer) = fixture("mistral", 0);
    let ids: Vec<u32> = (10..40).collect();
    let fresh = generator(&model, &tokenizer, beams.clone());
    let mut conversation = Conversation::new(generator(&model, &tokenizer, beams));
    for turn in 0..3 {
        let longer = [&ids[..], &[7; 2][..turn]].concat();
        let found = conversation.answer(longer.clone(), 0, &mut |_| Ok(())).expect("an answer");
        assert_eq!(found, fresh.stream_ids(longer, 0, &mut |_| Ok(())).expect("an answer"));
    }

    let sampled = GenerateConfig { sample: true, temperature: 0.9, seed: 3, ..config() };
    let [_, second, third] = talk("mistral", 0, sampled, |_| ());
    assert!(second > 20 && third > second);
}

#[test]
fn the_same_question_again_computes_one_token_of_it() {
    let (model, tokenizer) = fixture("llama", 4);
    let mut conversation = Conversation::new(generator(&model, &tokenizer, config()));
    let ids: Vec<u32> = (10..60).collect();
    let first = conversation.answer(ids.clone(), 0, &mut |_| Ok(())).expect("an answer");
    let n_first = conversation.n_computed();
    assert_eq!(conversation.answer(ids.clone(), 0, &mut |_| Ok(())).expect("an answer"), first);
    let again = conversation.n_computed() - n_first;
    assert_eq!(again, n_first - ids.len() as u64 + 1, "{n_first} tokens at first");

    // A conversation that is too long is refused, and a shorter one goes on.
    let error = conversation.answer(vec![9; 396], 6, &mut |_| Ok(())).expect_err("too long").to_string();
    assert!(error.starts_with("prompt 7 has 396 tokens, but the model has 396 positions"), "{error}");
    assert_eq!(conversation.answer(ids, 0, &mut |_| Ok(())).expect("an answer"), first);
    assert_eq!(conversation.n_computed(), n_first + 2 * again);
}
